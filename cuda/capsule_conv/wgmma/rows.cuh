// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Parts of wgmma/product.cuh: its compile-time shape, the map between rows of its
// products and pixels, its accumulators, and the epilogue.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/capsule_conv/block.cuh"
#include "cuda/capsule_conv/patch.cuh"
#include "cuda/capsule_conv/wgmma/patch.cuh"
#include "cuda/common/divisor.cuh"
#include "cuda/common/warp.cuh"

namespace capsops::capsule_conv::wgmma {

constexpr int kWgmmaRows = 64;  // M of a wgmma instruction

// Words of one part of a step of the packed filter.
constexpr int UnitStepWords(int columns) { return 2 * columns * 4; }

// Rows of a core matrix.
constexpr int kGroupRows = 8;

// Compile-time shape of a kernel. O is the operand type; poses are split into kParts
// parts and the filter into kFilterParts. Each of two consumer warpgroups has kTiles
// products of kRows pose rows. If the poses are A (kLeft), a product has 64 rows and
// all kColumns columns. If they are B, it has up to 256 rows and 64 columns; with 128
// columns, the two warpgroups share the rows and have 64 columns each.
template <typename OperandOf, int kPartsOf, int kFilterPartsOf, bool kLeftOf,
          int kRowsOf, int kTilesOf, int kColumnsOf, int kBlocksOf>
struct KernelTraits {
  using O = OperandOf;
  static constexpr int kParts = kPartsOf, kFilterParts = kFilterPartsOf;
  static constexpr int kRows = kRowsOf, kTiles = kTilesOf;
  static constexpr int kColumns = kColumnsOf, kBlocks = kBlocksOf;
  static constexpr bool kLeft = kLeftOf;
  // Whether each stage's products are added to float totals, as wgmma truncates sums.
  static constexpr bool kPromotes = kParts > 1;
  // Part i of the poses and part j of the filter are multiplied if i + j < kParts. The
  // other pairs are below the rounding error of the sum.
  static_assert(kFilterParts == 1 || kFilterParts == kParts);
  static constexpr int kPairs = kFilterParts == 1 ? kParts : kParts * (kParts + 1) / 2;
  // Whether patches are loaded by TMA, which also rounds floats to TF32; else by warps.
  static constexpr bool kBoxes = !kLeft && std::is_same_v<O, float>;
  static_assert(kLeft ? kRows == kWgmmaRows : kTiles == 1);
  static constexpr int kColumnGroups = kLeft ? 1 : kColumns / kWgmmaRows;
  static constexpr int kProducts = 2 * kTiles / kColumnGroups;  // row tiles of a tile
  static constexpr int kOctets = (kLeft ? kColumns : kRows) / 8;
  static constexpr int kGroups = 2;                // consumer warpgroups
  static constexpr int kWarps = 4 * kGroups;       // consumer warps
  static constexpr int kLoadThreads = 3 * kLanes;  // producer threads for patches
  static constexpr int kThreads = (kWarps + 4) * kLanes;
  // Registers per consumer thread and per producer thread, set by setmaxnreg.
  static constexpr int kMany = kBlocks == 1 ? 216 : 96;
  static constexpr int kFew = kBlocks == 1 ? 72 : 48;
  // The fewest stages of the filter's ring; planners add more if there is room.
  static constexpr int kStages = kBlocks == 1 ? 3 : 4;
  static constexpr int kStageWords = (kFilterParts == 1 ? 4096 : 6144) / kBlocks;
  static constexpr int kStepWords = kFilterParts * UnitStepWords(kColumns);
  static constexpr int kSteps = kStageWords / kStepWords;  // steps per stage
  static constexpr int kBarrierWords = 64;
  // Registers per thread at launch: 65,536 divided by the resident threads, rounded
  // down to a multiple of 8.
  static constexpr int kRegisters = kBlocks == 1 ? 168 : 80;
  static_assert(kWarps * kLanes * kMany + 4 * kLanes * kFew <= kThreads * kRegisters);
};

template <typename O, int kParts, int kFilterParts, int kTiles, int kColumns,
          int kBlocks = 1>
using PosesLeft =
    KernelTraits<O, kParts, kFilterParts, true, kWgmmaRows, kTiles, kColumns, kBlocks>;
template <typename O, int kParts, int kRows, int kColumns>
using PosesRight = KernelTraits<O, kParts, kParts, false, kRows, 1, kColumns, 1>;

// Parameters of WarpgroupKernel.
struct WarpgroupParams {
  Product product;
  SortedPatch sorted;
  int tiles;          // number of tiles; a block takes every gridDim.x-th one
  bool rows_2d;       // whether row tiles are 2-D (8 pose rows wide) or contiguous
  int row;            // rows of a plane from a lattice row to the next
  int ring;           // stages of the filter in shared memory
  Divisor by_across;  // row tiles per lattice row if rows_2d; else `row`
};

// Maps the row tiles of a block's tile, kRows rows each, to rows of a plane.
template <int kRows>
struct ProductRows {
  int all, height, width;  // row tiles; lattice points of the tile

