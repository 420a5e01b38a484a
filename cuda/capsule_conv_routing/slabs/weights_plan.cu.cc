// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans the gradient of shared weights over slabs (weights.h).
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>

#include "cc/launch/round.h"
#include "cuda/capsule_conv_routing/slabs/product.cuh"
#include "cuda/capsule_conv_routing/slabs/products.h"
#include "cuda/capsule_conv_routing/slabs/weights.h"

namespace capsops::capsule_conv_routing::slabs {

bool SumsWeights(const Problem& p, bool transposes) {
  constexpr int64_t kMost = 1 << 20;
  constexpr int64_t kMostTiles = 512;  // Each has 128 by 128 sums, 64 KiB.
  if (p.in_width * p.types * p.in_dim > kMost) return false;
  return AllPhases(p, [&](const Phase& phase) {
    const AxisPhase& x = phase.x;
    const int64_t terms = SumTerms(transposes);
    const int64_t channels = p.in_dim * phase.depth.taps * phase.y.taps * x.taps;
    // A TMA box spans at most 256 elements of an axis, and its stride is at most 8.
    if (!transposes && x.stride > 1 &&
        (terms % p.types != 0 || x.stride > 8 || terms / p.types * x.stride > 256)) {
      return false;
    }
    return x.out.count * p.types % terms == 0 &&
           (std::abs(x.pad) + x.taps * x.dilation) * p.types < kMost &&
           CeilDivide(channels, 128) * CeilDivide(Columns(p), 128) <= kMostTiles;
  });
}

WeightSums::WeightSums(const Problem& p, const Slab& slab, int processors,
                       bool transposes)
    : z(p, slab),
      y(slab),
      transposes(transposes),
      chunks(static_cast<int>(slab.phase.x.out.count * p.types / terms())),
      types(static_cast<int>(p.types)),
      columns(static_cast<int>(Columns(p))),
      dim(static_cast<int>(p.in_dim)),
      x_taps(static_cast<int>(slab.phase.x.taps)),
      x_stride(static_cast<int>(slab.phase.x.stride)),
      x_dilation(static_cast<int>(slab.phase.x.dilation)),
      x_pad(static_cast<int>(slab.phase.x.pad)),
      copies(x_taps == 1 && x_pad == 0 ? 1 : 4 / std::gcd(4, types)),
      lead(copies == 1 ? 0 : copies),
      width(p.in_width),
      pitch(RoundUp(line(), 4)) {
  tile_taps = tap_products = move = span = 0;
  box = std::gcd(32, dim);  // at least 4
  tap_boxes = dim / box;
  boxes = y.taps * x_taps * z.image.taps * tap_boxes;
  const int all = boxes * box;
  // Each lane of the producer warp loads one box at most, so a tile has at most 32.
  products = all <= 128 || box == 4 ? 16 : 32;
  tile_boxes = std::min(boxes, products * 8 / box);
  row_tiles = CeilDivideInt(boxes, tile_boxes);
  halved = columns <= kTileRows / 2;
  column_tiles = CeilDivideInt(columns, kTileRows);
  // The time of a last tile with fewer columns, relative to one with 256.
  const int last_columns = (boxes - (row_tiles - 1) * tile_boxes) * box;
  const double last = std::max(0.45, last_columns <= 64    ? 0.45
                                     : last_columns <= 128 ? 0.65
                                                           : 1.0);
  splits = std::max(
      1, static_cast<int>(processors / (column_tiles * (row_tiles - 1 + last))));
  last_splits = std::max(
      1, (processors - column_tiles * (row_tiles - 1) * splits) / column_tiles);
  ShareBoxes(processors);
}

void WeightSums::ShareBoxes(int processors) {
  // Horizontal taps of a tile, and columns of each / 8; WithSumTile has the same.
  constexpr int kTiles[][2] = {{3, 8}, {5, 8}, {3, 10}};
  const int positions = x_dilation * types, shared = boxes / x_taps;
  if (!transposes || x_taps == 1 || x_stride > 1 || positions % 8 != 0) return;
  // Clocks that a multiprocessor takes for a step of all tiles, by count: level 2 gives
  // it a line of 128 bytes in 4 clocks, and its tensor cores take 32 lines by a column.
  constexpr double kLoad = 4, kLines = 32;
  const double lines = halved ? 64 : 128;
  const auto all = [&](double clocks, int used) { return clocks * processors / used; };
  // A smaller gain by count was none when measured (notebook/slim_capsules.md).
  constexpr double kMost = 0.75;
  double least =
      kMost * all(kLoad * (boxes * box + lines * row_tiles), blocks() / column_tiles);
  for (const auto [taps, wide] : kTiles) {
    const auto box_tiles = CeilDivideInt(shared, 8 * wide / box);
    const int tiles = box_tiles * CeilDivideInt(x_taps, taps);
    const auto further = CeilDivideInt((taps - 1) * (positions / 8), 4);
    const int parts = processors / (tiles * column_tiles);
    if (further > kMostSpan || parts == 0) continue;
    const auto loaded = CeilDivideInt(shared, box_tiles);
    const double load = kLoad * (lines + loaded * box) * (chunks + further) / chunks;
    const double clocks =
        all(tiles * std::max(load, lines * taps * wide * 8 / kLines), tiles * parts);
    if (clocks >= least) continue;
    least = clocks;
    tile_taps = taps;
    tap_products = wide;
    products = taps * wide;
    move = positions / 8;
    span = further;
    tile_boxes = loaded;
    row_tiles = tiles;
    splits = last_splits = parts;
  }
  if (tile_taps > 0) boxes = shared;
}

}  // namespace capsops::capsule_conv_routing::slabs
