// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// A matrix product over rows of a slab: computes votes from the image, or the image's
// gradient from the gradient of votes. A row of the product is a position, (pixel,
// type). A vertical tap selects the row to read and, for votes, a horizontal tap shifts
// its positions.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "cc/launch/capsule_conv_slabs.h"
#include "cc/launch/round.h"
#include "cuda/capsule_conv_routing/slabs/axes.cuh"
#include "cuda/capsule_conv_routing/slabs/product.cuh"
#include "cuda/common/divisor.cuh"

namespace capsops::capsule_conv_routing::slabs {

// Parameters of RowProductKernel, which reads rows of the image to compute tiles of the
// votes, or the other way around.
struct RowProduct {
  FrameAxis z;
  RowAxis y;
  int height;         // rows of an input frame
  int positions;      // positions of a row of the votes
  int terms, chunks;  // elements of a position that is read, and stages for them
  // Positions of an image row. For votes, the first of x_taps horizontal taps reads it
  // from position x_begin on, and each further tap x_step positions later.
  int read_positions, x_taps, x_step, x_begin;
  // Weights are [y taps][x_taps][z taps][filter_rows][terms]. A filter row is a column
  // of the product. A stage loads tile_columns filter rows for each of box_taps
  // horizontal taps.
  int filter_rows, box_taps = 1;
  // A tile has tile_positions positions of a row, which has `across` tiles. A tile of
  // the image may instead have tile_rows whole rows, y.stride apart: the rows of the
  // votes that read them by one tap are then adjacent.
  int tile_positions, across, tile_columns, column_tiles, tile_rows = 1;

  // Chooses column_tiles so that a tile has at most 256 filter rows. To load several
  // horizontal taps per stage, set box_taps and column_tiles afterwards.
  RowProduct(const Problem& p, const Slab& slab, int64_t terms, int64_t chunk,
             int64_t filter_rows, int64_t tile_positions = kTileRows)
      : z(p, slab),
        y(slab),
        height(static_cast<int>(p.in_height)),
        positions(static_cast<int>(slab.phase.x.out.count * p.types)),
        terms(static_cast<int>(terms)),
        chunks(static_cast<int>(CeilDivide(terms, chunk))),
        read_positions(static_cast<int>(p.in_width * p.types)),
        x_taps(static_cast<int>(slab.phase.x.taps)),
        x_step(static_cast<int>(slab.phase.x.dilation * p.types)),
        x_begin(static_cast<int>(-slab.phase.x.pad * p.types)),
        filter_rows(static_cast<int>(filter_rows)),
        tile_positions(static_cast<int>(tile_positions)),
        across(static_cast<int>(CeilDivide(positions, tile_positions))),
        tile_columns(0),
        column_tiles(static_cast<int>(CeilDivide(filter_rows, 256))) {}

  // Counts for tiles of the votes or, without `votes`, of the image that they read.
  __host__ __device__ int frames(bool votes) const { return votes ? z.count : z.read; }
  __host__ __device__ int row_tiles(bool votes) const {
    if (votes) return y.count;
    if (tile_rows == 1) return y.read;
    return (y.read + y.stride * tile_rows - 1) / (y.stride * tile_rows) * y.stride;
  }
  __host__ __device__ int tiles(bool votes) const {
    return frames(votes) * row_tiles(votes) * across * column_tiles;
  }
  // Columns per tile if all tiles have equal shares.
  int64_t wide() const { return CeilDivide(filter_rows, column_tiles); }
  // Positions per row of a box.
  __host__ __device__ int box_positions() const {
    return tile_rows == 1 ? kTileRows : positions;
  }
  // Lines of a stage's two boxes.
  __host__ __device__ int box_lines() const {
    return tile_rows * box_positions() + box_taps * tile_columns;
  }
  // Describes the rows of the votes, or of the image, for TMA. A row has `count`
  // positions of `numbers` elements.
  TmaTensor<4> Rows(bool votes, uint64_t numbers, uint64_t count) const {
    const uint64_t row = count * numbers, rows = votes ? y.count : y.read;
    TmaTensor<4> tensor;
    tensor.size = {numbers, count, rows,
                   static_cast<uint64_t>(std::max(frames(votes), 1))};
    tensor.apart = {numbers, row, (votes ? y.count : height) * row};
    tensor.every = {1, 1, 1, 1};
    return tensor;
  }
};

// A tile's coordinates; `row` is its first row. Tiles in the middle rows, which most
// taps reach, come first.
struct RowTile {
  int frame, row, across, column_tile;