  __device__ ProductRows(const WarpgroupParams& s, const BlockCoord& place) {
    const Product& p = s.product;
    height = min(p.vertical.tile, p.vertical.points - place.y);
    width = min(p.horizontal.tile, p.horizontal.points - place.x);
    const int rows = (height - 1) * s.row + width * p.source.rows;
    all = s.rows_2d ? (height + kDown - 1) / kDown * s.by_across.by
                    : (rows + kRows - 1) / kRows;
  }

  // The first plane row of row tile n.
  __device__ static int First(const WarpgroupParams& s, int n) {
    if (!s.rows_2d) return n * kRows;
    int across;
    const int down = s.by_across.Split(n, &across);
    return down * kDown * s.row + across * kGroupRows;
  }

  // Computes a row's lattice point and pose row, and whether a full tile has it.
  __device__ static bool Find(const WarpgroupParams& s, int row, int* y, int* x,
                              int* pose_row) {
    const Product& p = s.product;
    const int n = row / kRows, i = row % kRows;
    int rest;
    if (s.rows_2d) {
      int across;
      *y = s.by_across.Split(n, &across) * kDown + i / kGroupRows;
      rest = across * kGroupRows + i % kGroupRows;
    } else {
      *y = s.by_across.Split(row, &rest);
    }
    *x = p.patch.by_rows.Split(rest, pose_row);
    return *y < p.vertical.tile && *x < p.horizontal.tile;
  }

 private:
  static constexpr int kDown = kRows / kGroupRows;  // lattice rows of a 2-D row tile
};

// The target of a tile's row: its offset from the tile's first pixel, and its point in
// the tile, y << 16 | x, or ~0. Packed into two words for one load.
struct RowOffset {
  uint2 words;

  __device__ int at() const { return static_cast<int>(words.x); }
  __device__ bool IsIn(int height, int width) const {
    return static_cast<int>(words.y >> 16) < height &&
           static_cast<int>(words.y & 0xffff) < width;
  }
};

// Fills the table of targets for the rows of a tile.
template <typename C>
__device__ void FillRowTable(const WarpgroupParams& s, RowOffset* rows) {
  const Product& p = s.product;
  for (int n = threadIdx.x; n < C::kProducts * C::kRows; n += C::kWarps * kLanes) {
    int y, x, pose_row;
    const bool there = ProductRows<C::kRows>::Find(s, n, &y, &x, &pose_row);
    const int pixel =
        y * p.placement.stride_y * p.target.width + x * p.placement.stride_x;
    const int at =
        pixel * static_cast<int>(p.target.pixel()) + pose_row * p.target.columns;
    rows[n].words = make_uint2(at, there ? y << 16 | x : ~0u);
  }
}

// Transposes 4x4 elements among the lanes l, l + 4, l + 8 and l + 12, the i-th of which
// gets element i of each, so that a lane's 4 elements are adjacent in memory.
__device__ inline void Exchange(float (&x)[4]) {
#pragma unroll
  for (int apart = 1; apart <= 2; ++apart) {
    const bool upper = (threadIdx.x / 4 & apart) != 0;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float& low = x[n * (3 - apart)];
      float& high = x[n * (3 - apart) + apart];
      const float got = __shfl_xor_sync(0xffffffff, upper ? low : high, 4 * apart);
      low = upper ? got : low;
      high = upper ? high : got;
    }
  }
}

// Stores 4 elements if `there`, as a predicated instruction without a branch.
__device__ inline void StorePredicated(bool there, const float (&x)[4], float* to) {
  asm volatile(
      "{ .reg .pred there; setp.ne.b32 there, %0, 0; "
      "@there st.global.v4.f32 [%1], {%2, %3, %4, %5}; }" ::"r"(int{there}),
      "l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
      : "memory");
}
template <typename S>
__device__ void StorePredicated(bool there, const float (&x)[4], S* to) {
  Pack<S, 2> pairs[2];
#pragma unroll
  for (int e = 0; e < 4; ++e) Narrow(x[e], &pairs[e / 2].at[e % 2]);
  asm volatile(
      "{ .reg .pred there; setp.ne.b32 there, %0, 0; "
      "@there st.global.v2.b32 [%1], {%2, %3}; }" ::"r"(int{there}),
      "l"(to), "r"(*reinterpret_cast<const uint32_t*>(&pairs[0])),
      "r"(*reinterpret_cast<const uint32_t*>(&pairs[1]))
      : "memory");
}

