// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The image operand of the tensor-core kernels. The contraction is cut into quads: 4
// adjacent elements of a pose row of one channel. A block copies the pixels that its
// tile reads, the patch, to shared memory, one plane for each quad:
//   [quad][pixel][pose row] of 4 elements.
// There the rows of a matrix product, (pixel, pose row), are adjacent, and every filter
// tap is a constant offset. One patch thus serves all taps, and no im2col buffer is
// needed. For strided convolutions the columns of a patch are sorted by their remainder
// modulo the stride, so that the pixels that one tap reads are adjacent.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>

#include "cuda/common/divisor.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"

namespace capsops::capsule_conv {

constexpr int kQuad = 4;

// Words, here and elsewhere, have 32 bits.
template <typename S>
constexpr int kQuadWords = kQuad * sizeof(S) / 4;

// A tensor [batch, height, width, channels, depth, rows, columns] of poses.
struct Image {
  int64_t batch;
  int height, width, channels, depth, rows, columns;

  __host__ __device__ int quads() const { return (columns + kQuad - 1) / kQuad; }
  __host__ __device__ int planes() const { return channels * quads(); }
  __host__ __device__ int pose() const { return rows * columns; }
  __host__ __device__ int64_t pixel() const {
    return int64_t{channels} * depth * pose();
  }
};

// One spatial axis of a product. Its lattice points are the target pixels that the
// product computes: all of them, or one phase of an input gradient. For each tap <
// taps, point i reads source pixel i * stride + offset + tap * step, which is
// multiplied by filter tap first + tap * every.
struct Axis {
  int points;  // lattice points
  int stride, offset, step, taps;
  int first, every;
  int tile, tiles;  // lattice points per block, and number of blocks

  // The extent in pixels that `n` points with `n_taps` taps read.
  __host__ __device__ int Reach(int n, int n_taps) const {
    return (n - 1) * stride + (n_taps - 1) * step + 1;
  }
};

// The shape of a patch in shared memory.
struct Patch {
  int height, pitch;  // rows; pixels of one remainder in a row
  int pixels;         // height * stride * pitch
  int row;            // pixels from a lattice row to the next
  int plane;          // words of a plane, padded against bank conflicts
  Divisor by_pitch, by_row, by_rows;

  // The offset in pixels from a lattice point's first tap to tap (y, x).
  __host__ __device__ int Shift(const Axis& vertical, const Axis& horizontal, int y,
                                int x) const {
    const int column = x * horizontal.step;
    return (y * vertical.step * horizontal.stride + column % horizontal.stride) *
               pitch +
           column / horizontal.stride;
  }
};

// A plane of this many rows fits neither in a GPU's shared memory nor in a Divisor.
constexpr int kTooLarge = 1 << 15;

// Computes a tile's patch. The pitch of planes is `bank` words past a multiple of 32,
// so that fragments, which a warp loads from several planes, have no bank conflicts.
template <typename S>
inline Patch MakePatch(const Axis& vertical, const Axis& horizontal, int rows,
                       int y_taps, int x_taps, int bank) {
  Patch patch{};
  const int stride = horizontal.stride;
  patch.height = vertical.Reach(vertical.tile, y_taps);
  patch.pitch = (horizontal.Reach(horizontal.tile, x_taps) - 1) / stride + 1;
  const int64_t pixels = int64_t{patch.height} * stride * patch.pitch;
  if (pixels * rows >= kTooLarge) {
    patch.pixels = kTooLarge;
    patch.plane = kTooLarge * kTooLarge;
    return patch;
  }
  patch.pixels = static_cast<int>(pixels);
  patch.row = vertical.stride * stride * patch.pitch;
  // The last tile of 16 rows may begin at the last row.
  const int length = (patch.pixels * rows + 16) * kQuadWords<S>;
  patch.plane = (length - bank + 31) / 32 * 32 + bank;
  patch.by_pitch = Divisor(patch.pitch);
  patch.by_row = Divisor(stride * patch.pitch);
  patch.by_rows = Divisor(rows);
  return patch;
}

// Writes the offset of each patch pixel in the image, or -1 outside of it. The tile's
// first lattice point reads from pixel (y, x) on.
__device__ inline void FillPixelTable(const Patch& patch, const Image& image,
                                      int stride, int y, int x, int* pixels) {
  const int size = static_cast<int>(image.pixel());
  for (int i = threadIdx.x, threads = blockDim.x; i < patch.pixels; i += threads) {
    int column, at;
    const int row = patch.by_row.Split(i, &column);
    const int remainder = patch.by_pitch.Split(column, &at);
    const int from_y = y + row, from_x = x + at * stride + remainder;
    const bool inside =
        0 <= from_y && from_y < image.height && 0 <= from_x && from_x < image.width;
    pixels[i] = inside ? (from_y * image.width + from_x) * size : -1;
  }
}

// Copies planes to a patch with cp.async, a few pixels at a time, so that a main loop
// can spread the copies. A thread copies one pose row of one plane, of every step_-th
// pixel, so that addresses need little arithmetic. The block must have at least as many
// threads as a pixel has rows in all of these planes.
template <typename S>
class PatchLoader {
 public:
  // `from` is the image's first pixel at its depth. `planes` planes are copied
  // together.
  __device__ PatchLoader(const Patch& patch, const Image& image, const int* pixels,
                         const S* from, int planes)
      : pixels_(pixels), from_(from) {
    const int pieces = planes * image.rows;  // copies per pixel
    step_ = blockDim.x / pieces;
    first_ = threadIdx.x / pieces;
    plane_ = patch.by_rows.Split(threadIdx.x - first_ * pieces, &row_);
    if (first_ >= step_) first_ = patch.pixels;  // idle thread
    end_ = cursor_ = patch.pixels;
  }

