// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Stores a group's sums, which several blocks and ranges may share.
#pragma once

#include <cstdint>

#include "cuda/capsule_moments/mma/division.cuh"
#include "cuda/common/flag.cuh"

namespace capsops::capsule_moments::mma {

// Stores a thread's sums of `group`, to which its block has added `chunks` chunks, in
// the group's slot of out.partial, or, if nothing else is to be added, the results of
// its parent. If d.ordered, first adds the sums of the ranges before.
__device__ inline void StoreSums(const Inputs& in, const Division& d,
                                 const Gradient& grad, const Results& out, int group,
                                 int chunks, bool mine, int64_t parent, float sum,
                                 float (&first)[kSize], float (&second)[kSize]) {
  const int range = blockIdx.y, slot = d.Slot(range, blockIdx.x, group);
  const bool last = range + 1 == d.ranges;
  const bool whole = last && d.Sets() == 1 && chunks == d.chunks;
  float* const partial = out.partial + int64_t{slot} * kSums * kThreads + threadIdx.x;
  int* const added = out.added + slot * kWarps + threadIdx.x / kLanes;
  // Calls visit(sum, its place in the slot) for each sum.
  const auto visit_sums = [&](const auto& visit) {
    visit(sum, partial);
#pragma unroll
    for (int h = 0; h < kSize; ++h) {
      visit(first[h], partial + (1 + h) * kThreads);
      visit(second[h], partial + (1 + kSize + h) * kThreads);
    }
  };
  const bool first_lane = threadIdx.x % kLanes == 0;
  if (d.ordered && range > 0) {
    // This wait ends however few blocks are resident: earlier ranges are blocks with
    // lower indices, which GPUs start first.
    if (first_lane) {
      WaitForFlag(added, range);
      if (last) *added = 0;  // for the next slice
    }
    __syncwarp();
    visit_sums([](float& sum, const float* from) { sum += __ldcg(from); });
  }
  if (!whole) {
    visit_sums([](float sum, float* to) { *to = sum; });
  } else if (mine) {
#pragma unroll
    for (int h = 0; h < kSize; h += 4) {
      const float firsts[] = {first[h], first[h + 1], first[h + 2], first[h + 3]};
      const float seconds[] = {second[h], second[h + 1], second[h + 2], second[h + 3]};
      Finish(in, grad, out, out.gradients, parent, h, sum, firsts, seconds);
    }
  }
  if (!d.ordered || last) return;
  __syncwarp();
  if (first_lane) SetFlag(added, range + 1);
}

}  // namespace capsops::capsule_moments::mma
