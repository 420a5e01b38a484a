// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Products of rows of a slab's votes and of its image, tap by tap. A row of a tile is a
// position: a pixel and a type.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cc/launch/capsule_conv_slabs.h"
#include "cc/launch/round.h"
#include "cuda/capsule_conv_routing/slabs/product.cuh"
#include "cuda/common/divisor.cuh"

namespace capsops::capsule_conv_routing::slabs {

// Work of MultiplyKernel. With kVotes, votes of an image:
//   votes[position, column] = sum over taps and channels of
//       image[position + tap, channel] * weights[tap, column, channel]
// Otherwise the gradient of an unfolded image, row by row:
//   to[position, (tap across, channel)] = sum over taps down and columns of
//       votes_grad[position of the row that reads by this tap, column] *
//           weights[tap down, (tap across, channel), column]
template <bool kVotes>
struct RowProduct {
  int frames, rows, read_rows, positions;
  int terms, columns;  // numbers of a position that is read, and of the result
  int y_taps, y_stride, y_dilation, y_pad;
  int across, column_tiles, chunks;
  // For votes, an image row is read at positions shifted by taps.
  int x_taps, x_step, x_begin;
  bool paired;

  RowProduct(const Problem& p, const Slab& slab, int64_t terms, int64_t columns)
      : frames(static_cast<int>(slab.frames)),
        rows(static_cast<int>(slab.band.rows)),
        read_rows(static_cast<int>(slab.band.read_rows)),
        positions(static_cast<int>(slab.phase.x.out.count * p.types)),
        terms(static_cast<int>(terms)),
        columns(static_cast<int>(columns)),
        y_taps(static_cast<int>(slab.phase.y.taps)),
        y_stride(static_cast<int>(slab.phase.y.stride)),
        y_dilation(static_cast<int>(slab.phase.y.dilation)),
        y_pad(static_cast<int>(slab.band.pad)),
        across(static_cast<int>(CeilDivide(positions, kTileRows))),
        column_tiles(static_cast<int>(CeilDivide(columns, 256))),
        chunks(static_cast<int>(CeilDivide(terms, kDepth))),
        x_taps(kVotes ? static_cast<int>(slab.phase.x.taps) : 1),
        x_step(static_cast<int>(slab.phase.x.dilation * p.types)),
        x_begin(kVotes ? static_cast<int>(-slab.phase.x.pad * p.types) : 0),
        paired(across % 2 == 0) {}

  __host__ __device__ int Rows() const { return kVotes ? rows : read_rows; }
  __host__ __device__ int Count() const {
    return frames * Rows() * across * column_tiles / (paired ? 2 : 1);
  }
  // The columns of a tile.
  int64_t wide() const { return CeilDivide(columns, column_tiles); }

  // Rows in the middle, which most taps reach, are first.
  struct Tile {
    int frame, row, position, column_tile;

    __device__ Tile(const RowProduct& w, int number, int rank) {
      const int pair = w.paired ? 2 : 1;
      Digits<int> digits(number);
      column_tile = digits.Next(w.column_tiles);
      position = (digits.Next(w.across / pair) * pair + rank) * kTileRows;
      frame = digits.Next(w.frames);
      const int nth = digits.rest, middle = w.Rows() / 2;
      row = nth % 2 == 0 ? middle + nth / 2 : middle - (nth + 1) / 2;
    }
  };

  // Returns the row that the tile's row is made of by a tap down, or -1: a row of the
  // image for votes, and of votes for the image.
  __device__ int Read(const Tile& tile, int tap) const {
    if (kVotes) {
      const int y = tile.row * y_stride + tap * y_dilation - y_pad;
      return y >= 0 && y < read_rows ? y : -1;
    }
    const int y = tile.row + y_pad - tap * y_dilation, from = y / y_stride;
    return y >= 0 && from < rows && from * y_stride == y ? from : -1;
  }
  __device__ int Steps(const Tile& tile) const {
    int steps = 0;
    for (int tap = 0; tap < y_taps; ++tap) {
      if (Read(tile, tap) >= 0) steps += chunks * x_taps;
    }
    return steps;
  }
  template <typename Step>
  __device__ void ForSteps(const Tile& tile, const Step& step) const {
    for (int tap = 0; tap < y_taps; ++tap) {
      const int from = Read(tile, tap);
      if (from < 0) continue;
      const int line = tile.frame * (kVotes ? read_rows : rows) + from;
      int position = tile.position + x_begin;
      for (int x_tap = 0; x_tap < x_taps; ++x_tap, position += x_step) {
        for (int chunk = 0; chunk < chunks; ++chunk) {
          step(chunk * kDepth, tap * x_taps + x_tap, position, line);
        }
      }
    }
  }
  __device__ int64_t Row(const Tile& tile, int row) const {
    const int position = tile.position + row;
    const int64_t line = int64_t{tile.frame} * Rows() + tile.row;
    return position < positions ? line * positions + position : -1;
  }
};

// Multiplies `lines` rows of `read` positions, and matrices of `taps` taps.
template <int kProducts, bool kVotes>
LaunchError LaunchRowProduct(const GpuExec& exec, const char* op,
                             const RowProduct<kVotes>& w, int64_t read, int64_t lines,
                             int64_t taps, const float* positions, const float* weights,
                             float* to) {
  CUtensorMap left, right;
  CAPSOPS_RETURN_IF_ERROR(
      MakeTensorMap(op, positions, Matrices(w.terms, read, lines, kTileRows), &left));
  CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(
      op, weights, Matrices(w.terms, w.columns, taps, kProducts * 8), &right));
  return LaunchMultiply<kProducts>(op, exec, left, right, w, to);
}

}  // namespace capsops::capsule_conv_routing::slabs
