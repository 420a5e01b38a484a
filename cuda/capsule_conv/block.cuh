// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Shared by all tensor-core kernels of capsule convolution: the kernel parameters, a
// block's coordinates in the product, and the epilogue that stores rows of results.
#pragma once

#include <cstdint>

#include "cuda/capsule_conv/patch.cuh"
#include "cuda/common/divisor.cuh"
#include "cuda/common/types.cuh"

namespace capsops::capsule_conv {

constexpr int kTileRows = 16;  // M of an mma.sync instruction

// The filter as the right operand: which of its dimensions are contracted, which are
// columns, and their strides in memory, in elements.
struct Filter {
  int channels, inner;          // contracted dimensions
  int out_channels, out_inner;  // columns: out_channels * out_inner
  int depth, kernel_width;
  int64_t tap, channel, element, out_channel, out_element, depth_stride;
  int64_t elements;  // size of the whole filter
  // If horizontal taps are columns as well (wgmma/across.cuh): output channels per tap,
  // and the stride from a tap to the next.
  int tap_channels = INT32_MAX;
  int64_t out_tap = 0;
};

// Partition of the contraction and of the columns. A patch holds one chunk of planes at
// a time; a step is the contraction of one mma or wgmma instruction.
struct Order {
  int planes, chunks;  // planes per chunk
  int steps;           // steps per chunk
  int column_blocks;
};

// The number of steps in the packed filter.
inline int64_t PackedSteps(const Filter& filter, const Order& order) {
  return int64_t{filter.depth} * order.column_blocks * order.chunks * order.steps;
}

// Maps the lattice to the target: point (i, j) is pixel (i * stride_y + offset_y,
// j * stride_x + offset_x).
struct Placement {
  int stride_y, offset_y, stride_x, offset_x;
};

// Scales results by a power of two, as two factors: their product may be outside of
// float's range.
struct Scale {
  float by = 1, again = 1;

  __device__ float operator()(float x) const { return x * by * again; }
};

// Kernel parameters of one matrix product.
struct Product {
  Image source, target;
  Axis vertical, horizontal;
  Placement placement;
  Patch patch;
  Order order;
  int buffers;           // patch buffers in shared memory
  int stage_steps;       // steps per pipeline stage
  Divisor by_row_tiles;  // divides by the row tiles per lattice row of a block
  Scale scale;
};

// A block's coordinates in the product.
struct BlockCoord {
  int64_t image;
  int y, x;  // first lattice point
  int depth, column_block;

  __device__ explicit BlockCoord(const Product& p, int index = blockIdx.x) {
    Digits<int> digits(index);
    column_block = digits.Next(p.order.column_blocks);
    depth = digits.Next(p.source.depth);
    x = digits.Next(p.horizontal.tiles) * p.horizontal.tile;
    y = digits.Next(p.vertical.tiles) * p.vertical.tile;
    image = digits.rest;
  }
};

// The first pixel of the block's image, at the block's depth.
template <typename S>
__device__ const S* SourceOf(const Product& p, const BlockCoord& place,
                             const S* source) {
  return source + place.image * p.source.height * p.source.width * p.source.pixel() +
         place.depth * p.source.pose();
}

// The address of the target row for lattice point (y, x) of the block's tile.
template <typename S>
__device__ S* TargetRow(const Product& p, const BlockCoord& place, int y, int x,
                        int pose_row, S* target) {
  const int to_y = (place.y + y) * p.placement.stride_y + p.placement.offset_y;
  const int to_x = (place.x + x) * p.placement.stride_x + p.placement.offset_x;
  const int64_t image = place.image * p.target.height;
  return target + ((image + to_y) * p.target.width + to_x) * p.target.pixel() +
         place.depth * p.target.pose() + pose_row * p.target.columns;
}

// Stores one column of a row. Not inlined, as few pose shapes need it.
template <typename S>
__device__ __noinline__ void StoreColumn(int column, int columns, int channels,
                                         int64_t stride, float value, S* row) {
  const int channel = column / columns;
  if (channel >= channels) return;
  Narrow(value, row + channel * stride + (column - channel * columns));
}

// Stores two adjacent elements with one instruction; nvcc does not always merge stores.
__device__ inline void StorePair(float x, float y, float* to) {
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
}
template <typename S>
__device__ void StorePair(float x, float y, S* to) {
  const auto pair = NarrowPair<S>(x, y);
  *reinterpret_cast<uint32_t*>(to) = *reinterpret_cast<const uint32_t*>(&pair);
}

// Stores a row of accumulators in the m16n8 layout: a lane has columns 2 t and 2 t + 1
// of every 8 from `column` on. kHalf selects the upper (0) or lower (1) 8 rows. If
// poses have 4 columns, a lane's two columns are adjacent in memory.
template <int kHalf, typename S, int kProducts>
__device__ void StoreRow(const Image& target, const Scale& scale, int column,
                         const float (&sums)[kProducts][4], S* row) {
  const int t = threadIdx.x % 4;
  const int64_t stride = int64_t{target.depth} * target.pose();
  if (target.columns == kQuad) {
    const int channel = column / kQuad + t / 2;
    S* to = row + channel * stride + t % 2 * 2;
#pragma unroll
    for (int n = 0; n < kProducts; ++n, to += 2 * stride) {
      if (channel + 2 * n >= target.channels) break;
      StorePair(scale(sums[n][2 * kHalf]), scale(sums[n][2 * kHalf + 1]), to);
    }
  } else {
#pragma unroll
    for (int n = 0; n < kProducts; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        StoreColumn(column + 8 * n + 2 * t + e, target.columns, target.channels, stride,
                    scale(sums[n][2 * kHalf + e]), row);
      }
    }
  }
}

}  // namespace capsops::capsule_conv
