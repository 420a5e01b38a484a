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
#include "cuda/capsule_conv_routing/slabs/product.cuh"
#include "cuda/common/divisor.cuh"

namespace capsops::capsule_conv_routing::slabs {

// Kernel parameters.
struct RowProduct {
  int frames, rows, read_rows, positions;
  int terms, chunks;  // the numbers of a position that is read, and stages of them
  int y_taps, y_stride, y_dilation, y_pad;
  // For votes, an image row is read at positions shifted by taps.
  int read_positions, x_taps, x_step, x_begin;
  // Weights are [y_taps][filter_taps][filter_rows][terms]. A row of the filter is a
  // column of the product. A stage loads tile_columns of them for each of box_taps
  // taps.
  int filter_taps, filter_rows, box_taps = 1;
  // Tiles.
  int tile_positions, across, tile_columns, column_tiles;

  // Tiles have 256 rows of the filter at most. Who loads several taps sets box_taps and
  // column_tiles.
  RowProduct(const Problem& p, const Slab& slab, int64_t terms, int64_t filter_taps,
             int64_t filter_rows, int64_t tile_positions = kTileRows)
      : frames(static_cast<int>(slab.frames)),
        rows(static_cast<int>(slab.band.rows)),
        read_rows(static_cast<int>(slab.band.read_rows)),
        positions(static_cast<int>(slab.phase.x.out.count * p.types)),
        terms(static_cast<int>(terms)),
        chunks(static_cast<int>(CeilDivide(terms, kDepth))),
        y_taps(static_cast<int>(slab.phase.y.taps)),
        y_stride(static_cast<int>(slab.phase.y.stride)),
        y_dilation(static_cast<int>(slab.phase.y.dilation)),
        y_pad(static_cast<int>(slab.band.pad)),
        read_positions(static_cast<int>(p.in_width * p.types)),
        x_taps(static_cast<int>(slab.phase.x.taps)),
        x_step(static_cast<int>(slab.phase.x.dilation * p.types)),
        x_begin(static_cast<int>(-slab.phase.x.pad * p.types)),
        filter_taps(static_cast<int>(filter_taps)),
        filter_rows(static_cast<int>(filter_rows)),
        tile_positions(static_cast<int>(tile_positions)),
        across(static_cast<int>(CeilDivide(positions, tile_positions))),
        tile_columns(0),
        column_tiles(static_cast<int>(CeilDivide(filter_rows, 256))) {}

  __host__ __device__ int tiles(bool votes) const {
    return frames * (votes ? rows : read_rows) * across * column_tiles;
  }
  // An even share of the columns for each tile.
  int64_t wide() const { return CeilDivide(filter_rows, column_tiles); }
  __host__ __device__ int box_bytes() const {
    return kRowBytes + box_taps * tile_columns * kSwizzleBytes;
  }

  // Returns the image row that row `row` of the votes reads by a tap, or -1.
  __device__ int Read(int row, int tap) const {
    const int y = row * y_stride + tap * y_dilation - y_pad;
    return y >= 0 && y < read_rows ? y : -1;
  }
  // Returns the row of the votes that reads image row `row` by a tap, or -1.
  __device__ int From(int row, int tap) const {
    const int y = row + y_pad - tap * y_dilation;
    const int from = y / y_stride;
    return y >= 0 && from < rows && from * y_stride == y ? from : -1;
  }
};

// Rows in the middle, which most taps reach, are first.
struct RowTile {
  int frame, row, across, column_tile;

  __device__ RowTile(const RowProduct& w, int all_rows, int tile) {
    Digits<int> digits(tile);
    column_tile = digits.Next(w.column_tiles);
    across = digits.Next(w.across);
    frame = digits.Next(w.frames);
    const int rank = digits.rest, middle = all_rows / 2;
    row = rank % 2 == 0 ? middle + rank / 2 : middle - (rank + 1) / 2;
  }
};

// Calls visit(tile) for the tiles of this block. Blocks that begin with the largest
// tiles end with the smallest.
template <bool kVotes, typename Visit>
__device__ void ForRowTiles(const RowProduct& w, const Visit& visit) {
  const int blocks = gridDim.x, block = blockIdx.x, tiles = w.tiles(kVotes);
  for (int turn = 0, first = 0; first < tiles; ++turn, first += blocks) {
    const int tile = first + (turn % 2 == 0 ? block : blocks - 1 - block);
    if (tile < tiles) visit(RowTile(w, kVotes ? w.rows : w.read_rows, tile));
  }
}

// Epilogue: stores sums at [frame][row][position][column], or adds them there.
struct StoreTile {
  static constexpr int kBytes = kStoreBytes;
  CUtensorMap to;
  int rows, columns;
  bool adds = false;

