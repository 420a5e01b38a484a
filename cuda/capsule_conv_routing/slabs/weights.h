// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The gradient of shared weights with wgmma, in TF32 or 16-bit types:
//   grad_weights[tap, channel, column] = sum over positions of
//       image[position + tap, channel] * votes_grad[position, column]
// The terms are the positions, (pixel, type), of all rows of a slab.
//
// wgmma takes 16-bit operands MN-major, so terms need not be adjacent and the image is
// read as it is. TF32 operands must be K-major, with adjacent terms, so the image is
// first transposed: the positions of a row become adjacent, and a tap is a shift. TMA
// loads from multiples of 16 bytes. Unless the types of a pixel take such a multiple,
// there are several copies of the image, each shifted by another pixel.
//
// In the transposed image, a horizontal tap moves a row by whole positions. If it moves
// it by a multiple of 8 positions (the terms of one wgmma), taps can read the same
// positions in shared memory (tile_taps > 0). Otherwise each tap loads its own.
//
// Blocks keep partial sums of all slabs of a phase, and a second kernel adds them up
// after the last slab.
#pragma once

#include <cstdint>

#include "cc/launch/capsule_conv_slabs.h"
#include "cuda/capsule_conv_routing/slabs/axes.cuh"

namespace capsops::capsule_conv_routing::slabs {

// Positions, the terms of the product, per stage.
constexpr int SumTerms(bool transposes) { return transposes ? 32 : 64; }

// The most stages that a ring holds besides the one that is multiplied.
constexpr int kMostSpan = 4;

// Kernel parameters for a slab. All slabs of a phase have the same tiles and blocks.
struct WeightSums {
  FrameAxis z;
  RowAxis y;
  bool transposes;  // whether there is a transposed copy
  int chunks;       // stages per row of the votes
  int types, columns, dim;
  int x_taps, x_stride, x_dilation, x_pad;
  // Transposed copies of the image: 1, 2 or 4. They sort the positions of a row by the
  // remainder of their pixel modulo the stride. For each remainder, copy n begins with
  // pixel n - lead.
  int copies, lead;
  // The product's columns, (tap, channel), are loaded in `boxes` boxes of `box`
  // channels, tap_boxes for each tap. Taps are sorted by y, x and z. If horizontal taps
  // share boxes, only (y, z) taps have their own.
  int box, boxes, tap_boxes;
  // A tile has `tile_boxes` boxes, or fewer in the last row tile, by 128 columns of the
  // votes. Split-K: `splits` blocks share a tile, or `last_splits` in the last row
  // tile.
  int products;  // columns of the product in a tile / 8
  int tile_boxes, row_tiles, column_tiles;
  // If horizontal taps share boxes (zeros if not), row tiles are sorted by taps:
  //   tile_taps     horizontal taps of a tile; the last ones may not exist
  //   tap_products  columns of each of them / 8
  //   move          positions from one tap to the next / 8
  //   span          how many stages further the last tap reads
  int tile_taps, tap_products, move, span;
  bool halved;  // at most 64 columns of the votes, enough for one consumer warpgroup
  int splits, last_splits;

  int64_t width;  // pixels of an image row
  int64_t pitch;  // elements from one transposed row to the next

  WeightSums(const Problem& p, const Slab& slab, int processors, bool transposes);

  // Divides the columns into tiles whose horizontal taps share boxes, if that is
  // possible and, by count, faster.
  void ShareBoxes(int processors);

  __host__ __device__ int terms() const { return SumTerms(transposes); }
  // Row tiles of the same horizontal taps.
  __host__ __device__ int tap_row_tiles() const {
    return (boxes + tile_boxes - 1) / tile_boxes;
  }
  // Without a transposed copy, boxes shift along an axis of the image that counts
  // positions or, if there is a stride, pixels. These return how far it advances for a
  // pixel and for a stage.
  __host__ __device__ int pixel_step() const { return x_stride == 1 ? types : 1; }
  __host__ __device__ int stage_step() const {
    return x_stride == 1 ? terms() : terms() / types * x_stride;
  }
  int steps() const { return z.count * y.count * chunks; }
  int blocks() const { return column_tiles * ((row_tiles - 1) * splits + last_splits); }
  // Pixels of an image row with the same remainder, and positions of such a row in a
  // copy.
  __host__ __device__ int64_t pixels() const {
    return (width + x_stride - 1) / x_stride;
  }
  __host__ __device__ int64_t line() const { return (lead + pixels()) * types; }
  // Elements of all partial sums, and of all transposed copies.
  int64_t parts() const { return int64_t{blocks()} * products * 256 * 4; }
  int64_t transposed() const {
    if (!transposes) return 0;
    return int64_t{dim} * z.read * y.read * x_stride * copies * pitch;
  }
};

// Transposes the rows that a slab reads. `image` is the first of them.
LaunchError TransposeImage(const GpuExec& exec, const char* op, const Problem& p,
                           const WeightSums& w, const float* image, float* transposed);

}  // namespace capsops::capsule_conv_routing::slabs
