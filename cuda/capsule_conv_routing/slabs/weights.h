// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The gradient of shared weights with wgmma, in TF32 or of 16-bit types. A row of a
// slab has positions (pixel, type), which are the terms of the product
//   grad_weights[tap, channel, column] = sum over positions of
//       image[position + tap, channel] * votes_grad[position, column]
// wgmma takes 16-bit operands MN-major, so terms may lie apart, and the image is read
// as it is. TF32 operands must be K-major, with neighboring terms: a transposed copy of
// the image has the positions of a row next to each other, so that a tap is a shift.
// TMA loads from multiples of 16 bytes: if a pixel has fewer, there are copies for
// shifts by 0, 1 and so on. Blocks keep partial sums of all slabs of a phase; a second
// kernel adds them up after the last one.
#pragma once

#include <cstdint>

#include "cc/launch/capsule_conv_slabs.h"
#include "cuda/capsule_conv_routing/slabs/axes.cuh"

namespace capsops::capsule_conv_routing::slabs {

// The positions of a stage.
constexpr int SumTerms(bool transposes) { return transposes ? 32 : 64; }

// Kernel parameters, for slabs of a phase.
struct WeightSums {
  FrameAxis z;
  RowAxis y;
  bool transposes;  // whether there is a transposed copy
  int chunks;       // stages of a row
  int types, columns, dim;
  int x_taps, x_stride, x_dilation, x_pad;
  // Transposed copies of the image, 1, 2 or 4, in which the positions of a row are
  // sorted by the remainder of pixels modulo the stride. Copy n begins with pixel
  // n - lead of each remainder.
  int copies, lead;
  // Boxes of `box` channels of a tap are columns of the product. Taps are sorted by y,
  // x and z.
  int box, boxes, tap_boxes;
  // A tile has `tile_boxes` boxes, the last one of its row fewer, and 128 columns of
  // the votes. `splits` blocks share a tile, or `last_splits` the last one.
  int products;  // columns of the product in a tile / 8: 16 or 32
  int tile_boxes, row_tiles, column_tiles;
  bool halved;  // tiles have only 64 columns of the votes
  int splits, last_splits;

  int64_t width;  // pixels of an image row
  int64_t pitch;  // between transposed rows of one remainder

  WeightSums(const Problem& p, const Slab& slab, int processors, bool transposes);

  __host__ __device__ int terms() const { return SumTerms(transposes); }
  // Without a copy, the axis of the image along which taps across shift boxes counts
  // positions, or pixels if there is a stride. Return how far a pixel, and a stage,
  // advance on it.
  __host__ __device__ int pixel_step() const { return x_stride == 1 ? types : 1; }
  __host__ __device__ int stage_step() const {
    return x_stride == 1 ? terms() : terms() / types * x_stride;
  }
  int steps() const { return z.count * y.count * chunks; }
  int blocks() const { return column_tiles * ((row_tiles - 1) * splits + last_splits); }
  // The pixels of an image row that have one remainder, and the positions of a copy.
  __host__ __device__ int64_t pixels() const {
    return (width + x_stride - 1) / x_stride;
  }
  __host__ __device__ int64_t line() const { return (lead + pixels()) * types; }
  // The numbers of all partial sums.
  int64_t parts() const { return int64_t{blocks()} * products * 256 * 4; }
  int64_t transposed() const {
    if (!transposes) return 0;
    return int64_t{dim} * z.read * y.read * x_stride * copies * pitch;
  }
};

// Transposes the image from the first row on that a slab reads.
LaunchError TransposeImage(const GpuExec& exec, const char* op, const Problem& p,
                           const WeightSums& w, const float* image, float* transposed);
// `grads` holds the gradients of the slab's votes; `first` tells whether it is the
// first slab of its phase.
template <typename S>
LaunchError SumWeights(const GpuExec& exec, const char* op, const Problem& p,
                       const Slab& slab, bool first, const S* input, const S* grads,
                       S* transposed, float* parts);
template <typename S>
LaunchError FinishWeights(const GpuExec& exec, const char* op, const Problem& p,
                          const Slab& slab, const float* parts, S* grad_weights);

}  // namespace capsops::capsule_conv_routing::slabs
