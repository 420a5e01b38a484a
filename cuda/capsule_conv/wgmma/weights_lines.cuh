// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Parameters and producers of wgmma/weights.cuh: how the gradient is divided into tiles
// and lines, the TMA producer, and the warps that transpose.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/capsule_conv/tasks.cuh"
#include "cuda/common/barrier.cuh"
#include "cuda/common/tensor_cores.cuh"
#include "cuda/common/tensor_map.cuh"
#include "cuda/common/warpgroup.cuh"

namespace capsops::capsule_conv::wgmma {

constexpr int kWeightRows = 64;      // rows per consumer warpgroup
constexpr int kWeightChannels = 16;  // input channels per unit
// The most units of a consumer. Split floats need twice the registers for sums.
template <int kParts>
constexpr int kWeightUnits = kParts > 1 ? 2 : 5;
constexpr int kConsumerGroups = 2;
// One more warpgroup has the transposing warps and the TMA producer.
constexpr int kWeightThreads = 128 * (kConsumerGroups + 1);
constexpr int kTransposeWarps = 3;
// Registers per thread at launch, and those that setmaxnreg gives to the warpgroups.
constexpr int kWeightRegisters = 168, kConsumerRegisters = 208, kProducerRegisters = 88;
static_assert(kConsumerGroups * kConsumerRegisters + kProducerRegisters <=
              (kConsumerGroups + 1) * kWeightRegisters);
constexpr int kMaxSlots = 16;  // maximum slots of each pipeline
// Bytes per pixel in shared memory: 16 poses of the input, or 64 rows of `grad`.
template <typename S>
constexpr int kPixelBytes = kWeightChannels * 16 * sizeof(S);
// Output pixels per product, whose contraction runs over their pose rows.
template <typename S>
constexpr int kProductPixels = 8 / sizeof(S);
// A 16-bit unit is stored as pairs of channels.
constexpr int kChannelPairs = kWeightChannels / 2, kPairBytes = 64;
// A unit's staged sums: 1024 bytes per channel and 16 against bank conflicts.
constexpr int kSumsBytes = kWeightRows * 4 * sizeof(float) + 16;
constexpr int kUnitBytes = kWeightChannels * kSumsBytes;

// Kernel parameters. A block computes a tile of the gradient for its share of the lines
// (split-K). A tile is y_taps x x_taps taps by `blocks` blocks of 16 input channels, by
// 64 rows. If `halves`, a tile has 128 rows and both consumers have the same units,
// each for its own 64 rows; else they divide the units among them. If kParts is 2,
// floats are split into two parts of TF32, stored one after the other in a line's slot.
template <typename Element, int kPartsOf>
struct WeightParams {
  using S = Element;
  static constexpr int kParts = kPartsOf;

  // A line is up to `strip` output pixels of one row, rounded up to whole products.
  // Lines are ordered downwards within a strip.
  int lines, splits;
  int strips, strip, width, height;
  int y_taps, x_taps, blocks;
  bool halves;
  int y_tiles, x_tiles, block_tiles, row_tiles;
  TapMoves moves;
  int in_height, in_rows;  // rows of an image, and of all images
  int box_width;           // input pixels per line
  int row_slots, grad_slots;
  int channels, out_channels, columns;  // channels of capsules; columns of a pose
  int weights;

  __host__ __device__ int Units() const { return y_taps * x_taps * blocks; }
  __host__ __device__ int PartBytes() const {
    return blocks * box_width * kPixelBytes<S>;
  }
  __host__ __device__ int RowBytes() const { return kParts * PartBytes(); }
  __host__ __device__ int Halves() const { return halves ? kConsumerGroups : 1; }
  __host__ __device__ int GradBytes() const {
    return Halves() * strip * kPixelBytes<S>;
  }
};

// Barriers at the start of shared memory; the slots follow after 1024 bytes.
struct WeightBarriers {
  Barrier row_full[kMaxSlots], row_ready[kMaxSlots], row_free[kMaxSlots];
  Barrier grad_full[kMaxSlots], grad_free[kMaxSlots];
};
static_assert(sizeof(WeightBarriers) <= 1024);

// A block's tile.
struct WeightCoord {
  int split, y_tap, x_tap, block;
  int rows;  // first row, in units of 64

