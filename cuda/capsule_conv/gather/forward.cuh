// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The forward convolution with mma.sync: row = output pixel, contraction = term. A
// block packs kColumns columns of the filter in shared memory once, and then loops over
// tiles of pixels: it copies the tile's patch to shared memory, and each warp
// multiplies 32 pixels by up to 64 columns at a time.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/capsule_conv/bias_relu.cuh"
#include "cuda/capsule_conv/gather/tile.cuh"
#include "cuda/common/warp.cuh"

namespace capsops::capsule_conv::gather {

constexpr int kForwardThreads = 256;
constexpr int kTiles = 2;  // tiles of 16 pixels per warp
constexpr int kWarpPixels = 16 * kTiles;

// Packs the filter as [step][16 columns][lane][4 words], a lane's B fragments of two
// products. The 16 columns are permuted so that a lane ends up with 4 adjacent results
// of each of its rows, in columns 4 t to 4 t + 3. `elements` are the terms' offsets in
// the filter.
template <Tf32 kTf32, int kColumns, typename S>
__device__ void PackFilter(const Tiling& tiling, int first_column, const int* elements,
                           const S* weights, float4* packed) {
  constexpr int kStepThreads = kColumns;  // each has 2 terms and 4 columns of a step
  const int place = threadIdx.x % kStepThreads;
  const int t = place % 4, four = place / 4 % 4;
  const int column = first_column + place / 4 * 4;
  weights += tiling.ColumnElement(column);
  packed += place / 16 * kLanes + four * 8 + t;
#pragma unroll 4
  for (int step = threadIdx.x / kStepThreads; step < tiling.steps;
       step += kForwardThreads / kStepThreads) {
    float row[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int term = step * 8 + half * 4 + t;
      Pack<S, 4> pack{};
      if (term < tiling.terms && column < tiling.columns) {
        pack = *reinterpret_cast<const Pack<S, 4>*>(weights + elements[term]);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) row[half][e] = Prepare<kTf32>(Widen(pack.at[e]));
    }
    float4* const to = packed + step * (kColumns / 16) * kLanes;
    to[0] = {row[0][0], row[1][0], row[0][2], row[1][2]};
    to[4] = {row[0][1], row[1][1], row[0][3], row[1][3]};
  }
}

// Stores four elements with a streaming hint, as this kernel does not read them again.
template <typename S>
__device__ void StoreFour(const Pack<S, 4>& four, S* to) {
  using Words = std::conditional_t<sizeof(S) == 4, float4, float2>;
  __stcs(reinterpret_cast<Words*>(to), reinterpret_cast<const Words&>(four));
}

// Epilogue: stores a warp's pixels, which are at offsets `to` in the image, after bias
// and ReLU if `bias` is not null.
template <typename S, int kProducts>
__device__ void StorePixels(const Tiling& tiling, int column,
                            const int (&to)[2 * kTiles],
                            const float (&sums)[kTiles][kProducts][4], const S* bias,
                            S* image) {
#pragma unroll
  for (int row = 0; row < 2 * kTiles; ++row) {
    if (to[row] < 0) continue;
#pragma unroll
    for (int n = 0; n < kProducts; n += 2) {
      const int at = column + n * 8 + threadIdx.x % 4 * 4;
      if (at >= tiling.columns) break;
      Pack<S, 4> four, added{};
      if (bias != nullptr) added = *reinterpret_cast<const Pack<S, 4>*>(bias + at);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float sum = sums[row / 2][n + e / 2][row % 2 * 2 + e % 2];
        Narrow(bias == nullptr ? sum : BiasRelu(sum, added.at[e]), &four.at[e]);
      }
      StoreFour(four, image + to[row] + at);
    }
  }
}

// Computes the block's tiles, with bias and ReLU unless `bias` is null.
template <typename S, Tf32 kTf32, int kColumns>
__global__ void __launch_bounds__(kForwardThreads, 2)
    ForwardKernel(const Tiling tiling, const S* __restrict__ input,
                  const S* __restrict__ weights, const S* __restrict__ bias,
                  S* __restrict__ output) {
  constexpr int kProducts = kColumns < 64 ? kColumns / 8 : 8;
  constexpr int kGroups = kColumns / (8 * kProducts);
  extern __shared__ float4 filter[];
  const int terms = tiling.steps * 8;
  int2* const shifts = reinterpret_cast<int2*>(filter + terms * (kColumns / 4));
  Point* const points = reinterpret_cast<Point*>(shifts + terms / 2);
  int* const elements = reinterpret_cast<int*>(points + tiling.slots);
  float* const patch = reinterpret_cast<float*>(elements + terms);

  const int first_column = blockIdx.x % tiling.column_blocks * kColumns;
#pragma unroll 1
  for (int i = threadIdx.x; i < terms; i += kForwardThreads) {
    elements[i] = tiling.TermElement(i);
    // Pairs terms t and t + 4 of a step, which one lane uses.
    reinterpret_cast<int*>(shifts)[i / 8 * 8 + i % 4 * 2 + i % 8 / 4] = tiling.Shift(i);
  }
  __syncthreads();
  PackFilter<kTf32, kColumns>(tiling, first_column, elements, weights, filter);

  const int lane = threadIdx.x % kLanes;
  const int tasks = (tiling.points + kWarpPixels - 1) / kWarpPixels * kGroups;
  const int strides = gridDim.x / tiling.column_blocks;
  for (int64_t tile = blockIdx.x / tiling.column_blocks; tile < tiling.tiles;
       tile += strides) {
    const TileCoord place(tiling, tile);
    FillPointTable(tiling, place, points);
    LoadPatch<kTf32>(tiling, place, input, patch);
    __syncthreads();
    S* const image = output + place.image * tiling.output.height * tiling.output.width *
                                  tiling.columns;
    for (int task = threadIdx.x / kLanes; task < tasks;
         task += kForwardThreads / kLanes) {
      const int group = task % kGroups;
      const float* from[2 * kTiles];
      int to[2 * kTiles];
#pragma unroll
      for (int row = 0; row < 2 * kTiles; ++row) {
        const Point point = points[task / kGroups * kWarpPixels + row * 8 + lane / 4];
        from[row] = patch + point.from;
        to[row] = point.to;
      }
      float sums[kTiles][kProducts][4] = {};
      const float4* operands = filter + group * (kProducts / 2) * kLanes + lane;
      const int2* shift = shifts + lane % 4;
#pragma unroll 2
      for (int step = 0; step < tiling.steps;
           ++step, shift += 4, operands += kColumns / 16 * kLanes) {
        const int2 at = *shift;
        Operand<4, kTf32> a[kTiles];
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            SetWord(e, from[2 * m + e % 2][e < 2 ? at.x : at.y], &a[m]);
          }
        }
#pragma unroll
        for (int n = 0; n < kProducts; n += 2) {
          const float4 four = operands[n / 2 * kLanes];
          Operand<2, kTf32> b[2];
          SetWord(0, four.x, &b[0]);
          SetWord(1, four.y, &b[0]);
          SetWord(0, four.z, &b[1]);
          SetWord(1, four.w, &b[1]);
#pragma unroll
          for (int m = 0; m < kTiles; ++m) {
            Accumulate(a[m], b[0], sums[m][n]);
            Accumulate(a[m], b[1], sums[m][n + 1]);
          }
        }
      }
      StorePixels(tiling, first_column + group * kProducts * 8, to, sums, bias, image);
    }
    __syncthreads();
  }
}

}  // namespace capsops::capsule_conv::gather