  // Starts on the planes from `plane` on. Planes past the last, pixels outside of the
  // image and missing elements of a quad become zeros.
  __device__ void Begin(const Patch& patch, const Image& image, int plane,
                        uint32_t* to) {
    const int quads = image.quads(), at = plane + plane_;
    const int channel = quads == 1 ? at : at / quads;
    const int column = (at - channel * quads) * kQuad;
    there_ = at < image.planes();
    width_ = there_ ? min(image.columns - column, kQuad) : 0;
    source_ = from_ + (there_ ? int64_t{channel} * image.depth * image.pose() +
                                    row_ * image.columns + column
                              : 0);
    row_words_ = image.rows * kQuadWords<S>;
    word_ = to + plane_ * patch.plane + row_ * kQuadWords<S> + first_ * row_words_;
    cursor_ = first_;
    whole_ = image.columns % kQuad == 0;
  }

  // Issues the copies of up to `count` more pixels per thread.
  __device__ void Load(int count) {
    for (; count > 0 && cursor_ < end_; --count) {
      const int pixel = pixels_[cursor_];
      if (whole_) {
        constexpr int kBytes = kQuadWords<S> * 4;
        const bool zero = pixel < 0 || !there_;
        __pipeline_memcpy_async(word_, zero ? from_ : source_ + pixel, kBytes,
                                zero ? kBytes : 0);
      } else {
        Pack<S, kQuad> values{};
        for (int e = 0; e < kQuad; ++e) {
          if (pixel >= 0 && e < width_) values.at[e] = source_[pixel + e];
        }
        *reinterpret_cast<Pack<S, kQuad>*>(word_) = values;
      }
      cursor_ += step_;
      word_ += step_ * row_words_;
    }
  }

  // The most pixels that a thread copies.
  __device__ int share() const { return (end_ + step_ - 1) / step_; }

 private:
  const int* const pixels_;
  const S* const from_;
  const S* source_;
  uint32_t* word_;
  int step_, first_, plane_, row_, row_words_, width_, cursor_, end_;
  bool there_, whole_;
};

// The position of a patch pixel relative to the patch's first pixel: the offset in
// elements, modulo 2^32, and row << 16 | column.
struct PatchPixel {
  uint32_t element, place;

  __device__ static PatchPixel Of(const Patch& patch, const Image& image, int stride,
                                  int i) {
    int column, at;
    const int y = patch.by_row.Split(i, &column);
    const int remainder = patch.by_pitch.Split(column, &at);
    const uint32_t x = at * stride + remainder;
    return {(uint32_t(y) * image.width + x) * static_cast<uint32_t>(image.pixel()),
            uint32_t(y) << 16 | x};
  }
};

// Copies planes to a patch with cp.async, all pixels in one call. A thread copies one
// pose row of one plane at a time, of every step_-th pixel.
template <typename S>
class PlaneLoader {
 public:
  // Takes `planes` planes from `first_plane` on. The block must have at least
  // image.rows threads; it loops over planes if it has too few for all of them.
  __device__ PlaneLoader(const Image& image, int first_plane, int planes)
      : first_plane_(first_plane), planes_(planes) {
    planes_at_once_ = max(min(static_cast<int>(blockDim.x) / image.rows, planes), 1);
    step_ = blockDim.x / (planes_at_once_ * image.rows);
    const int plane = threadIdx.x / image.rows;
    row_ = threadIdx.x - plane * image.rows;
    first_ = plane / planes_at_once_;
    plane_ = first_ < step_ ? plane - first_ * planes_at_once_ : planes;  // idle
  }