  __device__ RowTile(const RowProduct& w, bool votes, int tile) {
    Digits<int> digits(tile);
    column_tile = digits.Next(w.column_tiles);
    across = digits.Next(w.across);
    frame = digits.Next(w.frames(votes));
    const int rank = digits.rest, middle = w.row_tiles(votes) / 2;
    row = rank % 2 == 0 ? middle + rank / 2 : middle - (rank + 1) / 2;
    if (w.tile_rows > 1) {
      const int turn = row / w.y.stride;
      row += turn * (w.tile_rows - 1) * w.y.stride;
    }
  }
};

// Calls visit(tile) for the tiles of this block. The order of blocks alternates, so
// that blocks that begin with the largest tiles end with the smallest.
template <bool kVotes, typename Visit>
__device__ void ForRowTiles(const RowProduct& w, const Visit& visit) {
  const int blocks = gridDim.x, block = blockIdx.x, tiles = w.tiles(kVotes);
  for (int turn = 0, first = 0; first < tiles; ++turn, first += blocks) {
    const int tile = first + (turn % 2 == 0 ? block : blocks - 1 - block);
    if (tile < tiles) visit(RowTile(w, kVotes, tile));
  }
}

// Epilogue: stores sums at [frame][row][position][column], or adds them there.
template <typename S>
struct StoreTile {
  using Element = S;
  static constexpr int kBytes = kStoreBytes<S>;
  CUtensorMap to;
  int columns;
  bool adds;  // adds to an image instead of storing votes

