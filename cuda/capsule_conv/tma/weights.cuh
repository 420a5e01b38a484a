// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The weight gradient as work for tma/product.cuh. The rows of a tile are 128 elements
// of the input's pixels at one tap, the columns are elements of `grad`, and a step
// contracts a box of images and output pixels. In both tensors pixels are outermost, so
// the operands are MN-major. wgmma takes these from shared memory for 16-bit types
// only. For TF32, the rows are loaded to registers (LoadFragments), and `grad` is
// packed K-major.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/capsule_conv/tasks.cuh"
#include "cuda/capsule_conv/tma/steps.cuh"
#include "cuda/common/tensor_map.cuh"

namespace capsops::capsule_conv::tma {

// Boxes of images and output pixels.
struct PixelBoxes {
  int height, width;  // numbers of boxes along an image's axes
  int batch, y, x;    // extents of a box, powers of two
  int y_bits, x_bits;
};

// The coordinates of a tile, and its steps.
struct WeightCoord {
  int tap, channel, column_block;
  TileSteps steps;
};

// The weight gradient as ProductKernel's Work.
template <typename S>
struct WeightWork {
  using Place = WeightCoord;
  struct Tables {};

  static constexpr bool kPacked = std::is_same_v<S, float>;
  static constexpr Left kLeft = kPacked ? Left::kRegisters : Left::kRows;
  static constexpr int kColumnRank = kPacked ? 3 : 4;  // rank of `grad` as it is loaded

  static constexpr bool empty = false;  // no tile is empty
  static constexpr int tiles = 0;       // unused, as no tile is empty

  StreamKRanges ranges;
  int steps;  // multiplying steps per tile
  PixelBoxes boxes;
  int channels;  // input channels times pose inner
  int channel_blocks;
  int column_blocks;
  TapMoves moves;
  // Strides of the target: of a tap, a channel, and a row of a pose.
  int tap, channel, row;
  Divisor by_inner;
  Columns columns;

  __device__ void Count(Tables*) const {}
  __device__ void Accumulate(Tables*) const {}

  __device__ Place Find(const Tables& tables, int step) const {
    return At(tables, step / (steps + kStoreSteps));
  }
  __device__ Place At(const Tables&, int tile) const {
    Place place;
    const int blocks = channel_blocks * column_blocks;
    place.steps = {tile * (steps + kStoreSteps), steps};
    place.tap = tile / blocks;
    const int block = tile - place.tap * blocks;
    place.channel = block / column_blocks;
    place.column_block = block - place.channel * column_blocks;
    return place;
  }

  template <typename Shape>
  struct Loader {
    const WeightWork& work;
    int channel, column;
    int y, x;  // offset of the tap
    int step;

    __device__ Loader(const WeightWork& work, const Place& place, int step)
        : work(work),
          channel(place.channel * kRows),
          column(place.column_block * Shape::kColumns),
          step(step) {
      y = place.tap / work.moves.kernel_width;
      x = place.tap - y * work.moves.kernel_width;
      y = y * work.moves.dilation_y - work.moves.pad_y;
      x = x * work.moves.dilation_x - work.moves.pad_x;
    }

    __device__ void Load(const CUtensorMap& rows, const CUtensorMap& columns,
                         Barrier& barrier, char* stage) {
      const PixelBoxes& boxes = work.boxes;
      const int line = step / boxes.width, at_x = step - line * boxes.width;
      const int image = line / boxes.height, at_y = line - image * boxes.height;
#pragma unroll
      for (int n = 0; n < kRows / Shape::kDepth; ++n) {
        TmaLoad(rows, channel + n * Shape::kDepth,
                at_x * boxes.x * work.moves.stride_x + x,
                at_y * boxes.y * work.moves.stride_y + y, image * boxes.batch, barrier,
                stage + n * Shape::kDepth * kSwizzleBytes);
      }
      char* const right = stage + Shape::kRowBytes;
      if constexpr (kPacked) {
        TmaLoad(columns, 0, column, step, barrier, right);
      } else {
#pragma unroll
        for (int n = 0; n < Shape::kColumns; n += Shape::kDepth) {
          TmaLoad(columns, column + n, at_x * boxes.x, at_y * boxes.y,
                  image * boxes.batch, barrier, right + n * kSwizzleBytes);
        }
      }
      ++step;
    }
  };

  template <typename To>
  struct Target {
    const WeightWork& work;
    To* to;
    int first;

    __device__ Target(const WeightWork& work, const Place& place, To* to)
        : work(work),
          to(to + int64_t{place.tap} * work.tap),
          first(place.channel * kRows) {}
    __device__ To* Row(int row) const {
      const int at = first + row;
      if (at >= work.channels) return nullptr;
      int inner;
      const int channel = work.by_inner.Split(at, &inner);
      return to + int64_t{channel} * work.channel + inner * work.row;
    }
  };

  // The two rows of its warp's 16 that a lane holds; see LoadFragments.
  __device__ static int Upper(int lane) { return kPacked ? lane / 4 * 2 : lane / 4; }
  __device__ static int Lower(int lane) {
    return kPacked ? lane / 4 * 2 + 1 : lane / 4 + 8;
  }
};

// Loads the A fragments of a step's 4 products. The stage is swizzled and ordered
// [channel / 32][pixel][channel % 32]. To avoid bank conflicts, rows g and g + 8 of a
// warp are channels 2 g and 2 g + 1 of its 16, and terms t and t + 4 of a product are
// pixels 2 t and 2 t + 1 of its 8.
__device__ inline void LoadFragments(const char* stage, uint32_t (&rows)[4][4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int channel = warp % 2 * 16 + 2 * g;
  const char* const from = stage + warp / 2 * 32 * kSwizzleBytes;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int pixel = 8 * n + 2 * t + e;
      const uint2 pair = *reinterpret_cast<const uint2*>(
          from + pixel * kSwizzleBytes + (channel / 4 ^ pixel % 8) * 16 +
          channel % 4 * 4);
      rows[n][2 * e] = pair.x;
      rows[n][2 * e + 1] = pair.y;
    }
  }
}

}  // namespace capsops::capsule_conv::tma
