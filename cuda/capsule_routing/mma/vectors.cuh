// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Kernels between the passes of capsule routing: they add partial sums, and compute
// squash and its gradient. A thread has one float4 of a vector of output capsules
// (layout: mma/tile.cuh), or kSlices threads share one to add partial sums. A block has
// the M float4 of each of kPart lanes.
#pragma once

#include "cuda/capsule_routing/mma/tile.cuh"
#include "cuda/capsule_routing/squash.cuh"
#include "cuda/common/barrier.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_routing::mma {

constexpr int kSlices = 16;  // threads that share the partial sums of a float4
constexpr int kPart = 8;     // lanes per block

// A thread's coordinates in the vector, and its block-wide reductions.
template <int D>
struct VectorThread {
  static constexpr int M = D / 2;
  static constexpr int kThreads = M * kPart;  // threads per slice

  const Sizes& z;
  const int part = threadIdx.x % kPart, m = threadIdx.x / kPart % M;
  const int slice = threadIdx.x / kThreads;
  const int lane = blockIdx.x % (kLanes / kPart) * kPart + part;
  const int64_t place = blockIdx.x / (kLanes / kPart);  // tile and group
  const int64_t tile = place / z.groups;
  const int j = static_cast<int>(place % z.groups) * kGroupCaps + lane % 4;
  const int64_t index = (place * M + m) * kLanes + lane;
  const int64_t rows[2] = {tile * kTileSamples + lane / 4,
                           tile * kTileSamples + lane / 4 + 8};

  static int64_t Blocks(const Sizes& z) {
    return z.tiles * z.groups * (kLanes / kPart);
  }

  // Index of the pair of row h in an array [batch, out_caps, D].
  __device__ int64_t at(int h) const { return (rows[h] * z.out_caps + j) * D + 2 * m; }
  __device__ bool inside(int h) const { return rows[h] < z.batch && j < z.out_caps; }

  template <typename S>
  __device__ float4 Load(const S* from) const {
    float x[4] = {};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (inside(e / 2)) x[e] = Widen(from[at(e / 2) + e % 2]);
    }
    return {x[0], x[1], x[2], x[3]};
  }

  template <typename S>
  __device__ void Store(float4 x, S* to) const {
    if (inside(0)) StorePair(x.x, x.y, to + at(0));
    if (inside(1)) StorePair(x.z, x.w, to + at(1));
  }

  // Sums over `chunks` partial vectors. Only slice 0 gets the result.
  __device__ float4 SumPartials(const float4* partial, int64_t chunks) const {
    __shared__ float4 others[kSlices - 1][kThreads];
    float4 sum{};
#pragma unroll 4
    for (int64_t c = slice; c < chunks; c += kSlices) {
      Add(partial[c * (VectorFloats<D>(z) / 4) + index], &sum);
    }
    const int thread = threadIdx.x % kThreads;
    if (slice > 0) others[slice - 1][thread] = sum;
    __syncthreads();
    if (slice == 0) {
      for (int s = 0; s < kSlices - 1; ++s) Add(others[s][thread], &sum);
    }
    // Clears the padding after the last output capsule.
    return j < z.out_caps ? sum : float4{};
  }

  // Computes the inner products of a[n] and b[n] for each n and both rows. All threads
  // of slice 0 must call this, and no others.
  template <int N>
  __device__ void Products(const float4 (&a)[N], const float4 (&b)[N],
                           float2 (&product)[N]) const {
    __shared__ float2 parts[N][M][kPart];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      parts[n][m][part] = {a[n].x * b[n].x + a[n].y * b[n].y,
                           a[n].z * b[n].z + a[n].w * b[n].w};
    }
    SyncNamedBarrier<kThreads>();
#pragma unroll
    for (int n = 0; n < N; ++n) {
      product[n] = {};
#pragma unroll
      for (int e = 0; e < M; ++e) {
        product[n].x += parts[n][e][part].x;
        product[n].y += parts[n][e][part].y;
      }
    }
    SyncNamedBarrier<kThreads>();
  }
};

// Multiplies the pairs of rows 0 and 1 by one factor each.
__device__ inline float4 Scale(float4 x, float row0, float row1) {
  return {x.x * row0, x.y * row0, x.z * row1, x.w * row1};
}