  template <int kProducts>
  __device__ void operator()(const RowProduct& w, const RowTile& tile,
                             const float (&sums)[kProducts][4], char* boxes,
                             int* box) const {
    const int first = tile.column_tile * w.tile_columns;
    const int position = tile.across * kTileRows + threadIdx.x / 32 * kBoxRows;
    StoreRows<S>(sums, columns - first, boxes, box, [&](int column, const char* from) {
      if (adds) {
        TmaAdd(to, first + column, position, tile.row, tile.frame, from);
      } else {
        TmaStore(to, first + column, position, tile.row, tile.frame, from);
      }
    });
  }
};

// Sets up StoreTile for votes or, if it adds, for an image in which position n is read
// by votes at position n.
template <typename S>
LaunchError MakeStoreTile(const char* op, const RowProduct& w, bool adds, S* to,
                          StoreTile<S>* store) {
  store->columns = w.filter_rows;
  store->adds = adds;
  auto tensor = w.Rows(!adds, w.filter_rows, adds ? w.read_positions : w.positions);
  tensor.size[1] = std::min<uint64_t>(tensor.size[1], w.positions);
  tensor.box = {kStoreColumns, kBoxRows, 1, 1};
  tensor.swizzle = kStoreLine<S>;
  tensor.rounded = false;
  return MakeTensorMap(op, to, tensor, &store->to);
}

// With kVotes, computes votes of an image:
//   votes[position, column] = sum over taps and channels of
//       image[position + tap, channel] * weights[tap, column, channel]
// Otherwise computes what each horizontal tap contributes to an image row:
//   grads[position, (x tap, channel)] = sum over (z, y) taps and columns of
//       votes_grad[position, column] * weights[(z, y) tap, (x tap, channel), column]
// with votes_grad from the row that reads the image row by the (z, y) tap.
//
// epilogue(w, tile, sums, memory, &box) stores a tile's sums. `memory` is its shared
// memory, and `box` a number, at first 0, that it keeps from tile to tile.
template <int kTerms, int kProducts, bool kVotes, typename Epilogue>
__global__ void __launch_bounds__(kProductThreads, 1)
    RowProductKernel(const __grid_constant__ CUtensorMap positions,
                     const __grid_constant__ CUtensorMap weights,
                     const __grid_constant__ RowProduct w,
                     const __grid_constant__ Epilogue epilogue) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Ring = Stages<typename Epilogue::Element, kTerms, kProducts, Epilogue::kBytes>;
  auto& stages = Ring::Start(kConsumerWarps);
  GridDependencySynchronize();
  const int group = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 2) {
    SetMaxRegisters<kFew, false>();
    if (threadIdx.x % 128 == 0) {
      PipelineState at;
      at.parity = 1;  // Empty stages count as released.
      const int bytes = w.box_lines() * Ring::kLine;
      ForRowTiles<kVotes>(w, [&](const RowTile& tile) {
        ForTaps<kVotes>(
            w.z, w.y, tile.frame, tile.row, w.tile_rows,
            [&](int frame, int row, int z_tap, int y_tap) {
              int x_tap = 0, shift = kVotes ? w.x_begin : 0;
              const int steps = kVotes ? w.chunks * w.x_taps : w.chunks;
              for (int n = 0, chunk = 0; n < steps; ++n, at.Next(Ring::kCount)) {
                char* const stage = stages.memory[at.at];
                Barrier& full = stages.Claim(at, bytes);
                TmaLoad(positions, chunk * kTerms,
                        tile.across * w.tile_positions + shift, row, frame, full,
                        stage);
                TmaLoad(weights, chunk * kTerms, tile.column_tile * w.tile_columns,
                        z_tap, x_tap, y_tap, full, stage + Ring::kRowBytes);
                if (++chunk < w.chunks) continue;
                chunk = 0;
                ++x_tap;
                shift += w.x_step;
              }
            });
      });
    }
  } else {
    SetMaxRegisters<kMany, true>();
    PipelineState at;
    int box = 0;
    ForRowTiles<kVotes>(w, [&](const RowTile& tile) {
      const int steps = CountTaps<kVotes>(w.z, w.y, tile.frame, tile.row, w.tile_rows) *
                        (kVotes ? w.chunks * w.x_taps : w.chunks);
      if (!kVotes && steps == 0 && w.across == 1) return;  // no halo to clear
      float sums[kProducts][4];
      stages.Multiply(steps, &at, sums);
      epilogue(w, tile, sums, stages.epilogue, &box);
    });
    WaitForBulkStores();
  }
#else
  __trap();  // compiled for another GPU
#endif
}

// Launches RowProductKernel with tiles of `columns` filter rows.
template <int kTerms, int kProducts, bool kVotes, typename S, typename Epilogue>
LaunchError LaunchRowProduct(const GpuExec& exec, const char* op, RowProduct w,
                             int columns, const S* positions, const S* weights,
                             const Epilogue& epilogue) {
  using Ring = Stages<S, kTerms, kProducts, Epilogue::kBytes>;
  w.tile_columns = columns;
  const uint64_t terms = w.terms, size = terms * w.filter_rows;
  const uint64_t z_taps = w.z.image.taps, x_taps = w.x_taps, y_taps = w.y.taps;
  TmaTensor<5> filter;
  filter.size = {terms, static_cast<uint64_t>(w.filter_rows), z_taps, x_taps, y_taps};
  filter.apart = {terms, size, z_taps * size, x_taps * z_taps * size};
  filter.swizzle = Ring::kLine;
  filter.box = {kTerms, static_cast<uint32_t>(columns), 1,
                static_cast<uint32_t>(w.box_taps), 1};
  filter.every = {1, 1, 1, 1, 1};
  auto read = w.Rows(!kVotes, w.terms, kVotes ? w.read_positions : w.positions);
  read.swizzle = Ring::kLine;
  read.box = {kTerms, static_cast<uint32_t>(w.box_positions()),
              static_cast<uint32_t>(w.tile_rows), 1};
  CUtensorMap left, right;
  CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, positions, read, &left));
  CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, weights, filter, &right));
  return LaunchProduct<RowProductKernel<kTerms, kProducts, kVotes, Epilogue>, Ring>(
      op, exec, std::min(w.tiles(kVotes), exec.device.processors), left, right, w,
      epilogue);
}

}  // namespace capsops::capsule_conv_routing::slabs
