// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The weight gradient, for the kernel of product.cuh. Rows of a tile are 128 channels
// of the input by one tap, and a step contracts a box of images and output pixels.
// Products of 16-bit types take both operands as they lie in memory. Those of TF32 want
// terms next to each other, so there the rows come from registers, and `grad` is
// packed.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_TMA_WEIGHTS_CUH_
#define CAPSOPS_CUDA_CAPSULE_CONV_TMA_WEIGHTS_CUH_

#include <cstdint>
#include <type_traits>

#include "cuda/capsule_conv/tasks.cuh"
#include "cuda/capsule_conv/tma/steps.cuh"
#include "cuda/common/tensor_map.cuh"

namespace capsops::capsule_conv::tma {

// A box of images and output pixels, and how many of them there are.
struct PixelBoxes {
  int height, width;  // boxes
  int batch, y, x;    // extents of one, powers of two
  int y_bits, x_bits;
};

struct WeightPlace {
  int tap, channel, column_block;
  TileSteps steps;
};

template <typename S>
struct WeightWork {
  using Place = WeightPlace;
  struct Tables {};

  static constexpr bool kPacked = std::is_same_v<S, float>;
  static constexpr Left kLeft = kPacked ? Left::kRegisters : Left::kRows;
  static constexpr int kColumnRank = kPacked ? 3 : 4;  // of `grad` as it is read

  static constexpr bool empty = false;  // no tile is
  static constexpr int tiles = 0;       // as `empty` says, nobody asks

  Stretches stretches;
  int steps;  // of a tile that multiply
  PixelBoxes boxes;
  int channels;  // of the input, with the poses' columns
  int channel_blocks;
  int column_blocks;
  TapMoves moves;
  // Elements of the target: of a tap, of a channel, of a row of a pose.
  int tap, channel, row;
  Divisor by_inner;
  Columns columns;

  __device__ void Count(Tables*) const {}
  __device__ void AddUp(Tables*) const {}

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
    int y, x;  // by which the tap moves
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

    __device__ void Bring(const CUtensorMap& rows, const CUtensorMap& columns,
                          Barrier& barrier, char* stage) {
      const PixelBoxes& boxes = work.boxes;
      const int line = step / boxes.width, at_x = step - line * boxes.width;
      const int image = line / boxes.height, at_y = line - image * boxes.height;
#pragma unroll
      for (int n = 0; n < kRows / Shape::kDepth; ++n) {
        CopyBox(rows, channel + n * Shape::kDepth,
                at_x * boxes.x * work.moves.stride_x + x,
                at_y * boxes.y * work.moves.stride_y + y, image * boxes.batch, barrier,
                stage + n * Shape::kDepth * kBoxBytes);
      }
      char* const right = stage + Shape::kRowBytes;
      if constexpr (kPacked) {
        CopyBox(columns, 0, column, step, barrier, right);
      } else {
#pragma unroll
        for (int n = 0; n < Shape::kColumns; n += Shape::kDepth) {
          CopyBox(columns, column + n, at_x * boxes.x, at_y * boxes.y,
                  image * boxes.batch, barrier, right + n * kBoxBytes);
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

  // Which rows of its 16 a lane has: see ReadChannels.
  __device__ static int Upper(int lane) { return kPacked ? lane / 4 * 2 : lane / 4; }
  __device__ static int Lower(int lane) {
    return kPacked ? lane / 4 * 2 + 1 : lane / 4 + 8;
  }
};

// The left operand of a step: [32 channels][pixel][channel], swizzled. A lane reads,
// for each of 4 products, channels 2 g and 2 g + 1 of its warp's 16 of pixels 2 t and
// 2 t + 1 of the product's 8: that meets each bank once.
__device__ inline void ReadChannels(const char* stage, uint32_t (&rows)[4][4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int channel = warp % 2 * 16 + 2 * g;
  const char* const from = stage + warp / 2 * 32 * kBoxBytes;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int pixel = 8 * n + 2 * t + e;
      const uint2 pair = *reinterpret_cast<const uint2*>(
          from + pixel * kBoxBytes + (channel / 4 ^ pixel % 8) * 16 + channel % 4 * 4);
      rows[n][2 * e] = pair.x;
      rows[n][2 * e + 1] = pair.y;
    }
  }
}

}  // namespace capsops::capsule_conv::tma

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_TMA_WEIGHTS_CUH_