  // Copies the patch that begins at pixel (y, x) of the image at `from`, and that
  // covers height x width pixels at most. Pixels outside of the image and missing
  // elements of a quad become zeros.
  __device__ void Load(const Patch& patch, const Image& image, const PatchPixel* pixels,
                       const S* from, int y, int x, int height, int width,
                       uint32_t* to) const {
    const int quads = image.quads();
    const uint32_t origin =
        (uint32_t(y) * image.width + x) * static_cast<uint32_t>(image.pixel());
    const int jump = step_ * image.rows * kQuadWords<S>;
    const bool whole = image.columns % kQuad == 0 && y >= 0 && x >= 0 &&
                       y + height <= image.height && x + width <= image.width;
    const PatchPixel* const end = pixels + patch.pixels;
    for (int plane = plane_; plane < planes_; plane += planes_at_once_) {
      const int at = first_plane_ + plane;
      const int channel = quads == 1 ? at : at / quads;
      const int column = (at - channel * quads) * kQuad;
      const S* const source =
          from + channel * image.depth * image.pose() + row_ * image.columns + column;
      uint32_t* word =
          to + plane * patch.plane + (first_ * image.rows + row_) * kQuadWords<S>;
      const PatchPixel* pixel = pixels + first_;
      if (whole) {
        // Without bounds checks, the reads of `pixels` can be batched.
        constexpr int kUnroll = 4;
        for (; pixel + (kUnroll - 1) * step_ < end; pixel += kUnroll * step_) {
          uint32_t element[kUnroll];
#pragma unroll
          for (int n = 0; n < kUnroll; ++n) element[n] = pixel[n * step_].element;
#pragma unroll
          for (int n = 0; n < kUnroll; ++n, word += jump) {
            __pipeline_memcpy_async(word,
                                    source + static_cast<int>(origin + element[n]),
                                    kQuadWords<S> * 4);
          }
        }
      }
      const int count = min(image.columns - column, kQuad);
      for (; pixel < end; pixel += step_, word += jump) {
        const PatchPixel of = *pixel;
        const bool inside =
            static_cast<uint32_t>(y + (of.place >> 16)) < uint32_t(image.height) &&
            static_cast<uint32_t>(x + (of.place & 0xffff)) < uint32_t(image.width);
        const S* const at =
            inside ? source + static_cast<int>(origin + of.element) : from;
        if (image.columns % kQuad == 0) {
          constexpr int kBytes = kQuadWords<S> * 4;
          __pipeline_memcpy_async(word, at, kBytes, inside ? 0 : kBytes);
        } else {
          LoadPartialQuad(at, inside ? count : 0, word);
        }
      }
    }
  }

 private:
  // Copies a quad of `count` elements. Not inlined, as few pose shapes need it.
  static __device__ __noinline__ void LoadPartialQuad(const S* from, int count,
                                                      uint32_t* word) {
    Pack<S, kQuad> values{};
#pragma unroll
    for (int e = 0; e < kQuad; ++e) {
      if (e < count) values.at[e] = from[e];
    }
    *reinterpret_cast<Pack<S, kQuad>*>(word) = values;
  }

  int first_plane_, planes_, planes_at_once_, step_, first_, plane_, row_;
};

// Copies count * kWords words, a multiple of 4, with cp.async.
template <int kWords, int kThreads>
__device__ void CopyWordsAsync(const uint32_t* from, int count, uint32_t* to) {
  constexpr int kEach = kThreads * 4;
  const int words = count * kWords;
#pragma unroll 4
  for (int at = threadIdx.x * 4; at < words; at += kEach) {
    __pipeline_memcpy_async(to + at, from + at, 16);
  }
}

}  // namespace capsops::capsule_conv
