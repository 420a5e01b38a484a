// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Patches of wgmma/product.cuh: planes as in capsule_conv/patch.cuh, but of 16 bytes
// per row, and with pixels sorted by residue class. With strides, the taps t, t +
// period, ... of an axis read pixels that no other tap reads; these pixels are a class.
// Within a class the pixels of neighboring lattice points are adjacent.
#pragma once

#include "cc/launch/round.h"
#include "cuda/capsule_conv/block.cuh"

namespace capsops::capsule_conv::wgmma {

// The residue classes of a patch along one axis.
struct ResidueClasses {
  int count, period;
  int advance;  // pixels between the reads of consecutive taps of a class
  int extent;   // pixels of a class

  explicit ResidueClasses(const Axis& axis) {
    const int common = static_cast<int>(Gcd(axis.stride, axis.step));
    period = axis.stride / common;
    advance = axis.step / common;
    count = axis.taps < period ? axis.taps : period;
    extent = axis.tile + (axis.taps - 1) / period * advance;
  }
};

// The residue classes of a patch along both axes.
struct SortedPatch {
  ResidueClasses vertical, horizontal;
  int pixels;  // pixels per class, with padding

  explicit SortedPatch(const Product& p)
      : vertical(p.vertical), horizontal(p.horizontal) {
    // Aligns each class to 128 bytes, as TMA requires of a box in shared memory.
    pixels = static_cast<int>(
        RoundUp(vertical.extent * horizontal.extent, 8 / Gcd(8, p.source.rows)));
  }

  // The offset in pixels from a lattice point's first tap to tap (y, x).
  __host__ __device__ int Shift(int y, int x) const {
    const int down = y / vertical.period, across = x / horizontal.period;
    const int of_class = (y - down * vertical.period) * horizontal.count + x -
                         across * horizontal.period;
    return of_class * pixels + down * vertical.advance * horizontal.extent +
           across * horizontal.advance;
  }
};

// Computes the patch of a tile; `pixels` is kTooLarge if no GPU has room for it. Planes
// are aligned to 32 words for TMA, and else padded against bank conflicts.
inline Patch UnitPatch(const Product& p, bool boxes) {
  const ResidueClasses down(p.vertical), across(p.horizontal);
  const int rows = p.source.rows;
  Patch patch{};
  patch.pixels = kTooLarge;
  if (1.0 * down.count * across.count * down.extent * across.extent * rows >=
      kTooLarge / 2) {
    return patch;
  }
  const SortedPatch sorted(p);
  patch.height = sorted.vertical.extent;
  patch.pitch = patch.row = sorted.horizontal.extent;
  patch.pixels = sorted.vertical.count * sorted.horizontal.count * sorted.pixels;
  const int bank = boxes ? 0 : 4;
  patch.plane = static_cast<int>(RoundUp(patch.pixels * rows * 4 - bank, 32)) + bank;
  patch.by_pitch = Divisor(patch.pitch);
  patch.by_row = Divisor(sorted.pixels);
  patch.by_rows = Divisor(rows);
  return patch;
}

// The first source pixel of a class in a block's tile.
struct ClassCoord {
  int y, x;

  __device__ ClassCoord(const Product& p, const BlockCoord& place, int down, int across)
      : y(place.y * p.vertical.stride + p.vertical.offset + down * p.vertical.step),
        x(place.x * p.horizontal.stride + p.horizontal.offset +
          across * p.horizontal.step) {}
};

// Writes the offset of each patch pixel in the image, or -1 outside of it.
__device__ inline void FillSortedPixelTable(const Product& p, const SortedPatch& sorted,
                                            const BlockCoord& place, int* pixels,
                                            int thread, int threads) {
  const Image& image = p.source;
  const int size = static_cast<int>(image.pixel());
  for (int i = thread; i < p.patch.pixels; i += threads) {
    int at, column;
    const int of_class = p.patch.by_row.Split(i, &at);
    const int row = p.patch.by_pitch.Split(at, &column);
    const int across = sorted.horizontal.count;
    const int down = across == 1 ? of_class : of_class / across;
    const ClassCoord from(p, place, down, of_class - down * across);
    const int y = from.y + row * p.vertical.stride;
    const int x = from.x + column * p.horizontal.stride;
    const bool inside =
        0 <= y && y < image.height && 0 <= x && x < image.width && row < p.patch.height;
    pixels[i] = inside ? (y * image.width + x) * size : -1;
  }
}

// The offset in units of a patch of unit i of a chunk's contraction [unit][tap].
__host__ __device__ inline int UnitOffset(const Product& p, const SortedPatch& sorted,
                                          int i) {
  const int taps = p.vertical.taps * p.horizontal.taps, unit = i / taps, tap = i % taps;
  const int y = tap / p.horizontal.taps, x = tap - y * p.horizontal.taps;
  return unit * (p.patch.plane / 4) + sorted.Shift(y, x) * p.source.rows;
}

// The two units of a step: their numbers and offsets. The smaller offset comes first,
// because a wgmma descriptor holds the distance between the two as an unsigned number;
// with strides, the offsets of consecutive taps need not ascend.
struct UnitStep {
  int numbers[2], at[2];

  // Past the last unit the filter is zero, and the last unit is read again.
  __host__ __device__ UnitStep(const Product& p, const SortedPatch& sorted, int step)
      : numbers{2 * step, 2 * step + 1} {
    const int last = p.vertical.taps * p.horizontal.taps * p.order.planes - 1;
    for (int n = 0; n < 2; ++n) {
      at[n] = UnitOffset(p, sorted, numbers[n] < last ? numbers[n] : last);
    }
    if (at[0] <= at[1]) return;
    const UnitStep other = *this;
    for (int n = 0; n < 2; ++n) {
      numbers[n] = other.numbers[1 - n];
      at[n] = other.at[1 - n];
    }
  }
};

}  // namespace capsops::capsule_conv::wgmma
