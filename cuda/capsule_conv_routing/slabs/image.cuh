// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The product of the image's gradient: a matrix product per row of the image. Its rows
// are positions, (pixel, type), of the gradient of votes, and its columns are the
// channels of all horizontal taps. It sums over the numbers of a position and over the
// vertical and depth taps, which select the rows of the votes to read. product.cuh
// describes the threads and the pipeline.
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

// The most columns of a tile: a consumer warpgroup's sums, 128 positions by 192
// columns, take 192 registers of each thread.
constexpr int kMostImageColumns = 192;

// Parameters of ImageGradKernel.
struct ImageTiles {
  FrameAxis z;
  RowAxis y;
  int height;                      // rows of an input frame
  int positions, image_positions;  // positions of a row of the votes, and of the image
  int terms, chunks;  // numbers of a position of the votes, and stages for them
  // Weights are [y taps][x_taps][z taps][filter_rows][terms]. A filter row, a channel
  // of the image, is a column of the product. A stage loads tile_columns filter rows
  // for each horizontal tap.
  int x_taps, filter_rows;
  // A tile has tile_positions positions of a row, which has `across` tiles, or
  // tile_rows whole rows, y.stride apart in the image: the rows of the votes that read
  // them by one tap are then adjacent.
  int tile_positions, across, tile_columns, column_tiles, tile_rows = 1;

  // Chooses column_tiles so that a tile has at most kMostImageColumns filter rows. For
  // several horizontal taps, set column_tiles afterwards.
  ImageTiles(const Problem& p, const Slab& slab, int64_t chunk,
             int64_t tile_positions = kTileRows)
      : z(p, slab),
        y(slab),
        height(static_cast<int>(p.in_height)),
        positions(static_cast<int>(slab.phase.x.out.count * p.types)),
        image_positions(static_cast<int>(p.in_width * p.types)),
        terms(static_cast<int>(Columns(p))),
        chunks(CeilDivideInt(terms, chunk)),
        x_taps(static_cast<int>(slab.phase.x.taps)),
        filter_rows(static_cast<int>(p.in_dim)),
        tile_positions(static_cast<int>(tile_positions)),
        across(CeilDivideInt(positions, tile_positions)),
        tile_columns(0),
        column_tiles(CeilDivideInt(filter_rows, kMostImageColumns)) {}

  __host__ __device__ int row_tiles() const {
    if (tile_rows == 1) return y.read;
    return (y.read + y.stride * tile_rows - 1) / (y.stride * tile_rows) * y.stride;
  }
  __host__ __device__ int tiles() const {
    return z.read * row_tiles() * across * column_tiles;
  }
  // Columns per tile if all tiles have equal shares.
  int64_t wide() const { return CeilDivide(filter_rows, column_tiles); }
  // Positions per row of a box.
  __host__ __device__ int box_positions() const {
    return tile_rows == 1 ? kTileRows : positions;
  }
  // Lines of a stage's two boxes.
  __host__ __device__ int box_lines() const {
    return tile_rows * box_positions() + x_taps * tile_columns;
  }
  // Describes rows for TMA: `rows` of each frame, which has `all` of them. A row has
  // `count` positions of `numbers` elements.
  static TmaTensor<4> Rows(uint64_t numbers, uint64_t count, uint64_t rows,
                           uint64_t all, int frames) {
    const uint64_t row = count * numbers;
    TmaTensor<4> tensor;
    tensor.size = {numbers, count, rows, static_cast<uint64_t>(std::max(frames, 1))};
    tensor.apart = {numbers, row, all * row};
    return tensor;
  }
};

// A tile's coordinates; `row` is its first row. Tiles in the middle rows, which most
// taps reach, come first.
struct ImageTile {
  int frame, row, across, column_tile;

  __device__ ImageTile(const ImageTiles& w, int tile) {
    Digits<int> digits(tile);
    column_tile = digits.Next(w.column_tiles);
    across = digits.Next(w.across);
    frame = digits.Next(w.z.read);
    const int rank = digits.rest, middle = w.row_tiles() / 2;
    row = rank % 2 == 0 ? middle + rank / 2 : middle - (rank + 1) / 2;
    if (w.tile_rows > 1) {
      const int turn = row / w.y.stride;
      row += turn * (w.tile_rows - 1) * w.y.stride;
    }
  }
};

// Calls visit(tile) for the tiles of this block. The order of blocks alternates, so
// that blocks that begin with the largest tiles end with the smallest.
template <typename Visit>
__device__ void ForImageTiles(const ImageTiles& w, const Visit& visit) {
  const int blocks = gridDim.x, block = blockIdx.x, tiles = w.tiles();
  for (int turn = 0, first = 0; first < tiles; ++turn, first += blocks) {
    const int tile = first + (turn % 2 == 0 ? block : blocks - 1 - block);
    if (tile < tiles) visit(ImageTile(w, tile));
  }
}

// Epilogue: adds sums to an image in which position n is read by votes at position n,
// or stores them.
template <typename S>
struct AddDirect {
  using Element = S;
  static constexpr int kBytes = kStoreBytes<S> / 2;
  CUtensorMap to;
  int columns, added_rows;

  // Whether a tile without products can be skipped.
  __device__ bool Skips(const ImageTiles&, const ImageTile& tile) const {
    return tile.row < added_rows;
  }

