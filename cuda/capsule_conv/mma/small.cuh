// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The product of mma/product.cuh for small filters, without a kernel that packs them.
// Each block computes a tile of lattice points: it copies its patch and the whole
// filter to shared memory with cp.async, waits, and multiplies.
//
// A warp has kSmallTiles tiles of 16 rows. Tile m starts m pixels after tile 0, and the
// pixels within a tile are kSmallTiles apart. At the next horizontal tap, tile m thus
// needs the rows that tile m + 1 has in registers, and a warp loads only one tile's
// rows per tap.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>
#include <type_traits>

#include "cuda/capsule_conv/block.cuh"
#include "cuda/capsule_conv/mma/product.cuh"
#include "cuda/capsule_conv/patch.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_conv::mma {

constexpr int kSmallWarps = 8;
constexpr int kSmallTiles = 4;
constexpr int kSmallRows = kSmallTiles * kTileRows;  // rows per warp
constexpr int kMaxFilterBytes = 16 << 10;

// One plane of the input at one row of filter taps: the offset of the row's first tap
// in the patch (words), and of its quad in the filter (elements).
struct FilterLine {
  int word = 0, element = -1;  // -1: past the last one

  template <typename S>
  __device__ static FilterLine Of(const Product& p, const Filter& filter, int depth,
                                  int i) {
    const int planes = p.source.planes(), y = i / planes, plane = i - y * planes;
    if (y >= p.vertical.taps) return {};
    const int quads = p.source.quads(), channel = plane / quads;
    const int tap = (p.vertical.first + y * p.vertical.every) * filter.kernel_width +
                    p.horizontal.first;
    return {plane * p.patch.plane + p.patch.Shift(p.vertical, p.horizontal, y, 0) *
                                        p.source.rows * kQuadWords<S>,
            static_cast<int>(tap * filter.tap + channel * filter.channel +
                             (plane - channel * quads) * kQuad * filter.element +
                             depth * filter.depth_stride)};
  }
};

// A lane's share of a step's filter, unpacked.
template <typename S, int kProducts>
struct RawFilterFragment {
  static constexpr bool kFloat = std::is_same_v<S, float>;
  static constexpr int kElements = kFloat ? 2 : 4;  // elements per quad
  S at[kProducts][kElements];

  // Loads the lane's elements of the quad at `from`, at offsets `columns`; zeros unless
  // `there`.
  __device__ void Load(bool there, const S* from, const int (&columns)[kProducts],
                       int element) {
#pragma unroll
    for (int n = 0; n < kProducts; ++n) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        at[n][e] = there ? from[columns[n] + e * element] : S{};
      }
    }
  }
  template <Tf32 kTf32>
  __device__ void Get(int n, uint32_t (&parts)[kParts<kTf32>][2]) const {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if constexpr (kFloat) {
        Operand<1, kTf32> operand;
        operand.SetWithoutOverflow(0, at[n][e]);
        parts[0][e] = operand.high[0];
        if constexpr (kTf32 == Tf32::kSplit) parts[1][e] = operand.low[0];
      } else {
        const Pack<S, 2> pair{{at[n][2 * e], at[n][2 * e + 1]}};
        parts[0][e] = *reinterpret_cast<const uint32_t*>(&pair);
      }
    }
  }
};

