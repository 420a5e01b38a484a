// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The pixels of a register tile of a convolution over poses of one row. For each tap, a
// tile finds pointers to the pixels that it reads, or to zeros for pixels outside the
// image. So images are never copied, for any padding, strides and dilations.
// Coordinates are computed for a vector of pixels at a time.
#pragma once

#include <cstdint>
#include <cstring>

#include "cc/cpu/capsule_conv_axis.h"
#include "cc/cpu/column_tile.h"

namespace capsops::capsule_conv::CAPSOPS_ISA {

// Returns whether any lane is not zero.
CAPSOPS_INLINE bool Any(Vector<uint64_t> v) {
  uint64_t lanes[kLanes<uint64_t>], any = 0;
  Store(lanes, v);
  for (uint64_t lane : lanes) any |= lane;
  return any != 0;
}

// The size of an image, with `numbers` elements per pixel.
struct Pixmap {
  int64_t height, width, numbers;
};

// Consecutive pixels of one phase of the written image.
template <typename T>
struct Tile {
  // One integer per pixel. Negative coordinates wrap around to large numbers, so one
  // comparison tells whether a coordinate is inside the image.
  using Numbers = Vector<uint64_t>;
  static constexpr int kVectors = kTileSlots / kLanes<uint64_t>;

  Tile() = default;
  // Pixels [pixel, pixel + count) of `samples` samples from first_sample on: one sample
  // after the other or, if `by_pixel`, a pixel of all samples before the next pixel.
  Tile(const Pixmap& read, const Pixmap& written, const Axis& y_axis,
       const Axis& x_axis, int64_t first_sample, int64_t samples, bool by_pixel,
       int64_t pixel, int64_t count)
      : count(count) {
    const uint64_t size = by_pixel ? samples : x_axis.count;
    const uint64_t next_size = by_pixel ? x_axis.count : y_axis.count;
    const uint64_t next = pixel / size;
    for (int v = 0; v < kVectors; ++v) {
      uint64_t index[kLanes<uint64_t>];
      for (int n = 0; n < kLanes<uint64_t>; ++n) index[n] = v * kLanes<uint64_t> + n;
      const Numbers slot = Load(index);
      // Split each pixel's index into coordinates, the fastest first, by repeated
      // subtraction: there is no vector instruction for integer division.
      Numbers first = slot + (pixel - next * size),
              second = Numbers{} + next % next_size;
      Numbers third = Numbers{} + next / next_size;
      while (Any((Numbers)(first >= size))) {
        const Numbers carry = (Numbers)(first >= size);
        first -= carry & size;
        second -= carry;
        const Numbers carry_second = (Numbers)(second >= next_size);
        second -= carry_second & next_size;
        third -= carry_second;
      }
      const Numbers sample = (by_pixel ? first : third) + first_sample;
      const Numbers tx = by_pixel ? second : first, ty = by_pixel ? third : second;
      y[v] = ty * y_axis.step + y_axis.offset;
      x[v] = tx * x_axis.step + x_axis.offset;
      from[v] = ((sample * read.height + y[v]) * read.width + x[v]) *
                (read.numbers * sizeof(T));
      Store(to + v * kLanes<uint64_t>,
            ((sample * written.height + ty * y_axis.stride + y_axis.first) *
                 written.width +
             tx * x_axis.stride + x_axis.first) *
                written.numbers);
      // Unused slots get a row so far away that no tap reads the image.
      const Numbers used = (Numbers)(slot < count);
      y[v] = (y[v] & used) | (~used & uint64_t{1} << 62);
      x[v] &= used;
    }
  }

  // Sets `pixels` to the addresses of the pixels `down` rows below and `right` columns
  // to the right of the pixels that the first tap reads, or to `zeros` for pixels
  // outside the image, which begins at `numbers`. Returns whether any pixel is inside.
  bool Find(const Pixmap& image, uint64_t down, uint64_t right, const T* numbers,
            const void* zeros, const T** pixels) const {
    const uint64_t height = image.height, width = image.width;
    const uint64_t first = reinterpret_cast<uintptr_t>(numbers) +
                           (down * image.width + right) * image.numbers * sizeof(T);
    const uint64_t outside = reinterpret_cast<uintptr_t>(zeros);
    Numbers any = {};
    for (int v = 0; v < kVectors; ++v) {
      const Numbers inside = (Numbers)((y[v] + down < height) & (x[v] + right < width));
      const Numbers found = ((from[v] + first) & inside) | (outside & ~inside);
      std::memcpy(pixels + v * kLanes<uint64_t>, &found, sizeof(found));
      any |= inside;
    }
    return Any(any);
  }

  // Returns whether, for all pixels, the columns from the one that the first tap reads
  // to `reach` further right are inside the image.
  bool AreInsideRow(const Pixmap& image, uint64_t reach) const {
    const uint64_t width = image.width;
    Numbers beyond = {};
    for (int v = 0; v < kVectors; ++v) {
      beyond |= (Numbers)((x[v] >= width) | (x[v] + reach >= width));
    }
    return !Any(beyond);
  }

  int64_t count = 0;
  // The number of tiles of `count` pixels that follow each other in the row, starting
  // with this one, and share its pointers at an offset. If there are several, no tap
  // reads left or right of the image.
  int64_t span = 1;
  Numbers y[kVectors], x[kVectors];  // the pixel that the first tap reads
  Numbers from[kVectors];            // byte offset of this pixel
  uint64_t to[kTileSlots];           // offset of the written pixel in elements
};

// Returns for how many pixels, starting with pixel t of an axis, all taps read inside
// an image of `size` pixels.
inline int64_t PixelsInside(const Axis& axis, int64_t size, int64_t t) {
  const int64_t lowest = t * axis.step + axis.lowest();
  if (lowest < 0) return 0;
  const int64_t last = (size - 1 - lowest - axis.reach()) / axis.step;
  return Min(Max(last + 1, 0), axis.count - t);
}

}  // namespace capsops::capsule_conv::CAPSOPS_ISA