  template <int kProducts>
  __device__ void operator()(const ImageTiles& w, const ImageTile& tile,
                             const float (&sums)[2][kProducts][4], int, char* boxes,
                             int* box) const {
    const int first = tile.column_tile * w.tile_columns;
    const int position = tile.across * kTileRows + threadIdx.x % 128 / 32 * kBoxRows;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      StoreRows<S>(sums[m], columns - first, boxes, box,
                   [&](int column, const char* from) {
                     const int c = first + column, n = position + m * 64;
                     if (tile.row < added_rows) {
                       TmaAdd(to, c, n, tile.row, tile.frame, from);
                     } else {
                       TmaStore(to, c, n, tile.row, tile.frame, from);
                     }
                   });
    }
  }
};

template <typename S>
LaunchError MakeAddDirect(const char* op, const ImageTiles& w, S* image, int added_rows,
                          AddDirect<S>* add) {
  add->columns = w.filter_rows;
  add->added_rows = added_rows;
  auto tensor =
      ImageTiles::Rows(w.filter_rows, w.image_positions, w.y.read, w.height, w.z.read);
  tensor.size[1] = std::min<uint64_t>(tensor.size[1], w.positions);
  tensor.box = {kStoreColumns, kBoxRows, 1, 1};
  tensor.swizzle = kStoreLine<S>;
  tensor.rounded = false;
  return MakeTensorMap(op, image, tensor, &add->to);
}

// Computes what each horizontal tap contributes to an image row:
//   grads[position, (x tap, channel)] = sum over (z, y) taps and columns of
//       votes_grad[position, column] * weights[(z, y) tap, (x tap, channel), column]
// with votes_grad from the row that reads the image row by the (z, y) tap.
//
// The two consumer warpgroups work on different tiles, so that one multiplies while the
// other adds. epilogue(w, tile, sums, group, memory, &box) adds a tile's sums to the
// image, or stores them in rows from `added_rows` on: sums[0] has its first 64
// positions, sums[1] the others. `memory` is the warpgroup's shared memory, and `box` a
// number, at first 0, that it keeps from tile to tile.
template <int kProducts, typename Epilogue>
__global__ void __launch_bounds__(kProductThreads, 1)
    ImageGradKernel(const __grid_constant__ CUtensorMap votes,
                    const __grid_constant__ CUtensorMap weights,
                    const __grid_constant__ ImageTiles w,
                    const __grid_constant__ Epilogue epilogue) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using S = typename Epilogue::Element;
  using Ring = Stages<S, kProducts, 2 * Epilogue::kBytes>;
  auto& stages = Ring::Start(kConsumerWarps / 2);
  GridDependencySynchronize();
  const int group = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 2) {
    SetMaxRegisters<kFew, false>();
    if (threadIdx.x % 128 == 0) {
      PipelineState at{0, 1};  // Empty stages count as released.
      const int bytes = w.box_lines() * Ring::kLine;
      ForImageTiles(w, [&](const ImageTile& tile) {
        ForTaps<false>(
            w.z, w.y, tile.frame, tile.row, w.tile_rows,
            [&](int frame, int row, int z_tap, int y_tap) {
              for (int chunk = 0; chunk < w.chunks; ++chunk, at.Next(Ring::kCount)) {
                char* const stage = stages.memory[at.at];
                Barrier& full = stages.Claim(at, bytes);
                TmaLoad(votes, chunk * kStageTerms<S>, tile.across * w.tile_positions,
                        row, frame, full, stage);
                TmaLoad(weights, chunk * kStageTerms<S>,
                        tile.column_tile * w.tile_columns, z_tap, 0, y_tap, full,
                        stage + Ring::kRowBytes);
              }
            });
      });
    }
  } else {
    SetMaxRegisters<kMany, true>();
    PipelineState at;
    int box = 0, tiles = 0;
    ForImageTiles(w, [&](const ImageTile& tile) {
      const int steps =
          CountTaps<false>(w.z, w.y, tile.frame, tile.row, w.tile_rows) * w.chunks;
      if (steps == 0 && epilogue.Skips(w, tile)) return;
      const int turn = tiles / 2;
      if (tiles++ % 2 != group) return at.Skip(steps, Ring::kCount);
      stages.turns.Wait(group, turn);
      float sums[2][kProducts][4];
      stages.Multiply(group, steps, &at, sums);
      epilogue(w, tile, sums, group, stages.epilogue + group * Epilogue::kBytes, &box);
    });
    WaitForBulkStores();
  }
#else
  __trap();  // compiled for another GPU
#endif
}

// Launches ImageGradKernel with tiles of `columns` filter rows for each tap.
template <int kProducts, typename S, typename Epilogue>
LaunchError LaunchImageGrad(const GpuExec& exec, const char* op, ImageTiles w,
                            int columns, const S* votes, const S* weights,
                            const Epilogue& epilogue) {
  using Ring = Stages<S, kProducts, 2 * Epilogue::kBytes>;
  w.tile_columns = columns;
  const uint64_t terms = w.terms;
  const uint64_t z_taps = w.z.image.taps, x_taps = w.x_taps, y_taps = w.y.taps;
  TmaTensor<5> filter(
      {terms, static_cast<uint64_t>(w.filter_rows), z_taps, x_taps, y_taps});
  filter.box = {kStageTerms<S>, static_cast<uint32_t>(columns), 1,
                static_cast<uint32_t>(x_taps), 1};
  auto read = ImageTiles::Rows(terms, w.positions, w.y.count, w.y.count, w.z.count);
  read.box = {kStageTerms<S>, static_cast<uint32_t>(w.box_positions()),
              static_cast<uint32_t>(w.tile_rows), 1};
  CUtensorMap left, right;
  CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, votes, read, &left));
  CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, weights, filter, &right));
  return LaunchProduct<ImageGradKernel<kProducts, Epilogue>, Ring>(
      op, exec, std::min(w.tiles(), exec.device.processors), left, right, w, epilogue);
}

}  // namespace capsops::capsule_conv_routing::slabs
