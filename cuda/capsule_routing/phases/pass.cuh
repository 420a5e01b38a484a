// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// One pass over the input capsules: the weighted sums of predictions that an iteration
// of capsule routing consists of.
#ifndef CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_PASS_CUH_
#define CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_PASS_CUH_

#include <algorithm>

#include "cuda/capsule_routing/phases/phases.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_routing::phases {

// How a pass is cut: a block has some sample blocks and a slice of the input capsules,
// of which it takes `chunk` at a time.
struct Cut {
  Teams teams;
  int64_t slice;
  int chunk;
};

// What a block has in shared memory, in float4: input, then a plane and logits or, at
// the end of a chunk, the sums of all teams but the first.
template <typename P>
struct PassMemory {
  static __host__ __device__ int64_t Input(const Sizes& z, const Cut& cut) {
    return int64_t{cut.chunk} * cut.teams.blocks * z.steps * (P::M * kLanes);
  }
  static __host__ __device__ int64_t Plane(const Sizes& z, const Cut& cut) {
    return int64_t{cut.chunk} * cut.teams.blocks * z.caps * (P::kSamples / 4);
  }
  static __host__ __device__ int64_t Sums(const Teams& teams) {
    return int64_t{teams.count - 1} * teams.units() * (P::M * P::N * P::DT * kLanes);
  }
  static int64_t Bytes(const Sizes& z, const Cut& cut) {
    const int64_t logits = CeilDivide(int64_t{cut.chunk} * z.out_caps, 4);
    return (Input(z, cut) + std::max(Plane(z, cut) + logits, Sums(cut.teams))) *
           static_cast<int64_t>(sizeof(float4));
  }
};

// Adds up what the teams have in `sum`; only the first one has the result, for which
// this returns true. All threads of the block take part. `others` has room for Sums().
template <typename P>
__device__ bool AddTeams(const Place& place, const Teams& teams, int team, int unit,
                         float4* others, float (&sum)[P::M][P::N][P::DT][4]) {
  constexpr int M = P::M, N = P::N, DT = P::DT;
  others += unit * (M * N * DT * kLanes) + place.lane;
  const int step = teams.units() * (M * N * DT * kLanes);
  __syncthreads();
  if (team > 0) {
#pragma unroll
    for (int e = 0; e < M * N * DT; ++e) {
      const float (&own)[4] = sum[e / (N * DT)][e / DT % N][e % DT];
      others[(team - 1) * step + e * kLanes] = {own[0], own[1], own[2], own[3]};
    }
  }
  __syncthreads();
  if (team > 0) return false;
#pragma unroll 1
  for (int k = 0; k + 1 < teams.count; ++k) {
#pragma unroll
    for (int e = 0; e < M * N * DT; ++e) {
      const float4 other = others[k * step + e * kLanes];
      float (&own)[4] = sum[e / (N * DT)][e / DT % N][e % DT];
#pragma unroll
      for (int c = 0; c < 4; ++c) own[c] += At(other, c);
    }
  }
  return true;
}

// Writes sum_i c u_hat to partial[blockIdx.y], a vector of output capsules, where c is
// the softmax of logits + <u_hat, V>, and V zero where `v` is null.
template <typename P>
__global__ void __launch_bounds__(kMostWarps* kLanes, 1)
    PassKernel(Sizes z, Cut cut, const typename P::S* __restrict__ input,
               const typename P::S* __restrict__ weights,
               const typename P::S* __restrict__ logits, const float4* __restrict__ v,
               float4* __restrict__ partial) {
  constexpr int M = P::M, N = P::N, DT = P::DT;
  extern __shared__ float4 x[];
  float4* const rest = x + PassMemory<P>::Input(z, cut);
  float* const plane = reinterpret_cast<float*>(rest);
  float* const biases = plane + 4 * PassMemory<P>::Plane(z, cut);
  const Place place;
  const Teams& teams = cut.teams;
  const int team = place.warp / teams.warps, warp = place.warp % teams.warps;
  const int64_t block = int64_t{blockIdx.x} * teams.blocks;
  const int64_t last = P::Blocks(z) - 1, length = P::BlockLength(z);
  const int64_t begin = min(blockIdx.y * cut.slice, z.in_caps);
  const int64_t end = min(begin + cut.slice, z.in_caps);
  partial += blockIdx.y * P::VectorLength(z);
#pragma unroll 1
  for (int64_t i0 = begin; i0 < end; i0 += cut.chunk) {
    const int count = static_cast<int>(min(end - i0, int64_t{cut.chunk}));
    if (i0 > begin) __syncthreads();
    StageInput<P>(z, place, input, block, teams.blocks, i0, count, x);
    for (int e = threadIdx.x; e < count * z.out_caps; e += blockDim.x) {
      biases[e] = Widen(logits[i0 * z.out_caps + e]) * kLog2E;
    }
    if (i0 == begin) WaitForKernelBefore();
    __syncthreads();
    const Share share(teams, team, count);
    if (v != nullptr) {
#pragma unroll 1
      for (int unit = warp; unit < teams.units(); unit += teams.warps) {
        const int own = unit / teams.groups;
        Agree<P>(z, place, share, weights, i0, unit % teams.groups, teams.blocks,
                 x + own * z.steps * (M * kLanes), v + min(block + own, last) * length,
                 plane + own * z.caps * P::kSamples);
      }
      __syncthreads();
    }
    Softmax<P>(z, biases, count, teams.blocks, v != nullptr, plane);
    __syncthreads();
#pragma unroll 1
    for (int unit = warp; unit < teams.units(); unit += teams.warps) {
      const int group = unit % teams.groups, own = unit / teams.groups;
      float sum[M][N][DT][4];
      AddUp<P>(z, place, share, weights, i0, group, teams.blocks,
               x + own * z.steps * (M * kLanes), plane + own * z.caps * P::kSamples,
               sum);
      LetKernelAfterBegin();
      // Where there are teams, a warp has one unit.
      if (teams.count > 1 && !AddTeams<P>(place, teams, team, unit, rest, sum)) break;
      if (block + own > last) continue;
      float4* const to =
          partial + (block + own) * length + group * (M * N * DT * kLanes) + place.lane;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        if (group * N + n >= z.caps) break;
#pragma unroll
        for (int e = 0; e < M * DT; ++e) {
          const float (&own_sum)[4] = sum[e % M][n][e / M];
          float4 total = {own_sum[0], own_sum[1], own_sum[2], own_sum[3]};
          float4* const at = to + (n * M * DT + e) * kLanes;
          if (i0 > begin) Add(*at, &total);
          *at = total;
        }
      }
    }
  }
}

}  // namespace capsops::capsule_routing::phases

#endif  // CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_PASS_CUH_
