// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The end of an iteration: adding up a pass's partial sums, squash.
#ifndef CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_FINISH_CUH_
#define CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_FINISH_CUH_

#include "cuda/capsule_routing/phases/tile.cuh"
#include "cuda/capsule_routing/squash.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_routing::phases {

constexpr int kFinishWarps = 16;

// Where a thread stands whose block has one output capsule of one tile of samples:
// parts DT float4 for each of 32 lanes, of which the 4 lanes of one g have two samples.
// A warp has `steps` first, first + together, ... of out_dim, and shares them with
// `sharers` warps where there are fewer steps than warps.
struct Row {
  const Sizes& z;
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int steps = z.parts * z.part_steps;
  const int sharers = max(kFinishWarps / steps, 1), sharer = warp % sharers;
  const int first = warp / sharers, together = kFinishWarps / sharers;
  const int j = blockIdx.x / z.tiles % z.out_caps, m = blockIdx.x % z.tiles;
  const int64_t block = int64_t{blockIdx.x} / z.tiles / z.out_caps;

  // The length of a vector, in float4.
  __device__ int64_t length() const { return int64_t{gridDim.x} * steps * kLanes; }
  __device__ int64_t in_vector(int step) const {
    const int64_t row = (block * z.out_caps + j) * steps + step;
    return (row * z.tiles + m) * kLanes + lane;
  }
  // The sample and the element of component e of a step.
  __device__ int64_t sample(int e) const {
    return (block * kRows + lane / 4 * 2) * z.tiles + 2 * m + e / 2;
  }
  __device__ int element(int step, int e) const {
    return step * kStep + lane % 4 * 2 + e % 2;
  }
  __device__ bool inside(int step, int e) const {
    return sample(e) < z.batch && element(step, e) < z.out_dim;
  }
  __device__ int64_t in_array(int step, int e) const {
    return (sample(e) * z.out_caps + j) * z.out_dim + element(step, e);
  }

  // Calls visit(step) for each step that the thread finishes.
  template <typename Visit>
  __device__ void Each(const Visit& visit) const {
    if (sharer > 0) return;
    for (int step = first; step < steps; step += together) visit(step);
  }

  // A step of an array [batch, out_caps, out_dim], with zeros past its ends.
  __device__ float4 Load(const float* from, int step) const {
    float4 x{};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (inside(step, e)) At(x, e) = from[in_array(step, e)];
    }
    return x;
  }
  template <typename S>
  __device__ void Store(const float4& x, int step, S* to) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (inside(step, e)) Narrow(At(x, e), to + in_array(step, e));
    }
  }

  // Adds up `slices` partial vectors: calls visit(step, sum) for each step that the
  // thread finishes. All threads of the block take part.
  template <typename Visit>
  __device__ void SumPartials(const float4* partial, int64_t slices,
                              const Visit& visit) const {
    __shared__ float4 shares[kFinishWarps][kLanes];
    for (int step = first; step < steps; step += together) {
      float4 sum{};
      const float4* const from = partial + in_vector(step);
#pragma unroll 8
      for (int64_t c = sharer; c < slices; c += sharers) Add(from[c * length()], &sum);
      if (sharers == 1) {
        visit(step, sum);
      } else {
        shares[warp][lane] = sum;
      }
    }
    if (sharers == 1) return;
    __syncthreads();
    Each([&](int step) {
      float4 sum = shares[warp][lane];
      for (int s = 1; s < sharers; ++s) Add(shares[warp + s][lane], &sum);
      visit(step, sum);
    });
  }

  // Each of x[n][h], of the lane's two samples, summed over a row's threads.
  __device__ void Sum(float (&x)[2][2]) const {
    __shared__ float parts[4][kFinishWarps][kLanes / 4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float sum = x[e / 2][e % 2];
#pragma unroll
      for (int offset = 1; offset < 4; offset *= 2) {
        sum += __shfl_xor_sync(~0u, sum, offset);
      }
      if (lane % 4 == 0) parts[e][warp][lane / 4] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float& sum = x[e / 2][e % 2] = 0;
#pragma unroll
      for (int w = 0; w < kFinishWarps; ++w) sum += parts[e][w][lane / 4];
    }
  }
};

// sums = s, and either output = squash(s), or v, which is V of this iteration and
// anything in the `first`, becomes that of the next, V + squash(s).
template <typename S>
__global__ void __launch_bounds__(kFinishWarps* kLanes)
    FinishKernel(Sizes z, int64_t slices, const float4* __restrict__ partial,
                 bool first, float4* v, float* sums, S* __restrict__ output) {
  const Row row{z};
  LetKernelAfterBegin();
  WaitForKernelBefore();
  // Of the first step that the thread finishes, mostly the only one.
  float4 own{}, own_v{};
  if (!first && output == nullptr && row.first < row.steps) {
    own_v = v[row.in_vector(row.first)];
  }
  float squares[2][2] = {};  // |s|^2 and |kShrink s|^2
  row.SumPartials(partial, slices, [&](int step, float4 s) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      // Past the last element comes nothing of meaning.
      float& x = At(s, e);
      if (!row.inside(step, e)) x = 0;
      squares[0][e / 2] += x * x;
      squares[1][e / 2] += x * kShrink<float> * (x * kShrink<float>);
    }
    row.Store(s, step, sums);
    if (step == row.first) own = s;
  });
  row.Sum(squares);
  const Squash<float> squash[2] = {{squares[0][0], squares[1][0], z.epsilon},
                                   {squares[0][1], squares[1][1], z.epsilon}};
  row.Each([&](int step) {
    const bool known = step == row.first;
    float4 squashed = known ? own : row.Load(sums, step);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float& x = At(squashed, e);
      x = squash[e / 2].Along(x) * squash[e / 2].factor;
    }
    if (output != nullptr) {
      row.Store(squashed, step, output);
    } else {
      const int64_t at = row.in_vector(step);
      if (!first) Add(known ? own_v : v[at], &squashed);
      v[at] = squashed;
    }
  });
}

}  // namespace capsops::capsule_routing::phases

#endif  // CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_FINISH_CUH_
