// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Copies the pixels of a block and converts them to type A, such that the elements of a
// pose row, over all channels, are contiguous.
#pragma once

#include <cstdint>
#include <cstring>

#include "cc/cpu/capsule_conv_axis.h"
#include "cc/cpu/capsule_conv_blocks.h"
#include "cc/cpu/lanes.h"

namespace capsops::capsule_conv::CAPSOPS_ISA {

constexpr int64_t kCopyPrefetchDistance = 4096;  // in elements

// The pixels that a block reads along one axis. Pixel `n` of the patch is pixel (begin
// + n / step) * stride - pad + n % step of the image. With strides longer than the
// windows, the pixels between windows are omitted.
struct Patch {
  Patch(const AxisProblem& p, int64_t begin, int64_t end)
      : begin(begin),
        reach((p.kernel - 1) * p.dilation),
        step(Min(p.stride, reach + 1)),
        size((end - begin - 1) * step + reach + 1),
        stride(p.stride),
        pad(p.pad) {}

  int64_t Pixel(int64_t n) const {
    return (begin + n / step) * stride - pad + n % step;
  }

  int64_t begin, reach, step, size, stride, pad;
};

// Copies `count` elements of each pose row of a pixel, from element `first` on. Here a
// pose row is row r of the poses of all channels, with `columns` elements per channel.
// In `to`, pose rows are `stride` elements apart.
template <typename T, typename A>
void CopyPose(const T* pixel, int64_t rows, int64_t columns, int64_t first,
              int64_t count, A* to, int64_t stride) {
  if (rows == 1) {
    int64_t k = 0;
    for (; k + kLanes<A> <= count; k += kLanes<A>) {
      __builtin_prefetch(pixel + first + k + kCopyPrefetchDistance, 0, 2);
      Store(to + k, LoadWide<A>(pixel + first + k));
    }
    for (; k < count; ++k) to[k] = Widen(pixel[first + k]);
    return;
  }
  if (rows == 4 && columns == 4 && first % 4 == 0 && count % 4 == 0) {
    const T* from = pixel + first * 4;
    for (int64_t k = 0; k < count; k += 4, from += 16, to += 4) {
      __builtin_prefetch(from + kCopyPrefetchDistance, 0, 2);
      A pose[16];
      for (int n = 0; n < 16; ++n) pose[n] = Widen(from[n]);
      std::memcpy(to, pose, 4 * sizeof(A));
      std::memcpy(to + stride, pose + 4, 4 * sizeof(A));
      std::memcpy(to + 2 * stride, pose + 8, 4 * sizeof(A));
      std::memcpy(to + 3 * stride, pose + 12, 4 * sizeof(A));
    }
    return;
  }
  for (int64_t row = 0; row < rows; ++row, to += stride) {
    int64_t column = first % columns;
    const T* from = pixel + (first / columns * rows + row) * columns + column;
    for (int64_t k = 0; k < count; ++k) {
      to[k] = Widen(*from++);
      if (++column < columns) continue;
      column = 0;
      from += (rows - 1) * columns;
    }
  }
}

// Copies elements [first, first + count) of the pose rows of all pixels of a block to
// [panel][pixel][pose row][element]. A panel holds `width` elements of each pose row;
// the last one is padded with zeros.
template <typename T, typename A>
void CopyPixels(const Problem& p, const Image& image, const Block& block, int64_t first,
                int64_t count, int64_t width, const T* from, A* to) {
  const int64_t size = image.channels * CapsuleSize(p, image);
  const int64_t pixel = p.pose_rows * width, panel = block.pixels() * pixel;
  for (int64_t n = block.sample; n < block.sample + block.samples; ++n) {
    for (int64_t y = block.y_begin; y < block.y_end; ++y) {
      const T* next =
          from + ((n * image.height + y) * image.width + block.x_begin) * size;
      for (int64_t x = block.x_begin; x < block.x_end; ++x, next += size, to += pixel) {
        A* place = to;
        for (int64_t begin = 0; begin < count; begin += width, place += panel) {
          const int64_t used = Min(width, count - begin);
          CopyPose(next, p.pose_rows, image.columns, first + begin, used, place, width);
          if (used == width) continue;
          for (int64_t row = 0; row < p.pose_rows; ++row) {
            for (int64_t k = used; k < width; ++k) place[row * width + k] = 0;
          }
        }
      }
    }
  }
}

}  // namespace capsops::capsule_conv::CAPSOPS_ISA