// Computes and stores a tile per block. Requires horizontal stride and dilation 1, pose
// rows dividing 16 and whole quads.
template <typename S, Tf32 kTf32, int kColumns>
__global__ void __launch_bounds__(kSmallWarps* kLanes, 2)
    SmallKernel(const Product p, const Filter filter, const S* source, const S* weights,
                S* target) {
  constexpr int kProducts = kColumns / 8, kQuadsOfStep = kStepQuads<S>;
  constexpr int kThreads = kSmallWarps * kLanes;
  const int filter_size = static_cast<int>(filter.elements);
  extern __shared__ uint4 shared[];
  const int rows = p.source.rows, pixel = rows * kQuadWords<S>;
  const int lines = p.order.steps * kQuadsOfStep;
  uint32_t* const patch = reinterpret_cast<uint32_t*>(shared);
  // The last warp may read past the last plane, up to here.
  S* const shared_filter = reinterpret_cast<S*>(patch + p.order.planes * p.patch.plane +
                                                kSmallRows * kQuadWords<S>);
  FilterLine* const table = reinterpret_cast<FilterLine*>(shared_filter + filter_size);
  PatchPixel* const pixels = reinterpret_cast<PatchPixel*>(table + lines);

  const BlockCoord place(p);
  for (int i = threadIdx.x; i < lines; i += kThreads) {
    table[i] = FilterLine::Of<S>(p, filter, place.depth, i);
  }
  for (int i = threadIdx.x; i < p.patch.pixels; i += kThreads) {
    pixels[i] = PatchPixel::Of(p.patch, p.source, 1, i);
  }
  const PlaneLoader<S> loader(p.source, 0, p.order.planes);
  const int lane = threadIdx.x % kLanes, g = lane / 4, t = lane % 4;
  int columns[kProducts];  // offsets of this lane's columns in a quad of the filter
#pragma unroll
  for (int n = 0; n < kProducts; ++n) {
    const int channel = (n * 8 + g) / filter.out_inner;
    const int64_t at = channel * filter.out_channel +
                       (n * 8 + g - channel * filter.out_inner) * filter.out_element;
    columns[n] = channel < filter.out_channels ? static_cast<int>(at) : 0;
  }
  const int element = static_cast<int>(filter.element);
  const int next_tap = static_cast<int>(p.horizontal.every * filter.tap);
  // Rows g and g + 8 of a tile, as pixel and pose row.
  int upper_row, lower_row;
  const int upper = p.patch.by_rows.Split(g, &upper_row) * kSmallTiles;
  const int lower = p.patch.by_rows.Split(g + 8, &lower_row) * kSmallTiles;
  int x;  // (y, x): the warp's first lattice point
  const int y = p.by_row_tiles.Split(threadIdx.x / kLanes, &x);
  x *= p.patch.by_rows.Quotient(kSmallRows);
  __syncthreads();
  // The preceding kernel may have written the source or the filter.
  GridDependencySynchronize();
  for (int at = threadIdx.x * kQuad; at < filter_size; at += kThreads * kQuad) {
    __pipeline_memcpy_async(shared_filter + at, weights + at, kQuad * sizeof(S));
  }
  loader.Load(p.patch, p.source, pixels, SourceOf(p, place, source),
              place.y * p.vertical.stride + p.vertical.offset,
              place.x + p.horizontal.offset, p.patch.height, p.patch.pitch, patch);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  TriggerDependentLaunch();
  if (y >= min(p.vertical.tile, p.vertical.points - place.y)) return;

  const bool is_float = std::is_same_v<S, float>;
  const uint32_t* const lane_rows = patch + (y * p.patch.row + x + upper) * pixel +
                                    upper_row * kQuadWords<S> +
                                    (is_float ? t % 2 * 2 : 0);
  const int below = (lower - upper) * pixel + (lower_row - upper_row) * kQuadWords<S>;
  const S* const first = shared_filter + (is_float ? t % 2 * 2 * element : 0);
  float sums[kSmallTiles][kProducts][4] = {};
  const FilterLine* line = table + t * kQuadsOfStep / 4;
  for (int step = 0; step < p.order.steps; ++step, line += kQuadsOfStep) {
    const FilterLine at = *line;
    const uint32_t* from = lane_rows + at.word;
    const S* weight = first + at.element;
    const bool there = at.element >= 0;
    RawFilterFragment<S, kProducts> raw_filter;
    RawFragment<S> raw[kSmallTiles];
    raw_filter.Load(there, weight, columns, element);
#pragma unroll
    for (int m = 0; m < kSmallTiles; ++m, from += pixel) raw[m].Load(from, below);
    RowFragment<S, kTf32> window[kSmallTiles];
#pragma unroll
    for (int m = 1; m < kSmallTiles; ++m) window[m].Set(raw[m - 1]);
    for (int taps = p.horizontal.taps; taps > 0; --taps, from += pixel) {
      // Slides the window by one tap.
#pragma unroll
      for (int m = 1; m < kSmallTiles; ++m) window[m - 1] = window[m];
      window[kSmallTiles - 1].Set(raw[kSmallTiles - 1]);
      uint32_t b[kProducts][kParts<kTf32>][2];
#pragma unroll
      for (int n = 0; n < kProducts; ++n) raw_filter.template Get<kTf32>(n, b[n]);
      // Loads the operands of the next tap while this one is multiplied.
      if (taps > 1) {
        raw[kSmallTiles - 1].Load(from, below);
        weight += next_tap;
        raw_filter.Load(there, weight, columns, element);
      }
#pragma unroll
      for (int n = 0; n < kProducts; ++n) {
#pragma unroll
        for (int m = 0; m < kSmallTiles; ++m) {
          MultiplyAdd<S, kTf32>(window[m], b[n], sums[m][n]);
        }
      }
    }
  }

  // The pixels of tile m are m pixels right of those of tile 0.
  const int width = min(p.horizontal.tile, p.horizontal.points - place.x) - x;
  S* to_upper = TargetRow(p, place, y, x + upper, upper_row, target);
  S* to_lower = TargetRow(p, place, y, x + lower, lower_row, target);
  const int64_t row_stride = p.placement.stride_x * p.target.pixel();
#pragma unroll
  for (int m = 0; m < kSmallTiles;
       ++m, to_upper += row_stride, to_lower += row_stride) {
    if (upper + m < width) StoreRow<0>(p.target, p.scale, 0, sums[m], to_upper);
    if (lower + m < width) StoreRow<1>(p.target, p.scale, 0, sums[m], to_lower);
  }
}

}  // namespace capsops::capsule_conv::mma
