// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The weight gradient with mma.sync: row = output column, contraction = pixel, column =
// term. A block copies each tile's patch of the input to shared memory. A warp loads 32
// columns of `grad`, 8 pixels at a time, through its own cp.async ring, and multiplies
// them with all of the block's terms. Split-K: blocks divide the tiles among them, and,
// if there are few columns, the warps of a block divide the pixels. A second kernel
// adds the partial sums.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>

#include "cuda/capsule_conv/gather/tile.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/warp.cuh"

namespace capsops::capsule_conv::gather {

constexpr int kWarps = 8;
constexpr int kWarpColumns = 32;
constexpr int kStepPixels = 8;
constexpr int kStages = 6;
// Tensor cores truncate when they add, so after at most this many steps accumulators
// are added to the partial sum in global memory, in float, and cleared.
constexpr int kMaxSteps = 512;

// Elements per pixel of a stage, padded so that the 4 pixels that lanes read at once
// are in different banks.
template <typename S>
constexpr int kStagePixel = kWarpColumns + 32 / sizeof(S);
template <typename S>
constexpr int kStage = kStepPixels * kStagePixel<S>;

// Kernel parameters of the weight gradient.
struct WeightTiling : Tiling {
  int column_warps;  // warps with different columns; groups of these divide the pixels
  int term_blocks;   // blocks with different terms
  int splits;        // blocks that divide the tiles
  int64_t weights;
};

// Loads a warp's columns of 8 pixels to a stage, with zeros for pixels that do not
// exist. A lane loads 4 columns of two pixels; `grad` points to its first column.
template <typename S>
__device__ void LoadPixels(const Point* points, bool wanted, const S* grad, S* stage) {
  const int lane = threadIdx.x % kLanes;
  stage += lane / 8 * kStagePixel<S> + lane % 8 * 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int to = points[half * 4 + lane / 8].to;
    const bool there = wanted && to >= 0;
    __pipeline_memcpy_async(stage + half * 4 * kStagePixel<S>, there ? grad + to : grad,
                            4 * sizeof(S), there ? 0 : 4 * sizeof(S));
  }
}

// Adds a warp's sums to its partial sum, or writes them if `first`, and clears them.
template <int kProducts>
__device__ void Flush(const int* elements, bool first, float (&sums)[2][kProducts][4],
                      float* part) {
#pragma unroll
  for (int n = 0; n < kProducts; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int element = elements[n * 8 + threadIdx.x % 4 * 2 + e];
      if (element < 0 || part == nullptr) continue;
      float4* const to = reinterpret_cast<float4*>(part + element);
      float4 sum = {sums[0][n][e], sums[0][n][2 + e], sums[1][n][e], sums[1][n][2 + e]};
      if (!first) {
        const float4 before = *to;
        sum = {before.x + sum.x, before.y + sum.y, before.z + sum.z, before.w + sum.w};
      }
      *to = sum;
    }
  }
#pragma unroll
  for (int i = 0; i < 2 * kProducts * 4; ++i) {
    sums[i / (4 * kProducts)][i / 4 % kProducts][i % 4] = 0;
  }
}