// Stores 4 columns of a row. Not inlined, as few pose shapes need it.
template <typename S>
__device__ __noinline__ void StoreColumns(int column, int columns, int channels,
                                          int64_t stride, float4 x, S* row) {
  const float values[] = {x.x, x.y, x.z, x.w};
  for (int n = 0; n < 4; ++n, ++column) {
    const int channel = column / columns;
    if (channel >= channels) return;
    Narrow(values[n], row + channel * stride + (column - channel * columns));
  }
}

// Epilogue of one product with the poses as B. Before the transpose, lane l holds
// columns l / 4 and l / 4 + 8 of its warp's 16, for rows 2 (l % 4) and the next of
// every 8. `column` is the product's first column; `rows` are the targets of its rows.
template <typename S, int kOctets>
__device__ void StoreRight(const WarpgroupParams& s, const BlockCoord& place,
                           int height, int width, const RowOffset* rows, int column,
                           const float (&sums)[kOctets][4], S* target) {
  const Product& p = s.product;
  const int lane = threadIdx.x % kLanes, which = lane / 4 % 4;
  // The 4 columns, and the row of every 8, that this lane has after the transpose.
  column += threadIdx.x / kLanes % 4 * 16 + which / 2 * 8 + lane / 16 * 4;
  rows += lane % 4 * 2 + which % 2;
  const int columns = p.target.columns, channels = p.target.channels;
  const int64_t stride = int64_t{p.target.depth} * p.target.pose();
  S* to = TargetRow(p, place, 0, 0, 0, target);
  const auto make = [&](int n, float (&x)[4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = p.scale(sums[n][e]);
    Exchange(x);
  };
  // Has no branches and no dependencies on earlier stores, so that the latencies of
  // shuffles and table loads overlap. One after another, they would take a third as
  // long as the products.
  if (columns % kQuad == 0) {
    const int channel = column / columns;
    to += channel * stride + (column - channel * columns);
    if (channel >= channels) height = 0;
#pragma unroll
    for (int n = 0; n < kOctets; ++n) {
      float x[4];
      make(n, x);
      const RowOffset row = rows[n * kGroupRows];
      StorePredicated(row.IsIn(height, width), x, to + row.at());
    }
    return;
  }
#pragma unroll
  for (int n = 0; n < kOctets; ++n) {
    float x[4];
    make(n, x);
    const RowOffset row = rows[n * kGroupRows];
    if (row.IsIn(height, width)) {
      StoreColumns(column, columns, channels, stride,
                   make_float4(x[0], x[1], x[2], x[3]), to + row.at());
    }
  }
}

// Epilogue of one product with the poses as A: lane l holds rows l / 4 and l / 4 + 8 of
// its warp's 16, in columns 2 (l % 4) and the next of every 8.
template <typename S, int kOctets>
__device__ void StoreLeft(const WarpgroupParams& s, const BlockCoord& place, int height,
                          int width, const RowOffset* rows, int column,
                          const float (&sums)[kOctets][4], S* target) {
  const Product& p = s.product;
  const int first = threadIdx.x / kLanes % 4 * kTileRows + threadIdx.x % kLanes / 4;
  S* const to = TargetRow(p, place, 0, 0, 0, target);
  const RowOffset upper = rows[first], lower = rows[first + 8];
  if (upper.IsIn(height, width)) {
    StoreRow<0>(p.target, p.scale, column, sums, to + upper.at());
  }
  if (lower.IsIn(height, width)) {
    StoreRow<1>(p.target, p.scale, column, sums, to + lower.at());
  }
}

// Accumulators, and the float totals that they are added to if kPromotes.
template <bool kPromotes, int kTiles, int kOctets>
struct Sums {
  float accumulators[kTiles][kOctets][4];
  float apart[kPromotes ? kTiles : 1][kOctets][4];

  __device__ void Clear() {
    ForEach([&](float& sum, float* all_before) {
      sum = 0;
      asm volatile("" : "+f"(sum));  // keeps this before the first wgmma
      if constexpr (kPromotes) *all_before = 0;
    });
  }
  // Adds finished products to the totals. Without totals, only keeps the compiler from
  // reading the accumulators before the preceding wait.
  __device__ void Accumulate() {
    ForEach([&](float& sum, float* all_before) {
      asm volatile("" : "+f"(sum)::"memory");
      if constexpr (kPromotes) *all_before += sum;
    });
  }
  __device__ const auto& all() const {
    if constexpr (kPromotes) {
      return apart;
    } else {
      return accumulators;
    }
  }

 private:
  template <typename Then>
  __device__ void ForEach(const Then& then) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kOctets; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          then(accumulators[m][n][e], &apart[kPromotes ? m : 0][n][e]);
        }
      }
    }
  }
};

}  // namespace capsops::capsule_conv::wgmma
