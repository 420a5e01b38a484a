// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// How weights and input come to a pass in three phases.
#ifndef CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_WEIGHTS_CUH_
#define CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_WEIGHTS_CUH_

#include "cuda/capsule_routing/phases/tile.cuh"

namespace capsops::capsule_routing::phases {

// Brings weights of N capsules to registers, 8 x 8 elements of DT steps at a time, of
// one input capsule after another, always one fetch ahead. With kAlongD they are right
// operands with out_dim as the contraction, else with in_dim.
template <typename P, bool kAlongD>
class Weights {
  static constexpr int N = P::N, DT = P::DT, kSteps = P::kSteps;
  using S = typename P::S;

 public:
  // From input capsule `i` on, `count` of them.
  __device__ Weights(const Sizes& z, const Place& place, const S* weights, int64_t i,
                     int count, int group)
      : in_dim_(kSteps > 0 ? kSteps * kStep : z.in_dim),
        steps_(kSteps > 0 ? kSteps : z.steps),
        left_(count * steps_),
        columns_(in_dim_ - (kAlongD ? place.g : 2 * place.t)),
        next_(int64_t{z.out_caps} * z.out_dim * in_dim_ - (steps_ - 1) * kStep) {
    const int own = kAlongD ? 2 * place.t : place.g;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      // Past the last capsule comes the last again.
      const int cap = min(group * N + n, z.caps - 1);
      int64_t row;
      if constexpr (kSteps > 0) {
        row = (i * z.caps + cap) * (DT * kStep) + own;
      } else {
        const int d = cap % z.parts * (DT * kStep) + own;
        rows_[n] = z.out_dim - d;
        row = (i * z.out_caps + cap / z.parts) * z.out_dim + d;
      }
      at_[n] = weights + row * in_dim_ + (kAlongD ? place.g : 2 * place.t);
    }
    FetchAfter(-1);
  }

  // The operands of a step; they come one after the other.
  __device__ void Next(int step, typename P::Right (&to)[N][DT]) {
#pragma unroll
    for (int e = 0; e < 2 * N * DT; ++e) {
      const int n = e / (2 * DT), d = e / 2 % DT;
      constexpr Tf32 kOwn = P::kOwn;
      SetFinite(e % 2, Prepare<kOwn>(Widen(fetched_[n][d].at[e % 2])), &to[n][d]);
    }
    FetchAfter(step);
  }

 private:
  __device__ void FetchAfter(int step) {
    if (kSteps == 0 && left_ == 0) return;
#pragma unroll
    for (int e = 0; e < N * DT; ++e) {
      const int n = e / DT, d = e % DT * kStep;
      Pack<S, 2>& to = fetched_[n][e % DT];
      const S* const from = at_[n] + int64_t{d} * in_dim_;
      if constexpr (kSteps > 0 && kAlongD) {
        to = {{from[0], from[in_dim_]}};
      } else if constexpr (kSteps > 0) {
        to = *reinterpret_cast<const Pack<S, 2>*>(from);
      } else {
        const int columns = columns_ - (step + 1) % steps_ * kStep;
        const bool some = d < rows_[n] && columns > 0;
        const bool more = kAlongD ? d + 1 < rows_[n] : columns > 1;
        to.at[0] = some ? from[0] : S(0.0f);
        to.at[1] = some && more ? from[kAlongD ? in_dim_ : 1] : S(0.0f);
      }
    }
    // After the last comes the last again, which is read where that is no matter.
    if (--left_ <= 0) return;
    const bool ends = kSteps == 1 || (step + 2) % steps_ == 0;
#pragma unroll
    for (int n = 0; n < N; ++n) at_[n] += ends ? next_ : kStep;
  }

  const int64_t in_dim_;
  const int steps_;
  int left_, columns_, rows_[N];  // columns and rows left from the lane's on
  const int64_t next_;            // from an input capsule's last step to the next one
  const S* at_[N];
  Pack<S, 2> fetched_[N][DT];
};

// Copies `count` input capsules of the samples of `blocks` sample blocks from `block`
// on to x. Warps share tiles of samples.
template <typename P>
__device__ void StageInput(const Sizes& z, const Place& place,
                           const typename P::S* input, int64_t block, int blocks,
                           int64_t i, int count, float4* x) {
  using S = typename P::S;
  constexpr int M = P::M, kSteps = P::kSteps;
  const int in_dim = kSteps > 0 ? kSteps * kStep : z.in_dim;
  const int steps = kSteps > 0 ? kSteps : z.steps;
  const int64_t row = z.in_caps * in_dim;
  const int warps = blockDim.x / kLanes, tiles = blocks * M;
  const int sharers = max(warps / tiles, 1);
  if (place.warp / tiles >= sharers) return;
  for (int tile = place.warp % tiles; tile < tiles; tile += warps) {
    const int m = tile % M;
    const int64_t b = (block + tile / M) * P::kSamples + 2 * M * place.g + 2 * m;
    const S* const from = input + b * row + i * in_dim + 2 * place.t;
    float4* const to = x + (tile / M * steps * M + m) * kLanes + place.lane;
#pragma unroll 2
    for (int e = place.warp / tiles; e < count * steps; e += sharers) {
      const int64_t k = int64_t{e / steps} * in_dim + e % steps * kStep;
      const int columns = in_dim - e % steps * kStep - 2 * place.t;
      float4 both;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        Pack<S, 2> pair{};
        if (b + h < z.batch) {
          if constexpr (kSteps > 0) {
            pair = *reinterpret_cast<const Pack<S, 2>*>(from + h * row + k);
          } else {
            if (columns > 0) pair.at[0] = from[h * row + k];
            if (columns > 1) pair.at[1] = from[h * row + k + 1];
          }
        }
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          At(both, 2 * h + n) = Seen<P::kOwn>(Widen(pair.at[n]));
        }
      }
      to[(e / steps * blocks * steps + e % steps) * (M * kLanes)] = both;
    }
  }
}

}  // namespace capsops::capsule_routing::phases

#endif  // CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_WEIGHTS_CUH_
