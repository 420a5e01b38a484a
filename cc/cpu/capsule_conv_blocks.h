// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Index arithmetic of convolutions that work block by block: the pixels that each tap
// connects, and the division of images into blocks of pixels.
#pragma once

#include <cstdint>

#include "cc/cpu/capsule_conv_axis.h"

namespace capsops::capsule_conv::CAPSOPS_ISA {

constexpr int64_t kTileTerms = 256;   // terms per partial sum in registers, at least
constexpr int64_t kGroupVectors = 8;  // most vectors of columns per task
constexpr int64_t kBlockBytes = 512 << 10;  // sums of a task, in the L2 cache

// The pixels that one tap connects along one axis: for i < count, it adds to pixel
// to + i * to_step of the image that is written. The first pixel that is read is
// `from`.
struct TapSpan {
  int64_t count, from, to, to_step;
};

// Returns the span of a tap for the pixels [begin, end) of the image that is written:
// the output or, with kGradient, the input.
template <bool kGradient>
TapSpan TapSpanOf(const AxisProblem& p, int64_t tap, int64_t begin, int64_t end) {
  const int64_t shift = tap * p.dilation - p.pad;
  const int64_t low = kGradient ? begin : 0, high = kGradient ? end : p.in;
  const int64_t first =
      Max(kGradient ? 0 : begin, CeilDivide(Max(low - shift, 0), p.stride));
  const int64_t last =
      Min(kGradient ? p.out : end, CeilDivide(Max(high - shift, 0), p.stride));
  const int64_t count = Max(last - first, 0), in = first * p.stride + shift;
  if (kGradient) return {count, first, in, p.stride};
  return {count, in, first, 1};
}

// A box of pixels of some samples.
struct Block {
  int64_t sample, samples;
  int64_t y_begin, y_end;
  int64_t x_begin, x_end;

  int64_t pixels() const { return samples * (y_end - y_begin) * (x_end - x_begin); }
  // Returns the index of a pixel within the block; `n` counts from its first sample.
  int64_t IndexOf(int64_t n, int64_t y, int64_t x) const {
    return (n * (y_end - y_begin) + y - y_begin) * (x_end - x_begin) + x - x_begin;
  }
};

// Addresses of a block's pixels in memory.
template <typename A>
struct PixelView {
  A* first;
  int64_t sample, row, pixel;  // strides in elements

  A* At(int64_t n, int64_t y, int64_t x) const {
    return first + n * sample + y * row + x * pixel;
  }
};

// The division of an image into blocks.
struct Blocks {
  // Each block has at most about `pixels` pixels, and is at most `widest` pixels wide.
  Blocks(int64_t batch, int64_t height, int64_t width, int64_t pixels, int64_t widest)
      : batch(batch),
        height(height),
        width(width),
        samples(CeilDivide(batch, Max(pixels / (height * width), 1))),
        columns(CeilDivide(width, Min(widest, width))),
        rows(CeilDivide(height, Max(pixels / CeilDivide(width, columns), 1))) {}
  Blocks(int64_t batch, int64_t height, int64_t width, int64_t pixels)
      : Blocks(batch, height, width, pixels, pixels) {}

  int64_t count() const { return samples * rows * columns; }
  // Returns the number of pixels of the largest block.
  int64_t most() const {
    return CeilDivide(batch, samples) * CeilDivide(height, rows) *
           CeilDivide(width, columns);
  }
  Block At(int64_t index) const {
    const int64_t x = index % columns, y = index / columns % rows;
    const int64_t n = index / columns / rows;
    const int64_t sample = PartBegin(batch, n, samples);
    return {sample,
            PartBegin(batch, n + 1, samples) - sample,
            PartBegin(height, y, rows),
            PartBegin(height, y + 1, rows),
            PartBegin(width, x, columns),
            PartBegin(width, x + 1, columns)};
  }

  int64_t batch, height, width;
  int64_t samples, columns, rows;  // number of parts along each axis
};

// The pixels of the written image, along one axis, for which every tap reads a pixel
// inside the image.
template <bool kGradient>
Range InsideOf(const AxisProblem& p) {
  const int64_t reach = (p.kernel - 1) * p.dilation;
  if (kGradient) return {Max(reach - p.pad, 0), Min(p.out - p.pad, p.in)};
  return {CeilDivide(Max(p.pad, 0), p.stride),
          Min(CeilDivide(Max(p.in + p.pad - reach, 0), p.stride), p.out)};
}

// Splits a block into the rectangle that is inside both ranges and up to four others,
// and calls visit(part, is_inside) for each.
template <typename Visit>
void ForParts(const Block& block, const Range& y, const Range& x, const Visit& visit) {
  const int64_t y_begin = Max(block.y_begin, y.begin), y_end = Min(block.y_end, y.end);
  const int64_t x_begin = Max(block.x_begin, x.begin), x_end = Min(block.x_end, x.end);
  if (y_begin >= y_end || x_begin >= x_end) return visit(block, false);
  const auto visit_part = [&](int64_t y_begin, int64_t y_end, int64_t x_begin,
                              int64_t x_end, bool is_inside) {
    const Block part{block.sample, block.samples, y_begin, y_end, x_begin, x_end};
    if (part.pixels() > 0) visit(part, is_inside);
  };
  visit_part(block.y_begin, y_begin, block.x_begin, block.x_end, false);
  visit_part(y_end, block.y_end, block.x_begin, block.x_end, false);
  visit_part(y_begin, y_end, block.x_begin, x_begin, false);
  visit_part(y_begin, y_end, x_end, block.x_end, false);
  visit_part(y_begin, y_end, x_begin, x_end, true);
}

// Returns the number of terms of a partial sum, out of `all` terms. Rounding errors
// grow with the terms of a partial sum and with the number of partial sums, so both are
// kept near the square root of `all`.
inline int64_t TermsOfPart(int64_t all) {
  int64_t terms = kTileTerms;
  while (terms * terms < all) terms *= 2;
  return terms;
}

}  // namespace capsops::capsule_conv::CAPSOPS_ISA
