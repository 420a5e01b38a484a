// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The forward product and the input gradient as work for tma/product.cuh. The rows of a
// tile are a box of images and target pixels. For each tap, their source pixels are a
// box as well, which TMA loads, with zeros for padding. A step is one chunk of a
// pixel's elements at one tap. Taps that read only padding in a tile are skipped. The
// input gradient has one phase for each remainder of pixels modulo the strides.
#pragma once

#include <cstdint>

#include "cuda/capsule_conv/patch.cuh"
#include "cuda/capsule_conv/tma/steps.cuh"
#include "cuda/common/tensor_map.cuh"

namespace capsops::capsule_conv::tma {

constexpr int kMaxPhases = 8;  // phases per axis
constexpr int kMaxAxisTiles = 512;

// One tile along one axis.
struct AxisTile {
  int source;                    // source pixel of the first point and first tap
  int taps, first, every, step;  // taps that read any pixel, as in Axis
  int target, points;  // first target pixel; points from there to the phase's end
};

// An axis: its phases, each divided into tiles of `box` points. Point t of phase n is
// target pixel t * target_stride + n.
struct TileAxis {
  int phases, tiles;
  int box;     // points per tile
  int source;  // source pixels
  int stride, target_stride;
  Axis phase[kMaxPhases];

  __host__ __device__ int TilesOf(int n) const {
    return (phase[n].points + box - 1) / box;
  }
  __host__ __device__ AxisTile At(int tile) const {
    int n = 0;
    while (tile >= TilesOf(n)) tile -= TilesOf(n++);
    const Axis& p = phase[n];
    const int point = tile * box, left = p.points - point;
    const int low = point * stride + p.offset;
    const int high = low + ((left < box ? left : box) - 1) * stride;
    // Taps before `begin` or from `end` on read outside of the source.
    const int begin = high >= 0 ? 0 : (p.step - 1 - high) / p.step;
    int end = low >= source ? 0 : (source - 1 - low) / p.step + 1;
    if (end > p.taps) end = p.taps;
    return {low + begin * p.step,
            end > begin ? end - begin : 0,
            p.first + begin * p.every,
            p.every,
            p.step,
            point * target_stride + n,
            left};
  }
};

// The coordinates of a tile, and its steps.
struct ImageCoord {
  int image, vertical, horizontal, column_block;
  TileSteps steps;
};

// The forward product or input gradient as ProductKernel's Work.
struct ImageWork {
  using Place = ImageCoord;
  static constexpr Left kLeft = Left::kTerms;
  static constexpr int kColumnRank = 3;
  // The taps of each tile (counts), and the taps and non-empty tiles before each tile.
  struct Table {
    int counts[kMaxAxisTiles], taps[kMaxAxisTiles + 1], tiles[kMaxAxisTiles + 1];
  };
  struct Tables {
    Table vertical, horizontal;
  };

  StreamKRanges ranges;
  int tiles;
  bool empty;  // whether some tiles have no steps
  TileAxis vertical, horizontal;
  int batch, images;   // images in total, and images per tile
  int y_bits, x_bits;  // log2 of a tile's points
  int chunks, column_blocks, kernel_width;
  int target_height, target_width, target_pixel;
  Columns columns;

  // Fill the tables. All threads of a block call both, and synchronize in between.
  __device__ void Count(Tables* tables) const {
    Count(vertical, &tables->vertical);
    Count(horizontal, &tables->horizontal);
  }
  __device__ void Accumulate(Tables* tables) const {
    Accumulate(vertical, &tables->vertical);
    Accumulate(horizontal, &tables->horizontal);
  }

  // Finds the tile that a step belongs to.
  __device__ Place Find(const Tables& tables, int step) const {
    const Table& y = tables.vertical;
    const Table& x = tables.horizontal;
    const int all_x_taps = x.taps[horizontal.tiles], all_x = x.tiles[horizontal.tiles];
    const int of_image =
        Steps(y.taps[vertical.tiles] * all_x_taps, y.tiles[vertical.tiles] * all_x);
    Place place;
    place.image = step / of_image;
    int rest = step - place.image * of_image;
    const auto before_y = [&](int n) {
      return Steps(y.taps[n] * all_x_taps, y.tiles[n] * all_x);
    };
    place.vertical = Last(vertical.tiles, rest, before_y);
    rest -= before_y(place.vertical);
    const int y_taps = y.counts[place.vertical];
    const auto before_x = [&](int n) { return Steps(y_taps * x.taps[n], x.tiles[n]); };
    place.horizontal = Last(horizontal.tiles, rest, before_x);
    rest -= before_x(place.horizontal);
    place.steps.count = y_taps * x.counts[place.horizontal] * chunks;
    const int all = place.steps.count + kStoreSteps;
    place.column_block = rest / all;
    place.steps.first = step - (rest - place.column_block * all);
    return place;
  }

