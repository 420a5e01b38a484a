// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The consumers of SumWeightsKernel. They multiply the gradient of votes by the image,
// one stage of positions after another. For float, they load the gradient of votes from
// shared memory to registers, because wgmma cannot transpose it there; wgmma reads all
// other operands from shared memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/capsule_conv_routing/slabs/product.cuh"
#include "cuda/capsule_conv_routing/slabs/weights.h"

namespace capsops::capsule_conv_routing::slabs {

// Returns the first of the two columns of the votes whose sums a lane's quad holds. For
// float, the second is the next column, and columns are permuted so that LoadColumns()
// has no bank conflicts. For 16-bit types, the second is 8 columns further.
template <typename S>
__device__ int LaneColumn(int warp, int lane) {
  if (!std::is_same_v<S, float>) return warp * 16 + lane / 4;
  const int g = lane / 4;
  const int quad = g % 2 * 4 + warp % 2 * 2 + g / 4;
  return warp / 2 * 32 + quad * 4 + g / 2 % 2 * 2;
}

// Loads the A fragments of a stage's 4 products. The stage is swizzled and ordered
// [column / 32][position][column % 32].
__device__ inline void LoadColumns(const char* stage, int column,
                                   uint32_t (&rows)[4][4]) {
  const int t = threadIdx.x % 4;
  const char* const from =
      stage + column / 32 * (kStageTerms<float> * kSwizzleBytes) + column % 4 * 4;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int term = 8 * n + 4 * e + t;
      const uint2 pair = *reinterpret_cast<const uint2*>(
          from + term * kSwizzleBytes + ((column % 32 / 4) ^ (4 * e + t)) * 16);
      rows[n][2 * e] = pair.x;
      rows[n][2 * e + 1] = pair.y;
    }
  }
}

// Issues the products of a stage. For 16-bit types, each position of an image box has a
// line of `line` bytes.
template <typename S, int kCount>
__device__ void AddStage(const char* votes, const char* image, int warp, int line,
                         float (&sums)[kCount][4]) {
  const uint32_t right = DescriptorAddress(image);
  if constexpr (std::is_same_v<S, float>) {
    uint32_t left[4][4];
    LoadColumns(votes, LaneColumn<S>(warp, threadIdx.x % 32), left);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      WgmmaRs<S, kCount>::Begin(left[k], MakeSwizzledDescriptor(right + 2 * k), sums,
                                true);
    }
  } else {
    constexpr int kTerms = kStageTerms<S>;
    const uint32_t left =
        DescriptorAddress(votes) + warp / 4 * (kTerms * kSwizzleBytes / 16);
    const uint64_t operand = MakeMnMajorDescriptor(right, kTerms * line / 16, line);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < kTerms / 16; ++k) {
      Wgmma<S, kCount, true>::Begin(MakeMnMajorDescriptor(left + k * kSwizzleBytes, 0),
                                    operand + k * line, sums, true);
    }
  }
  WgmmaCommit();
}

// Adds the sums of a warpgroup to its partial sums at `part`, or stores them if
// `first`.
template <int kCount>
__device__ void AddToPart(float (&sums)[kCount][4], bool first, float4* part) {
  Complete(sums);
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
    const auto sum = make_float4(sums[n][0], sums[n][1], sums[n][2], sums[n][3]);
    if (first) {
      part[n * kConsumers] = sum;
    } else {
      AddToGlobal(reinterpret_cast<float*>(part + n * kConsumers), sum);
    }
  }
}

// A consumer's main loop over `steps` stages, for a tile of 8 kCount columns. Adds the
// results to its partial sums at `part`, or stores them if `first`. If `halved`, both
// consumer warpgroups have the same columns of the votes, and alternate stages.
template <int kCount, typename S, int kProducts>
__device__ void SumSteps(Stages<S, kProducts>& stages, bool halved, int line, int steps,
                         bool first, float4* part) {
  using Ring = Stages<S, kProducts>;
  const int warp = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 32, 0);
  float sums[kCount][4];
  Clear(sums);
  PipelineState at;
  int step = 0;
  if (halved && warp >= 4) {
    step = 1;
    at.Next(Ring::kCount);
  }
  for (; step < steps; ++step, at.Next(Ring::kCount)) {
    const char* const stage = stages.memory[at.at];
    stages.full[at.at].Wait(at.parity);
    AddStage<S>(stage, stage + Ring::kRowBytes, halved ? warp % 4 : warp, line, sums);
    WgmmaWait<0>();
    stages.empty[at.at].ArriveWarp();
    if (halved) {
      ++step;
      at.Next(Ring::kCount);
    }
  }
  AddToPart(sums, first, part);
}

// The main loop for a tile of kTaps horizontal taps, of 8 kWide columns each.
// for_rows(visit) calls visit(chunk, end) for the rows of the votes; a row has
// end - chunk stages to multiply, and `span` more without votes, for taps that reach
// past the last of these. Tap n reads the positions from 8 n `move` on, in this stage
// or in one of the next `span`.
template <typename S, int kWide, int kTaps, typename ForRows>
__device__ void SumTaps(Stages<S, kWide>& stages, bool halved, int move, int span,
                        bool first, float4* part, const ForRows& for_rows) {
  using Ring = Stages<S, kWide>;
  static_assert(kMostSpan < Ring::kCount);
  const int warp = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 32, 0);
  float sums[kTaps][kWide][4];
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) Clear(sums[tap]);
  PipelineState at, ahead;  // the next stage to multiply, and to wait for
  int multiplied = 0;       // stages, by both warpgroups
  for_rows([&](int chunk, int end) {
    const auto wait = [&](int count) {
      for (; count > 0; --count, ahead.Next(Ring::kCount)) {
        stages.full[ahead.at].Wait(ahead.parity);
      }
    };
    wait(span);
    for (; chunk < end + span; ++chunk, at.Next(Ring::kCount)) {
      if (chunk < end) wait(1);
      const bool own = chunk < end && (!halved || multiplied++ % 2 == warp / 4);
      if (own) {
        uint32_t left[4][4];
        LoadColumns(stages.memory[at.at],
                    LaneColumn<S>(halved ? warp % 4 : warp, threadIdx.x % 32), left);
        WgmmaFence();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
#pragma unroll
          for (int tap = 0; tap < kTaps; ++tap) {
            const int slice = k + tap * move;
            int stage = at.at + slice / 4;
            if (stage >= Ring::kCount) stage -= Ring::kCount;
            const uint32_t right =
                DescriptorAddress(stages.memory[stage] + Ring::kRowBytes);
            WgmmaRs<S, kWide>::Begin(left[k],
                                     MakeSwizzledDescriptor(right + slice % 4 * 2),
                                     sums[tap], true);
          }
        }
        WgmmaCommit();
        WgmmaWait<0>();
      }
      stages.empty[at.at].ArriveWarp();
    }
  });
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
    AddToPart(sums[tap], first, part + tap * kWide * kConsumers);
  }
}

}  // namespace capsops::capsule_conv_routing::slabs