  template <typename W>
  __device__ explicit WeightCoord(const W& w) {
    Digits<int> digits(blockIdx.x);
    x_tap = digits.Next(w.x_tiles) * w.x_taps;
    y_tap = digits.Next(w.y_tiles) * w.y_taps;
    block = digits.Next(w.block_tiles) * w.blocks;
    rows = digits.Next(w.row_tiles) * w.Halves();
    split = digits.rest;
  }
};

// Iterates over a block's lines. Consecutive lines of a strip share all input rows but
// one: the next line drops the top row and adds one at the bottom.
struct LineIterator {
  int left, height, strips;
  int y, strip, image;
  bool first = true;  // whether this is the first line of a strip or of the block

  template <typename W>
  __device__ LineIterator(const W& w, int split) : height(w.height), strips(w.strips) {
    const int begin = static_cast<int>(int64_t{w.lines} * split / w.splits);
    left = static_cast<int>(int64_t{w.lines} * (split + 1) / w.splits) - begin;
    const int above = begin / height;
    y = begin - above * height;
    image = above / strips;
    strip = above - image * strips;
  }
  __device__ bool Last() const { return left == 1 || y == height - 1; }
  __device__ void Next() {
    --left;
    first = ++y == height;
    if (!first) return;
    y = 0;
    if (++strip < strips) return;
    strip = 0;
    ++image;
  }
};

// TMA producer, one thread: loads the input rows and the `grad` of the block's lines.
// Rows outside of the image become zeros. In shared memory, floats are ordered
// [pixel][channel], 16-bit types [channel pair][pixel].
template <typename W>
__device__ void LoadLines(const W& w, const WeightCoord& place,
                          const CUtensorMap& input, const CUtensorMap& grad,
                          WeightBarriers& barriers, char* row_slots, char* grad_slots) {
  using S = typename W::S;
  PipelineState row{0, 1}, other{0, 1};  // The first wait for each slot passes at once.
  for (LineIterator line(w, place.split); line.left > 0; line.Next()) {
    const int strip = line.strip * w.strip;
    const int x =
        strip * w.moves.stride_x - w.moves.pad_x + place.x_tap * w.moves.dilation_x;
    for (int tap = line.first ? 0 : w.y_taps - 1; tap < w.y_taps; ++tap) {
      const int y = line.y * w.moves.stride_y - w.moves.pad_y +
                    (place.y_tap + tap) * w.moves.dilation_y;
      const bool inside = y >= 0 && y < w.in_height;
      barriers.row_free[row.at].Wait(row.parity);
      barriers.row_full[row.at].ArriveAndExpectBytes(w.PartBytes());
      for (int n = 0; n < w.blocks; ++n) {
        constexpr bool kFloat = std::is_same_v<S, float>;
        const int pairs = (place.block + n) * kChannelPairs;
        TmaLoad(input, 0, kFloat ? pairs : x, kFloat ? x : pairs,
                inside ? line.image * w.in_height + y : w.in_rows,
                barriers.row_full[row.at],
                row_slots + row.at * w.RowBytes() + n * w.box_width * kPixelBytes<S>);
      }
      row.Next(w.row_slots);
    }
    barriers.grad_free[other.at].Wait(other.parity);
    barriers.grad_full[other.at].ArriveAndExpectBytes(w.GradBytes());
    for (int half = 0; half < w.Halves(); ++half) {
      TmaLoad(grad, (place.rows + half) * (kWeightRows * 4), strip,
              line.image * w.height + line.y, barriers.grad_full[other.at],
              grad_slots + other.at * w.GradBytes() + half * w.strip * kPixelBytes<S>);
    }
    other.Next(w.grad_slots);
  }
}

// Transposes the float poses of a slot in place, with kTransposeWarps warps: for every
// 8 channels, from [channel][pose row] of 16 bytes, with TMA's 128-byte swizzle, to
// [inner][channel]. A lane has one pose in registers; the warp synchronizes between its
// loads and its stores. If floats are split, the second parts are stored `bytes` bytes
// after the first.
template <int kParts>
__device__ void TransposePoses(char* slot, int bytes, int warp, float) {
  const int lane = threadIdx.x % 32, poses = bytes / 64;
  for (int first = warp * 32; first < poses; first += kTransposeWarps * 32) {
    const int pose = first + lane;
    const bool there = pose < poses;
    float4 rows[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int at = (pose % 2 * 4 + n) ^ (pose / 2 % 8);
      if (!there) continue;
      rows[n] = *reinterpret_cast<const float4*>(slot + pose / 2 * 128 + at * 16);
    }
    __syncwarp();
    if (!there) continue;
    float4* const to = reinterpret_cast<float4*>(slot + pose / 8 * 512) + pose % 8;
    const float4 columns[] = {{rows[0].x, rows[1].x, rows[2].x, rows[3].x},
                              {rows[0].y, rows[1].y, rows[2].y, rows[3].y},
                              {rows[0].z, rows[1].z, rows[2].z, rows[3].z},
                              {rows[0].w, rows[1].w, rows[2].w, rows[3].w}};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if constexpr (kParts == 1) {
        to[n * 8] = columns[n];
      } else {
        Operand<4, Tf32::kSplit> parts;
        parts.SetWithoutOverflow(0, columns[n].x);
        parts.SetWithoutOverflow(1, columns[n].y);
        parts.SetWithoutOverflow(2, columns[n].z);
        parts.SetWithoutOverflow(3, columns[n].w);
        const auto store = [&](const uint32_t (&of)[4], float4* at) {
          *reinterpret_cast<uint4*>(at) = make_uint4(of[0], of[1], of[2], of[3]);
        };
        store(parts.high, to + n * 8);
        store(parts.low, to + bytes / 16 + n * 8);
      }
    }
  }
}

