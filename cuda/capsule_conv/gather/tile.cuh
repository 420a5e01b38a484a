// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Convolution of one-row poses with few channels: a matrix product whose contraction is
// so short that each block holds all of it. A block copies the patch of the image that
// its tile reads to shared memory, nearly in the image's own layout. The operand for a
// pixel and a term is then the word at
//   (offset of the pixel's first tap) + (offset of the term from there).
// Both offsets come from tables, and lanes gather fragments of mma.sync word by word.
#pragma once

#include <cstdint>

#include "cuda/capsule_conv/block.cuh"
#include "cuda/common/divisor.cuh"
#include "cuda/common/tensor_cores.cuh"
#include "cuda/common/types.cuh"

namespace capsops::capsule_conv::gather {

// Kernel parameters: the convolution and its division into tiles. A term is (tap,
// channel, inner), a column (output channel, pose column).
struct Tiling {
  Image input, output;
  Axis vertical, horizontal;
  Filter filter;
  int pixel;         // elements per input pixel
  int terms, steps;  // steps of 8 terms
  int columns;
  int points, slots;  // pixels per tile; entries of the table of pixels
  int pixel_words;    // words per patch pixel, at least `pixel`
  int pitch, patch;   // words per patch row, and in total
  int64_t tiles;      // tiles of all images
  int column_blocks;
  Divisor by_pixel, by_pitch, by_tile;

  // The offset in words from a pixel's first term to `term`.
  __device__ int Shift(int term) const {
    if (term >= terms) return 0;  // multiplied by zero, or not stored
    const int tap = term / pixel, y = tap / horizontal.taps;
    return y * vertical.step * pitch +
           (tap - y * horizontal.taps) * horizontal.step * pixel_words + term % pixel;
  }

  // The offset of a weight in the filter is TermElement + ColumnElement.
  __device__ int TermElement(int term) const {
    const int tap = term / pixel, at = term % pixel, channel = at / filter.inner;
    return static_cast<int>(tap * filter.tap + channel * filter.channel +
                            (at - channel * filter.inner) * filter.element);
  }
  __device__ int ColumnElement(int column) const {
    const int channel = column / filter.out_inner;
    return static_cast<int>(channel * filter.out_channel +
                            (column - channel * filter.out_inner) * filter.out_element);
  }
};

// A tile's coordinates.
struct TileCoord {
  int64_t image;
  int y, x;  // first output pixel

  __device__ TileCoord(const Tiling& tiling, int64_t tile) {
    const int across = tiling.horizontal.tiles;
    const int of_image = across * tiling.vertical.tiles;
    image = tile / of_image;
    const int rest = static_cast<int>(tile - image * of_image);
    y = rest / across * tiling.vertical.tile;
    x = rest % across * tiling.horizontal.tile;
  }
};

// A pixel of a tile.
struct Point {
  int from;  // word of the patch where its first tap is
  int to;    // offset in the output image, or -1 if it does not exist
};

// Fills the table of a tile's pixels. Entries past the last pixel have no target.
__device__ inline void FillPointTable(const Tiling& tiling, const TileCoord& place,
                                      Point* points) {
#pragma unroll 1
  for (int i = threadIdx.x; i < tiling.slots; i += blockDim.x) {
    int x;
    const int y = tiling.by_tile.Split(min(i, tiling.points - 1), &x);
    const int to_y = place.y + y, to_x = place.x + x;
    const bool there =
        i < tiling.points && to_y < tiling.output.height && to_x < tiling.output.width;
    points[i] = {y * tiling.vertical.stride * tiling.pitch +
                     x * tiling.horizontal.stride * tiling.pixel_words,
                 there ? (to_y * tiling.output.width + to_x) * tiling.columns : -1};
  }
}

// Copies a tile's patch to shared memory, converted to float and prepared for rounding
// to TF32, with zeros outside of the image.
template <Tf32 kTf32, typename S>
__device__ void LoadPatch(const Tiling& tiling, const TileCoord& place, const S* input,
                          float* patch) {
  const int y = place.y * tiling.vertical.stride + tiling.vertical.offset;
  const int x = place.x * tiling.horizontal.stride + tiling.horizontal.offset;
  input += place.image * tiling.input.height * tiling.input.width * tiling.pixel;
#pragma unroll 4
  for (int i = threadIdx.x; i < tiling.patch; i += blockDim.x) {
    int at, element;
    const int from_y = y + tiling.by_pitch.Split(i, &at);
    const int from_x = x + tiling.by_pixel.Split(at, &element);
    const bool inside = 0 <= from_y && from_y < tiling.input.height && 0 <= from_x &&
                        from_x < tiling.input.width && element < tiling.pixel;
    const int from = (from_y * tiling.input.width + from_x) * tiling.pixel + element;
    patch[i] = inside ? Prepare<kTf32>(Widen(input[from])) : 0;
  }
}

// Sets an operand's element from a word that LoadPatch prepared.
template <int N, Tf32 kTf32>
__device__ void SetWord(int n, float x, Operand<N, kTf32>* operand) {
  if constexpr (kTf32 == Tf32::kSplit) {
    operand->SetWithoutOverflow(n, x);
  } else {
    operand->SetPrepared(n, x);
  }
}

}  // namespace capsops::capsule_conv::gather