  // Returns the tile with this number; does not set steps.first.
  __device__ Place At(const Tables& tables, int tile) const {
    Place place;
    Digits<int> digits(tile);
    place.column_block = digits.Next(column_blocks);
    place.horizontal = digits.Next(horizontal.tiles);
    place.vertical = digits.Next(vertical.tiles);
    place.image = digits.rest;
    place.steps.count = tables.vertical.counts[place.vertical] *
                        tables.horizontal.counts[place.horizontal] * chunks;
    return place;
  }

  // Producer: loads the operands of one step after another.
  template <typename Shape>
  struct Loader {
    const ImageWork& work;
    AxisTile y, x;
    int image, column;
    int chunk, y_tap, x_tap;

    __device__ Loader(const ImageWork& work, const Place& place, int step)
        : work(work),
          y(work.vertical.At(place.vertical)),
          x(work.horizontal.At(place.horizontal)),
          image(place.image * work.images),
          column(place.column_block * Shape::kColumns) {
      const int tap = step / work.chunks;
      chunk = step - tap * work.chunks;
      y_tap = tap / x.taps;
      x_tap = tap - y_tap * x.taps;
    }

    __device__ void Load(const CUtensorMap& rows, const CUtensorMap& columns,
                         Barrier& barrier, char* stage) {
      TmaLoad(rows, chunk * Shape::kDepth, x.source + x_tap * x.step,
              y.source + y_tap * y.step, image, barrier, stage);
      const int tap =
          (y.first + y_tap * y.every) * work.kernel_width + x.first + x_tap * x.every;
      TmaLoad(columns, chunk * Shape::kDepth, column, tap, barrier,
              stage + Shape::kRowBytes);
      if (++chunk < work.chunks) return;
      chunk = 0;
      if (++x_tap < x.taps) return;
      x_tap = 0;
      ++y_tap;
    }
  };

  // Maps a tile's row to its address in the target; nullptr if there is no such row.
  template <typename S>
  struct Target {
    const ImageWork& work;
    S* to;
    AxisTile y, x;
    int image;

    __device__ Target(const ImageWork& work, const Place& place, S* to)
        : work(work),
          to(to),
          y(work.vertical.At(place.vertical)),
          x(work.horizontal.At(place.horizontal)),
          image(place.image * work.images) {}
    __device__ S* Row(int row) const {
      const int at_x = row & ((1 << work.x_bits) - 1);
      const int at_y = (row >> work.x_bits) & ((1 << work.y_bits) - 1);
      const int n = image + (row >> (work.x_bits + work.y_bits));
      if (at_x >= x.points || at_y >= y.points || n >= work.batch) return nullptr;
      const int64_t line = int64_t{n} * work.target_height + y.target +
                           at_y * work.vertical.target_stride;
      return to + (line * work.target_width + x.target +
                   at_x * work.horizontal.target_stride) *
                      work.target_pixel;
    }
  };

  // The two rows of its warp's 16 that a lane holds.
  __device__ static int Upper(int lane) { return lane / 4; }
  __device__ static int Lower(int lane) { return lane / 4 + 8; }

 private:
  __device__ static void Count(const TileAxis& axis, Table* table) {
    for (int n = threadIdx.x; n < axis.tiles; n += blockDim.x) {
      table->counts[n] = axis.At(n).taps;
    }
  }
  __device__ static void Accumulate(const TileAxis& axis, Table* table) {
    for (int n = threadIdx.x; n <= axis.tiles; n += blockDim.x) {
      int taps = 0, tiles = 0;
      for (int k = 0; k < n; ++k) {
        taps += table->counts[k];
        tiles += table->counts[k] > 0;
      }
      table->taps[n] = taps;
      table->tiles[n] = tiles;
    }
  }

  // Steps of `tiles` tiles with `taps` taps in total, for all column blocks.
  __device__ int Steps(int taps, int tiles) const {
    return (taps * chunks + tiles * kStoreSteps) * column_blocks;
  }

  // Binary search for the tile that includes step `at`; before(n) are the steps before
  // tile n.
  template <typename Before>
  __device__ static int Last(int count, int at, const Before& before) {
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (before(middle + 1) > at) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
};

}  // namespace capsops::capsule_conv::tma