// Returns squash(s), or if `dv` is not null the gradient of s, given the gradient dv of
// squash(s).
template <int D>
__device__ float4 SquashRows(const VectorThread<D>& thread, float4 s,
                             const float4* dv) {
  using Row = Squash<float>;
  const float4 small = Scale(s, kShrink<float>, kShrink<float>);
  float2 q[2];
  thread.template Products<2>({s, small}, {s, small}, q);
  const Row rows[2] = {{q[0].x, q[1].x, thread.z.epsilon},
                       {q[0].y, q[1].y, thread.z.epsilon}};
  const float4 along = {rows[0].Along(s.x), rows[0].Along(s.y), rows[1].Along(s.z),
                        rows[1].Along(s.w)};
  if (dv == nullptr) return Scale(along, rows[0].factor, rows[1].factor);
  thread.template Products<2>({s, small}, {*dv, *dv}, q);
  float4 ds = Scale(*dv, rows[0].gain, rows[1].gain);
  Add(Scale(along, rows[0].Slope(q[0].x, q[1].x), rows[1].Slope(q[0].y, q[1].y)), &ds);
  return ds;
}

// Ends an iteration. Writes sums = s, and either output = squash(s) or, for the next
// iteration, V += squash(s). In the `first` iteration, V counts as zero.
template <typename S, int D>
__global__ void __launch_bounds__(kSlices* VectorThread<D>::kThreads)
    FinishKernel(Sizes z, int64_t chunks, const float4* __restrict__ partial,
                 bool first, float4* __restrict__ v, float* __restrict__ sums,
                 S* __restrict__ output) {
  const VectorThread<D> thread{z};
  TriggerDependentLaunch();
  GridDependencySynchronize();
  const float4 s = thread.SumPartials(partial, chunks);
  if (thread.slice > 0) return;
  thread.Store(s, sums);
  float4 squashed = SquashRows(thread, s, nullptr);
  if (output != nullptr) {
    thread.Store(squashed, output);
  } else {
    if (!first) Add(v[thread.index], &squashed);
    v[thread.index] = squashed;
  }
}

// Computes V of iterations 1 to `iterations`, and ds of the last. Iteration r (from 1)
// has V and then ds at vectors + 2 (r - 1) vector lengths. Iterations beyond, up to
// `padded`, get zeros. Without `grad`, writes only the V after all iterations.
template <typename S, int D>
__global__ void __launch_bounds__(VectorThread<D>::kThreads)
    PrepareKernel(Sizes z, int64_t iterations, int64_t padded,
                  const float* __restrict__ sums, const S* __restrict__ grad,
                  float4* __restrict__ vectors) {
  const VectorThread<D> thread{z};
  GridDependencySynchronize();  // the previous kernel may write what this reads
  TriggerDependentLaunch();
  const int64_t length = VectorFloats<D>(z) / 4, step = z.batch * z.out_caps * D;
  float4 v{}, s{}, next{};
  if (iterations > 0) next = thread.Load(sums);
  for (int64_t r = 0; r < iterations; ++r) {
    if (grad != nullptr) vectors[2 * r * length + thread.index] = v;
    s = next;
    if (r + 1 < iterations) next = thread.Load(sums + (r + 1) * step);
    Add(SquashRows(thread, s, nullptr), &v);
  }
  if (grad == nullptr) {
    vectors[thread.index] = v;
    return;
  }
  const float4 dv = thread.Load(grad);
  vectors[(2 * iterations - 1) * length + thread.index] = SquashRows(thread, s, &dv);
  for (int64_t r = 2 * iterations; r < 2 * padded; ++r) {
    vectors[r * length + thread.index] = {};
  }
}

// Ends a backward iteration: computes dv += dV, and then ds of the preceding iteration
// from dv and from the `sums` of that iteration.
template <int D>
__global__ void __launch_bounds__(kSlices* VectorThread<D>::kThreads)
    FinishBackwardKernel(Sizes z, int64_t chunks, const float4* partial,
                         const float* __restrict__ sums, float4* __restrict__ dv,
                         float4* __restrict__ ds) {
  const VectorThread<D> thread{z};
  TriggerDependentLaunch();
  GridDependencySynchronize();
  float4 total = thread.SumPartials(partial, chunks);
  if (thread.slice > 0) return;
  Add(dv[thread.index], &total);
  dv[thread.index] = total;
  ds[thread.index] = SquashRows(thread, thread.Load(sums), &total);
}

}  // namespace capsops::capsule_routing::mma
