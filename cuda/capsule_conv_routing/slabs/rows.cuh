// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Products of rows of a slab's votes and of its image, tap by tap. A row of a tile is a
// position: a pixel and a type.
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

// Kernel parameters.
struct RowProduct {
  FrameAxis z;
  RowAxis y;
  int height;         // the rows of an input frame
  int positions;      // those of a row of the votes
  int terms, chunks;  // the numbers of a position that is read, and stages of them
  // For votes, an image row is read at positions shifted by taps.
  int read_positions, x_taps, x_step, x_begin;
  // Weights are [y taps][x_taps][z taps][filter_rows][terms]. A row of the filter is a
  // column of the product. A stage loads tile_columns of them for each of box_taps taps
  // across.
  int filter_rows, box_taps = 1;
  // Tiles. One of the image may have tile_rows whole rows, y.stride apart, so that the
  // rows of the votes that read these by a tap are neighbors.
  int tile_positions, across, tile_columns, column_tiles, tile_rows = 1;

  // Tiles have 256 rows of the filter at most. Who loads several taps sets box_taps and
  // column_tiles.
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

  // Tiles are of the votes, or of the image that they read.
  __host__ __device__ int frames(bool votes) const { return votes ? z.count : z.read; }
  __host__ __device__ int row_tiles(bool votes) const {
    if (votes) return y.count;
    if (tile_rows == 1) return y.read;
    return (y.read + y.stride * tile_rows - 1) / (y.stride * tile_rows) * y.stride;
  }
  __host__ __device__ int tiles(bool votes) const {
    return frames(votes) * row_tiles(votes) * across * column_tiles;
  }
  // An even share of the columns for each tile.
  int64_t wide() const { return CeilDivide(filter_rows, column_tiles); }
  // The positions of a row of a box.
  __host__ __device__ int box_positions() const {
    return tile_rows == 1 ? kTileRows : positions;
  }
  // The lines of both boxes of a stage.
  __host__ __device__ int box_lines() const {
    return tile_rows * box_positions() + box_taps * tile_columns;
  }
  // The rows of the votes, or of the image, with `count` positions of `numbers`
  // numbers.
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

// Rows in the middle, which most taps reach, are first. Of several rows, `row` is the
// first one.
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

// Calls visit(tile) for the tiles of this block. Blocks that begin with the largest
// tiles end with the smallest.
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
  bool adds;  // to an image, instead of storing votes

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

// Makes this epilogue for votes, or for an image whose position n is that of the votes.
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

// With kVotes, makes votes of an image:
//   votes[position, column] = sum over taps and channels of
//       image[position + tap, channel] * weights[tap, column, channel]
// Otherwise makes, for each image row, what taps across bring to it:
//   grads[position, (tap across, channel)] = sum over other taps and columns of
//       votes_grad[position of the row that reads by this tap, column] *
//           weights[other tap, (tap across, channel), column]
// epilogue(w, tile, sums, memory, &box) takes the sums of a tile, with shared memory
// and a number to keep between tiles, 0 at first.
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
      at.parity = 1;  // empty stages count as released
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
      if (!kVotes && steps == 0 && w.across == 1) return;  // no halo to be set to zero
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

// Launches it with tiles of `columns` rows of the filter.
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