// Computes 8 kProducts terms of the gradient for the block's share of the tiles, as a
// partial sum for each group of warps. A warp has two row tiles of 16 columns.
template <typename S, Tf32 kTf32, int kProducts>
__global__ void __launch_bounds__(kWarps* kLanes, 1)
    WeightsKernel(const WeightTiling tiling, const S* __restrict__ input,
                  const S* __restrict__ grad, float* __restrict__ parts) {
  extern __shared__ float4 stages[];
  Point* const points = reinterpret_cast<Point*>(reinterpret_cast<S*>(stages) +
                                                 kWarps * kStages * kStage<S>);
  int* const elements = reinterpret_cast<int*>(points + tiling.slots);
  int* const shifts = elements + kProducts * 8;
  float* const patch = reinterpret_cast<float*>(shifts + kProducts * 8);

  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int g = lane / 4, t = lane % 4;
  int rest = blockIdx.x;
  const int first_term = rest % tiling.term_blocks * kProducts * 8;
  rest /= tiling.term_blocks;
  const int first_column =
      (rest % tiling.column_blocks * tiling.column_warps + warp % tiling.column_warps) *
      kWarpColumns;
  const int split = rest / tiling.column_blocks;
  const int group = warp / tiling.column_warps, groups = kWarps / tiling.column_warps;
#pragma unroll 1
  for (int i = threadIdx.x; i < kProducts * 8; i += kWarps * kLanes) {
    shifts[i] = tiling.Shift(first_term + i);
    elements[i] =
        first_term + i < tiling.terms ? tiling.TermElement(first_term + i) : -1;
  }
  __syncthreads();
  const float* taps[kProducts];
#pragma unroll
  for (int n = 0; n < kProducts; ++n) taps[n] = patch + shifts[n * 8 + g];
  float sums[2][kProducts][4] = {};
  const int column = first_column + g * 4;
  float* const part = column < tiling.columns
                          ? parts + (int64_t{split} * groups + group) * tiling.weights +
                                tiling.ColumnElement(column)
                          : nullptr;
  const int load_column = first_column + lane % 8 * 4;
  const bool wanted = load_column < tiling.columns;
  const int64_t image =
      int64_t{tiling.output.height} * tiling.output.width * tiling.columns;
  S* const ring = reinterpret_cast<S*>(stages) + warp * kStages * kStage<S>;
  // Steps of this warp in a tile, and the most steps of any warp.
  const int all_steps = (tiling.points + kStepPixels - 1) / kStepPixels;
  const int steps = (all_steps - group + groups - 1) / groups;
  const int most_steps = (all_steps + groups - 1) / groups;
  bool first = true;
  int since = 0;  // steps since the last flush
  for (int64_t tile = split; tile < tiling.tiles; tile += tiling.splits) {
    const TileCoord place(tiling, tile);
    FillPointTable(tiling, place, points);
    __syncthreads();
    const S* const from = grad + place.image * image + load_column;
    const auto points_of = [&](int step) {
      return points + (step * groups + group) * kStepPixels;
    };
#pragma unroll
    for (int step = 0; step < kStages - 1; ++step) {
      if (step < steps)
        LoadPixels(points_of(step), wanted, from, ring + step * kStage<S>);
      __pipeline_commit();
    }
    LoadPatch<kTf32>(tiling, place, input, patch);
    __syncthreads();
    int slot = 0, prefetch_slot = kStages - 1;
    for (int step = 0; step < steps; ++step) {
      const Point* const at = points_of(step);
      const int upper = at[t].from, lower = at[4 + t].from;
      __pipeline_wait_prior(kStages - 2);
      __syncwarp();  // All lanes have read the slot that is filled next.
      const int prefetch = step + kStages - 1;
      if (prefetch < steps) {
        LoadPixels(points_of(prefetch), wanted, from, ring + prefetch_slot * kStage<S>);
      }
      __pipeline_commit();
      const S* const pixel = ring + slot * kStage<S> + t * kStagePixel<S> + g * 4;
      Operand<4, kTf32> a[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto four =
            *reinterpret_cast<const Pack<S, 4>*>(pixel + half * 4 * kStagePixel<S>);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          a[e / 2].SetWithoutOverflow(2 * half + e % 2, Widen(four.at[e]));
        }
      }
#pragma unroll
      for (int n = 0; n < kProducts; ++n) {
        Operand<2, kTf32> b;
        SetWord(0, taps[n][upper], &b);
        SetWord(1, taps[n][lower], &b);
        Accumulate(a[0], b, sums[0][n]);
        Accumulate(a[1], b, sums[1][n]);
      }
      if (++slot == kStages) slot = 0;
      if (++prefetch_slot == kStages) prefetch_slot = 0;
    }
    __syncthreads();
    since += most_steps;
    if (tile + tiling.splits >= tiling.tiles || since + most_steps > kMaxSteps) {
      Flush(elements, first, sums, part);
      first = false;
      since = 0;
    }
  }
}

}  // namespace capsops::capsule_conv::gather
