// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The backward kernel of capsule prediction (method: capsule_prediction/launch.cu.cc).
// A block computes grad_input and grad_weights of one input capsule. Each warp copies
// its samples of grad and input through its own ring in shared memory with cp.async,
// and keeps the weights and grad_weights of V columns per lane in registers.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>

#include "cuda/capsule_prediction/fma/forward.cuh"
#include "cuda/common/warp.cuh"

namespace capsops::capsule_prediction {

constexpr int kBackwardWarps = 4;     // warps per block, if they suffice
constexpr int kMaxBackwardWarps = 8;  // warps per block, otherwise
constexpr int kBackwardK = 8;         // elements of in_dim per warp
constexpr int kPerStep = 4;           // samples per warp and step
constexpr int kRing = 2;              // stages of kPerStep samples in shared memory

// Division of a block's work: column_tiles x k_tiles warps divide the columns and
// in_dim of a sample among them, and `groups` such sets of warps take different
// samples.
struct Division {
  int column_tiles, k_tiles, groups;
};

// Copies a warp's part of successive samples to shared memory: `width` elements of
// grad, zero-padded to kColumns, and `depth` of input, zero-padded to kBackwardK. If
// both consist of 16-byte words (kWords), the copies are asynchronous. A lane copies
// the same words of every sample, so that its pointers only advance by a constant.
template <typename S, int kColumns, bool kWords>
class SampleLoader {
 public:
  static constexpr int kRow = kColumns + kBackwardK;

  // `grad` and `input` point to the first sample, and the steps are strides between
  // samples. Clears the whole `ring` if samples need padding.
  __device__ SampleLoader(const S* grad, int64_t grad_step, int width, const S* input,
                          int64_t input_step, int depth, S* ring) {
    const int lane = threadIdx.x % kLanes;
    if (width < kColumns || depth < kBackwardK) {
      for (int e = lane; e < kRing * kPerStep * kRow; e += kLanes) ring[e] = S(0.0f);
      __syncwarp();
    }
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int e = (r * kLanes + lane) * kWord;
      const bool of_grad = e < width;
      const int k = e - width;  // lanes past the last column copy input
      to_[r] = of_grad ? e : k < depth ? kColumns + k : kNone;
      from_[r] = of_grad ? grad + e : input + k;
      step_[r] = of_grad ? grad_step : input_step;
    }
  }

  // Starts the copy of the next sample, or stores zeros unless `inside`.
  __device__ void Next(bool inside, S* row) {
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      using Word = Pack<S, kWord>;
      if (to_[r] != kNone) {
        Word* const to = reinterpret_cast<Word*>(row + to_[r]);
        if (!inside) {
          *to = Word{};
        } else if constexpr (kWords) {
          __pipeline_memcpy_async(to, from_[r], sizeof(Word));
        } else {
          *to = *reinterpret_cast<const Word*>(from_[r]);
        }
      }
      from_[r] += step_[r];
    }
  }

 private:
  static constexpr int kWord = kWords ? 16 / sizeof(S) : 1;
  static constexpr int kRounds = (kRow / kWord + kLanes - 1) / kLanes;
  static constexpr int kNone = -1;

  int to_[kRounds];
  const S* from_[kRounds];
  int64_t step_[kRounds];
};