  template <int kProducts>
  __device__ void operator()(const RowProduct& w, const RowTile& tile,
                             const float (&sums)[kProducts][4], char* boxes,
                             int* box) const {
    const int first = tile.column_tile * w.tile_columns;
    const int position = tile.across * kTileRows + threadIdx.x / 32 * kBoxRows;
    const int line = tile.frame * rows + tile.row;
    StoreRows(sums, columns - first, boxes, box, [&](int column, const char* from) {
      if (adds) {
        TmaAdd(to, first + column, position, line, 0, from);
      } else {
        TmaStore(to, first + column, position, line, 0, from);
      }
    });
  }
};

// Makes this epilogue for an array of `rows` rows of each frame, with `pitch` positions
// of a row and `columns` columns.
inline LaunchError MakeStoreTile(const char* op, const RowProduct& w, int rows,
                                 uint64_t pitch, uint64_t columns, float* to,
                                 StoreTile* store) {
  store->rows = rows;
  store->columns = static_cast<int>(columns);
  const uint64_t positions = std::min<uint64_t>(w.positions, pitch);
  const uint64_t lines = uint64_t{1} * w.frames * rows;
  return MakeTensorMap(
      op, to,
      Stored({columns, positions, lines, 1},
             {columns, pitch * columns, lines * pitch * columns}, kBoxRows, 1),
      &store->to);
}

// With kVotes, makes votes of an image:
//   votes[position, column] = sum over taps and channels of
//       image[position + tap, channel] * weights[tap, column, channel]
// Otherwise makes, for each image row, what taps across bring to it:
//   grads[position, (tap across, channel)] = sum over taps down and columns of
//       votes_grad[position of the row that reads by this tap, column] *
//           weights[tap down, (tap across, channel), column]
// epilogue(w, tile, sums, memory, &box) takes the sums of a tile, with shared memory
// and a number to keep between tiles, 0 at first.
template <int kProducts, bool kVotes, typename Epilogue>
__global__ void __launch_bounds__(kProductThreads, 1)
    RowProductKernel(const __grid_constant__ CUtensorMap positions,
                     const __grid_constant__ CUtensorMap weights,
                     const __grid_constant__ RowProduct w,
                     const __grid_constant__ Epilogue epilogue) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Ring = Stages<kProducts, Epilogue::kBytes>;
  auto& stages = Ring::Start(kConsumerWarps);
  GridDependencySynchronize();
  const int group = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 2) {
    SetMaxRegisters<kFew, false>();
    if (threadIdx.x % 128 == 0) {
      PipelineState at;
      at.parity = 1;  // empty stages count as released
      const int bytes = w.box_bytes();
      ForRowTiles<kVotes>(w, [&](const RowTile& tile) {
        for (int tap = 0; tap < w.y_taps; ++tap) {
          const int from = kVotes ? w.Read(tile.row, tap) : w.From(tile.row, tap);
          if (from < 0) continue;
          const int line = tile.frame * (kVotes ? w.read_rows : w.rows) + from;
          int x_tap = 0, shift = kVotes ? w.x_begin : 0;
          const int steps = kVotes ? w.chunks * w.x_taps : w.chunks;
          for (int n = 0, chunk = 0; n < steps; ++n, at.Next(Ring::kCount)) {
            char* const stage = stages.memory[at.at];
            Barrier& full = stages.Claim(at, bytes);
            TmaLoad(positions, chunk * kDepth, tile.across * w.tile_positions + shift,
                    line, full, stage);
            TmaLoad(weights, chunk * kDepth, tile.column_tile * w.tile_columns, x_tap,
                    tap, full, stage + kRowBytes);
            if (++chunk < w.chunks) continue;
            chunk = 0;
            ++x_tap;
            shift += w.x_step;
          }
        }
      });
    }
  } else {
    SetMaxRegisters<kMany, true>();
    PipelineState at;
    int box = 0;
    ForRowTiles<kVotes>(w, [&](const RowTile& tile) {
      int steps = 0;
      for (int tap = 0; tap < w.y_taps; ++tap) {
        if constexpr (kVotes) {
          if (w.Read(tile.row, tap) >= 0) steps += w.chunks * w.x_taps;
        } else {
          if (w.From(tile.row, tap) >= 0) steps += w.chunks;
        }
      }
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
template <int kProducts, bool kVotes, typename Epilogue>
LaunchError LaunchRowProduct(const GpuExec& exec, const char* op, RowProduct w,
                             int columns, const float* positions, const float* weights,
                             const Epilogue& epilogue) {
  w.tile_columns = columns;
  const uint64_t terms = w.terms, taps = w.filter_taps, filter_rows = w.filter_rows;
  TmaTensor<4> filter;
  filter.size = {terms, filter_rows, taps, static_cast<uint64_t>(w.y_taps)};
  filter.apart = {terms, filter_rows * terms, taps * filter_rows * terms};
  filter.box = {kDepth, static_cast<uint32_t>(columns),
                static_cast<uint32_t>(w.box_taps), 1};
  filter.every = {1, 1, 1, 1};
  CUtensorMap left, right;
  CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(
      op, positions,
      Matrices(w.terms, kVotes ? w.read_positions : w.positions,
               uint64_t{1} * w.frames * (kVotes ? w.read_rows : w.rows), kTileRows),
      &left));
  CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, weights, filter, &right));
  return LaunchProduct<RowProductKernel<kProducts, kVotes, Epilogue>,
                       Stages<kProducts, Epilogue::kBytes>>(
      op, exec, std::min(w.tiles(kVotes), exec.device.processors), left, right, w,
      epilogue);
}

}  // namespace capsops::capsule_conv_routing::slabs
