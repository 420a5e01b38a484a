// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Where the products of wgmma/product.cuh are: their shapes, the rows of a
// patch that they read, and the sums that they make.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_WGMMA_ROWS_CUH_
#define CAPSOPS_CUDA_CAPSULE_CONV_WGMMA_ROWS_CUH_

#include <cstdint>

#include "cuda/capsule_conv/block.cuh"
#include "cuda/capsule_conv/patch.cuh"
#include "cuda/common/divisor.cuh"

namespace capsops::capsule_conv::wgmma {

// Words of a step of the filter.
constexpr int UnitStepWords(int columns) { return 2 * columns * 4; }

constexpr int kGroupRows = 8;
constexpr int kProductRows = 64;  // of a product: 8 groups

// The shape of a kernel: O is what it multiplies, kParts parts of each element of the
// left operand; kTiles tiles of 64 rows of each of two warpgroups, kColumns columns.
// kApart: what a stage makes is added up in float, as tensor cores cut off when they
// add.
template <typename OperandOf, int kPartsOf, bool kApartOf, int kTilesOf, int kColumnsOf,
          int kBlocksOf>
struct Warpgroups {
  using O = OperandOf;
  static constexpr int kParts = kPartsOf, kTiles = kTilesOf, kColumns = kColumnsOf;
  static constexpr int kBlocks = kBlocksOf;
  static constexpr bool kApart = kApartOf;
  static constexpr int kGroups = 2;             // warpgroups that multiply
  static constexpr int kWarps = 4 * kGroups;    // of them
  static constexpr int kCarriers = 3 * kLanes;  // threads that bring patches
  static constexpr int kThreads = (kWarps + 4) * kLanes;
  static constexpr int kMany = kBlocks == 1 ? 216 : 96;
  static constexpr int kFew = kBlocks == 1 ? 72 : 48;
  static constexpr int kStages = kBlocks == 1 ? 3 : 4;
  static constexpr int kStageWords = 4096 / kBlocks;
  static constexpr int kSteps = kStageWords / UnitStepWords(kColumns);  // of a stage
  static constexpr int kBarrierWords = 32;
  // Registers of a thread at the launch, which a block has to share out.
  static constexpr int kRegisters = kBlocks == 1 ? 168 : 80;
  static_assert(kWarps * kLanes * kMany + 4 * kLanes * kFew <= kThreads * kRegisters);
};

// What the kernel is given.
struct WarpgroupProduct {
  Product product;
  int tiles;          // of the whole product; a block makes every n-th
  bool squares;       // else 64 rows are neighbours in a plane
  int row;            // rows of a plane from one lattice row to the next
  Divisor by_across;  // products side by side in a lattice row; else `row`
};

// Where in a patch unit i of a chunk's contraction is, in units: units one after the
// other, with all positions of the filter each.
__host__ __device__ inline int UnitAt(const Product& p, int i) {
  const int taps = p.vertical.taps * p.horizontal.taps, unit = i / taps, tap = i % taps;
  const int y = tap / p.horizontal.taps, x = tap - y * p.horizontal.taps;
  return unit * (p.patch.plane / 4) +
         p.patch.Shift(p.vertical, p.horizontal, y, x) * p.source.rows;
}

// The two units of a step: their numbers, and where they are. The first is that which
// comes first in a patch: between strides, positions of the filter need not follow each
// other there.
struct UnitStep {
  int numbers[2], at[2];

  // Behind the last unit there are zeros of the filter, for that unit once more.
  __host__ __device__ UnitStep(const Product& p, int step)
      : numbers{2 * step, 2 * step + 1} {
    const int last = p.vertical.taps * p.horizontal.taps * p.order.planes - 1;
    for (int n = 0; n < 2; ++n) {
      at[n] = UnitAt(p, numbers[n] < last ? numbers[n] : last);
    }
    if (at[0] <= at[1]) return;
    const UnitStep other = *this;
    for (int n = 0; n < 2; ++n) {
      numbers[n] = other.numbers[1 - n];
      at[n] = other.at[1 - n];
    }
  }
};

// Where the products of a block's tile are, 64 rows each.
struct ProductRows {
  int all, height, width;  // products; lattice points of the tile
  bool squares;

  __device__ ProductRows(const WarpgroupProduct& s, const BlockPlace& place) {
    const Product& p = s.product;
    height = min(p.vertical.tile, p.vertical.points - place.y);
    width = min(p.horizontal.tile, p.horizontal.points - place.x);
    squares = s.squares;
    const int rows = (height - 1) * s.row + width * p.source.rows;
    all = squares ? (height + kGroupRows - 1) / kGroupRows * s.by_across.by
                  : (rows + kProductRows - 1) / kProductRows;
  }

  // The first row of product n, in a plane.
  __device__ int First(const WarpgroupProduct& s, int n) const {
    if (!squares) return n * kProductRows;
    int across;
    const int down = s.by_across.Split(n, &across);
    return (down * s.row + across) * kGroupRows;
  }

  // The lattice point and pose row of row i of product n. Whether there is one.
  __device__ bool Find(const WarpgroupProduct& s, int n, int i, int* y, int* x,
                       int* pose_row) const {
    int row;
    if (squares) {
      int across;
      *y = s.by_across.Split(n, &across) * kGroupRows + i / kGroupRows;
      row = across * kGroupRows + i % kGroupRows;
    } else {
      *y = s.by_across.Split(n * kProductRows + i, &row);
    }
    *x = s.product.patch.by_rows.Split(row, pose_row);
    return n < all && *y < height && *x < width;
  }
};

// Writes what a warpgroup made of one product.
template <typename S, int kProducts>
__device__ void StoreProduct(const WarpgroupProduct& s, const BlockPlace& place,
                             const ProductRows& rows, int n,
                             const float (&sums)[kProducts][4], S* target) {
  const Product& p = s.product;
  const int row = threadIdx.x / kLanes % 4 * kTileRows + threadIdx.x % kLanes / 4;
  const int column = place.column_block * kProducts * 8;
  const auto target_row = [&](int i) -> S* {
    int y, x, pose_row;
    if (!rows.Find(s, n, i, &y, &x, &pose_row)) return nullptr;
    return TargetRow(p, place, y, x, pose_row, target);
  };
  S* const upper = target_row(row);
  if (upper != nullptr) StoreRow<0>(p.target, p.scale, column, sums, upper);
  S* const lower = target_row(row + 8);
  if (lower != nullptr) StoreRow<1>(p.target, p.scale, column, sums, lower);
}

// What tensor cores add up, and what is added up of it if that is kept apart.
template <bool kApart, int kTiles, int kProducts>
struct Sums {
  float made[kTiles][kProducts][4];
  float apart[kApart ? kTiles : 1][kProducts][4];

  __device__ void Clear() {
    ForEach([&](float& sum, float* all_before) {
      sum = 0;
      asm volatile("" : "+f"(sum));  // before products begin
      if constexpr (kApart) *all_before = 0;
    });
  }
  // Of products that are done.
  __device__ void AddUp() {
    ForEach([&](float& sum, float* all_before) {
      asm volatile("" : "+f"(sum)::"memory");
      if constexpr (kApart) *all_before += sum;
    });
  }
  __device__ const auto& all() const {
    if constexpr (kApart) {
      return apart;
    } else {
      return made;
    }
  }

 private:
  template <typename Then>
  __device__ void ForEach(const Then& then) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kProducts; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          then(made[m][n][e], &apart[kApart ? m : 0][n][e]);
        }
      }
    }
  }
};

}  // namespace capsops::capsule_conv::wgmma

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_WGMMA_ROWS_CUH_