// Computes both gradients of a block's input capsule. Warps work independently, each on
// its own samples, columns and part of in_dim, until they add up their results: column
// tiles add grad_input every kRing steps, groups add grad_weights at the end.
template <typename S, typename A, int V, bool kWords, int kWarps>
__global__ void __launch_bounds__(kWarps* kLanes, kWarps == kBackwardWarps ? 3 : 1)
    BackwardKernel(Sizes z, Division d, const S* __restrict__ grad,
                   const S* __restrict__ input, const S* __restrict__ weights,
                   S* __restrict__ grad_input, S* __restrict__ grad_weights) {
  constexpr int K = kBackwardK, kColumns = kLanes * V;
  using Samples = SampleLoader<S, kColumns, kWords>;
  // Each warp's ring of samples, reused at the end to reduce grad_weights.
  extern __shared__ __align__(16) char shared[];
  // Contributions of each column tile to grad_input in kRing steps.
  __shared__ A partial[kRing * kPerStep * kWarps * K];
  const int64_t i = blockIdx.x;
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int tile = warp % d.column_tiles;
  const int k0 = warp / d.column_tiles % d.k_tiles * K, depth = min(z.in_dim - k0, K);
  const int group = warp / d.column_tiles / d.k_tiles;
  const bool vector = z.vector && depth == K;  // the last k_tiles may be empty
  const int64_t n0 = tile * kColumns;
  const int width = max(min(z.columns - n0, int64_t{kColumns}), int64_t{0});
  const int64_t stride = z.in_caps * z.in_dim;
  S* const ring =
      reinterpret_cast<S*>(shared) + warp * (kRing * kPerStep * Samples::kRow);
  const int64_t first_sample = group * z.in_caps + i;
  Samples samples(grad + first_sample * z.columns + n0,
                  d.groups * z.in_caps * z.columns, width,
                  input + first_sample * z.in_dim + k0, d.groups * stride, depth, ring);
  S* const my_grad_input = grad_input + i * z.in_dim;
  const int step_samples = kPerStep * d.groups;
  const int steps = (z.batch + step_samples - 1) / step_samples;
  const auto issue = [&](int step) {
#pragma unroll
    for (int u = 0; u < kPerStep; ++u) {
      const int64_t b = int64_t{step} * step_samples + u * d.groups + group;
      samples.Next(b < z.batch, ring + (step % kRing * kPerStep + u) * Samples::kRow);
    }
    __pipeline_commit();
  };
#pragma unroll 1
  for (int step = 0; step < kRing - 1; ++step) issue(step);
  A w[V][K], sum[V][K] = {};
#pragma unroll
  for (int v = 0; v < V; ++v) {
    // Clears padded columns, as even an infinite weight must not count there.
    const int64_t n = n0 + v * kLanes + lane;
    const bool inside = n < z.columns;
    LoadRow(weights + (i * z.columns + n) * z.in_dim + k0, inside ? depth : 0,
            vector && inside, w[v]);
  }
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    __pipeline_wait_prior(kRing - 2);
    __syncwarp();
    issue(step + kRing - 1);
    A part[kPerStep * K] = {};
#pragma unroll
    for (int u = 0; u < kPerStep; ++u) {
      const S* const row = ring + (step % kRing * kPerStep + u) * Samples::kRow;
      A g[V], x[K];
#pragma unroll
      for (int v = 0; v < V; ++v) g[v] = Widen(row[v * kLanes + lane]);
      LoadRow(row + kColumns, K, true, x);
#pragma unroll
      for (int k = 0; k < K; ++k) {
#pragma unroll
        for (int v = 0; v < V; ++v) {
          sum[v][k] += g[v] * x[k];
          part[u * K + k] += g[v] * w[v][k];
        }
      }
    }
    const A total = SumOverLanes(part);
    static_assert(kPerStep * K == kLanes);  // one sum per lane
    const int k = lane % K;
    const bool mine = k < depth;
    const int sample = lane / K * d.groups + group;
    const int64_t b = int64_t{step} * step_samples + sample;
    if (d.column_tiles == 1) {
      if (mine && b < z.batch) Narrow(total, my_grad_input + b * stride + k0 + k);
      continue;
    }
    // partial[tile][sample of kRing steps][in_dim]
    const int chunk = kRing * step_samples, first = step % kRing * step_samples;
    if (mine) partial[(tile * chunk + first + sample) * z.in_dim + k0 + k] = total;
    if (step % kRing < kRing - 1 && step < steps - 1) continue;
    __syncthreads();
    const int64_t b0 = int64_t{step} * step_samples - first;
    for (int e = threadIdx.x; e < chunk * z.in_dim; e += blockDim.x) {
      const int64_t b = b0 + e / z.in_dim;
      if (b >= z.batch) break;
      A all = 0;
      for (int t = 0; t < d.column_tiles; ++t) all += partial[t * chunk * z.in_dim + e];
      Narrow(all, my_grad_input + b * stride + e % z.in_dim);
    }
    __syncthreads();
  }
  // Reduces grad_weights over the groups: each step adds the upper half to the lower.
  __pipeline_wait_prior(0);
  const int tiles = d.column_tiles * d.k_tiles;
  for (int half = d.groups / 2; half > 0; half /= 2) {
    A* const mine = reinterpret_cast<A*>(shared) +
                    (group % half * tiles + warp % tiles) * V * K * kLanes + lane;
    __syncthreads();
    if (group >= half && group < 2 * half) {
#pragma unroll
      for (int e = 0; e < V * K; ++e) mine[e * kLanes] = sum[e / K][e % K];
    }
    __syncthreads();
    if (group < half) {
#pragma unroll
      for (int e = 0; e < V * K; ++e) sum[e / K][e % K] += mine[e * kLanes];
    }
  }
  if (group > 0) return;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const int n = v * kLanes + lane;
    if (n < width) {
      StoreRow(sum[v], depth, vector,
               grad_weights + (i * z.columns + n0 + n) * z.in_dim + k0);
    }
  }
}

}  // namespace capsops::capsule_prediction