// Version for 16-bit types: for every 2 channels, [channel][pose row] of 8 bytes
// becomes [pose row 0, 2, 1, 3][channel]. This exchanges the second 8 bytes with the
// fifth, and the fourth with the seventh.
template <int kParts, typename S>
__device__ void TransposePoses(char* slot, int bytes, int warp, S) {
#pragma unroll 2
  for (int n = warp * 32 + threadIdx.x % 32; n < bytes / (kPairBytes / 2);
       n += kTransposeWarps * 32) {
    const int pair = n / 2;
    char* const at = slot + pair * kPairBytes + 8 + n % 2 * 16;
    const int first = pair / 2 % 2 * 24;  // avoids bank conflicts
    uint2& one = *reinterpret_cast<uint2*>(at + first);
    uint2& other = *reinterpret_cast<uint2*>(at + 24 - first);
    const uint2 value = one;
    one = other;
    other = value;
  }
}

// The transposing warps' main loop: transposes each input row when it has arrived, and
// passes it on to the consumers.
template <typename W>
__device__ void TransposeRows(const W& w, const WeightCoord& place,
                              WeightBarriers& barriers, char* row_slots, int warp) {
  PipelineState row;
  for (LineIterator line(w, place.split); line.left > 0; line.Next()) {
    for (int tap = line.first ? 0 : w.y_taps - 1; tap < w.y_taps; ++tap) {
      barriers.row_full[row.at].Wait(row.parity);
      TransposePoses<W::kParts>(row_slots + row.at * w.RowBytes(), w.PartBytes(), warp,
                                typename W::S{});
      FenceAsyncProxy();
      barriers.row_ready[row.at].ArriveWarp();
      row.Next(w.row_slots);
    }
  }
}

}  // namespace capsops::capsule_conv::wgmma
