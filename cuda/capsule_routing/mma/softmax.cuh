// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Softmax over the output capsules of a team's warps. The warps write the logits to
// shared memory, where threads reduce whole rows; shuffles for each logit would be
// slower.
#pragma once

#include "cuda/capsule_routing/mma/tile.cuh"

namespace capsops::capsule_routing::mma {

// ExpBelow, but 0 if even the maximum is -infinity.
__device__ inline float ExpBelowOrZero(float x, float maximum) {
  return ExpBelow(x, maximum == -INFINITY ? 0 : maximum);
}

// A team's inner products of one stage in shared memory: one row of output capsules,
// padded to groups, per input capsule and sample. The row stride is an odd number of
// float4, so that neither storing lanes nor reducing threads have bank conflicts.
struct Rows {
  int groups, pitch, stage, shift;

  // Rows for `of_stage` input capsules at a time. 2^shift threads reduce a row.
  __host__ __device__ Rows(int of_groups, int of_stage)
      : groups(of_groups), pitch(of_groups | 1), stage(of_stage), shift(0) {
    while (kHeld << shift < groups ||
           (1 << shift < groups &&
            kTileSamples * stage << (shift + 1) <= groups * kLanes)) {
      ++shift;
    }
  }

  __host__ __device__ int length() const { return stage * kTileSamples * pitch; }
  // Address of output capsule `j` in row `row` of the first input capsule.
  __device__ float* Get(float4* team_rows, int row, int j) const {
    return reinterpret_cast<float*>(team_rows + row * pitch) + j;
  }
  // Offset from there to input capsule n, 8 h samples further on.
  __device__ int At(int n, int h) const {
    return (n * kTileSamples + h * 8) * pitch * 4;
  }

  // Computes the softmax c of the rows of `count` input capsules. If kShares, c
  // replaces the logits. If kGradient, c (dc - sum_j c dc) replaces dc, which is stored
  // length() float4 further on. All threads of the team must call this.
  template <bool kShares, bool kGradient>
  __device__ void Softmaxes(int count, int thread, float4* team_rows) const {
    const int all = count * kTileSamples << shift, sharing = 1 << shift;
    const int own = thread & (sharing - 1);
    for (int e = thread; e - thread % kLanes < all; e += groups * kLanes) {
      float4* const c = team_rows + (e >> shift) * pitch + own;
      float4* const dc = c + length();
      float4 x[kHeld];
      [[maybe_unused]] float4 y[kHeld];
      float maximum = -INFINITY, sum = 0, mean = 0;
      // Threads without a row still take part in the shuffles.
      const int last = e < all ? groups - own : 0;
#pragma unroll
      for (int w = 0; w < kHeld; ++w) {
        x[w] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        if (w << shift < last) x[w] = c[w << shift];
        if constexpr (kGradient) {
          y[w] = {};
          if (w << shift < last) y[w] = dc[w << shift];
        }
        maximum = fmaxf(fmaxf(maximum, fmaxf(x[w].x, x[w].y)), fmaxf(x[w].z, x[w].w));
      }
      for (int offset = 1; offset < sharing; offset *= 2) {
        maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, offset));
      }
#pragma unroll
      for (int w = 0; w < kHeld; ++w) {
        x[w] = {ExpBelowOrZero(x[w].x, maximum), ExpBelowOrZero(x[w].y, maximum),
                ExpBelowOrZero(x[w].z, maximum), ExpBelowOrZero(x[w].w, maximum)};
        sum += (x[w].x + x[w].y) + (x[w].z + x[w].w);
        if constexpr (kGradient) {
          mean +=
              (x[w].x * y[w].x + x[w].y * y[w].y) + (x[w].z * y[w].z + x[w].w * y[w].w);
        }
      }
      for (int offset = 1; offset < sharing; offset *= 2) {
        sum += __shfl_xor_sync(~0u, sum, offset);
        if constexpr (kGradient) mean += __shfl_xor_sync(~0u, mean, offset);
      }
      const float inverse = Reciprocal(sum);
      mean *= inverse;
#pragma unroll
      for (int w = 0; w < kHeld; ++w) {
        if (w << shift >= last) continue;
        const float4 of = {x[w].x * inverse, x[w].y * inverse, x[w].z * inverse,
                           x[w].w * inverse};
        if constexpr (kShares) c[w << shift] = of;
        if constexpr (kGradient) {
          dc[w << shift] = {of.x * (y[w].x - mean), of.y * (y[w].y - mean),
                            of.z * (y[w].z - mean), of.w * (y[w].w - mean)};
        }
      }
    }
  }

 private:
  static constexpr int kHeld = 3;  // maximum groups per thread
};

}  // namespace capsops::capsule_routing::mma
