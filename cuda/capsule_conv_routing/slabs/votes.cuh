// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Tiles and stages of VotesKernel.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/capsule_conv_routing/slabs/axes.cuh"
#include "cuda/common/divisor.cuh"

namespace capsops::capsule_conv_routing::slabs {

// A tile has kTileColumns columns of the votes and kTilePositions positions.
constexpr int kTileColumns = 64, kTilePositions = 256;
constexpr int kMostTaps = 16, kMostStages = 8;
// Each consumer warpgroup stores through two buffers of kStoredPositions positions.
constexpr int kStoredPositions = 32;

// The plan of a pipeline stage. A stage holds a chunk of the channels for one vertical
// tap and one of depth: first the pixels that the tile reads in a row of the image,
// then the weights of all horizontal taps. A line of shared memory holds the chunk for
// one position, or for one column of the votes.
//
// Without a horizontal stride, each (pixel, type) of the image counts as a pixel with
// one type, and a tap moves by as many such pixels as there are types. With a stride,
// pixels are sorted into boxes by their number modulo the stride, because one tap reads
// pixels that are `stride` apart: box n holds pixels n, n + stride, and so on, counted
// from the first pixel of the first window.
struct VoteStage {
  int rows;    // rows of the votes in a tile: 2 if they have at most 128 positions
  int types;   // types of a pixel, in the sense above
  int pixels;  // pixels of the votes in a row of a tile
  int stride, x_taps;
  int first_pixel;           // begin of the first window; may be negative
  int boxes;                 // boxes for each row
  int loads, load_lines;     // TMA loads of a box, and lines of each
  int line, chunks;          // bytes of a line, and chunks of the channels
  int row_bytes, tap_bytes;  // bytes of a row's boxes, and of a tap's weights
  int count;                 // stages in the ring
  // For each horizontal tap, the line of a row's first position.
  uint16_t shifts[kMostTaps];

  VoteStage(const Problem& p, const AxisPhase& x, int element);

  __host__ __device__ int bytes() const {
    return rows * row_bytes + x_taps * tap_bytes;
  }
};

// Parameters of VotesKernel.
struct VoteTiles {
  FrameAxis z;
  RowAxis y;
  VoteStage stage;
  int positions;             // in a row of the votes
  int columns;               // numbers of all parents
  int across, column_tiles;  // tiles of a row of the votes, and of all columns

  VoteTiles(const Problem& p, const Slab& slab, int element);

  __host__ __device__ int row_tiles() const {
    return (y.count + stage.rows - 1) / stage.rows;
  }
  __host__ __device__ int tiles() const {
    return z.count * row_tiles() * across * column_tiles;
  }
};

// A tile's coordinates: its frame and first row, its number in the row, and its first
// column. Tiles in the middle rows, which most taps reach, come first.
struct VoteTile {
  int frame, row, across, column;

  __device__ VoteTile(const VoteTiles& w, int tile) {
    Digits<int> digits(tile);
    column = digits.Next(w.column_tiles) * kTileColumns;
    across = digits.Next(w.across);
    frame = digits.Next(w.z.count);
    const int rank = digits.rest, middle = w.row_tiles() / 2;
    row = w.stage.rows * (rank % 2 == 0 ? middle + rank / 2 : middle - (rank + 1) / 2);
  }
};

}  // namespace capsops::capsule_conv_routing::slabs
