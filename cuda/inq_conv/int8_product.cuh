// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Convolution of bytes as an implicit matrix product on int8 tensor cores (mma.sync):
// row = output pixel, contraction = (filter tap, input channel), column = output
// channel. A block computes 128 pixels by 64 channels, and each of its 8 warps 32
// by 32. Both operands are copied to shared memory by a pipeline of kStages cp.async
// stages, and from there to registers by ldmatrix. Input channels are padded to pieces
// of 16 bytes, and a piece belongs to one tap, so that each thread gathers whole pieces
// from the image.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>

#include "cuda/common/barrier.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"
#include "cuda/common/warp.cuh"

namespace capsops::inq_conv_int8::int8 {

constexpr int kPieceBytes = 16;  // bytes of a cp.async, or of a matrix row of ldmatrix
constexpr int kPieces = 4;       // pieces of a matrix row per step
constexpr int kStepBytes = kPieces * kPieceBytes;
constexpr int kStages = 4;
constexpr int kBlocks = 2;     // blocks that a multiprocessor should hold
constexpr int kRows = 128;     // pixels of a block
constexpr int kColumns = 64;   // output channels of a block
constexpr int kWarpSide = 32;  // rows and columns of a warp
constexpr int kWarps = kRows * kColumns / (kWarpSide * kWarpSide);
constexpr int kThreads = kWarps * kLanes;
constexpr int kCopyRows = kThreads / kPieces;  // rows that a block copies at a time
constexpr int kOperandBits = 4;  // bits of a weight's magnitude in one operand
static_assert(kCopyRows == kColumns, "a thread copies one piece of each operand");

constexpr int StageBytes(int operands) {
  return (kRows + operands * kColumns) * kStepBytes;
}

// Sizes of the product. All positions in the image and their differences fit in 31
// bits.
struct Product {
  int in_height, in_width, out_width, out_area;
  int stride_height, stride_width, dilation_height, dilation_width;
  int pad_top, pad_left, kernel_width;
  int channel_bytes;  // the padded channels of a pixel
  int out_channels, column_tiles;
  int steps, split_steps;  // all steps of the contraction, and those of a block
  // Distance from a thread's piece to its piece of the next step, in the filter.
  int next_row, next_column, next_channel;

  __host__ __device__ int64_t row_bytes() const { return int64_t{steps} * kStepBytes; }
  __host__ __device__ int columns() const { return column_tiles * kColumns; }
};

// Returns the offset of a piece in a stage's matrix. The swizzle puts a piece of 8
// consecutive rows into different banks, so that ldmatrix has no bank conflicts.
__device__ inline int PieceOffset(int row, int piece) {
  return row * kStepBytes + (piece ^ row / 2 % kPieces) * kPieceBytes;
}

// Loads four 8 x 16 matrices of bytes; each lane gives the address of a row.
__device__ inline void LoadMatrices(uint32_t address, uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// c += a b, m16n8k32, of unsigned and signed bytes. Sums wrap.
__device__ inline void MultiplyBytes(const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                     int32_t (&c)[4]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Copies a thread's part of the left operand: in each step, one piece of the windows of
// kRowsOf pixels. The image begins with a piece of zero points, which is copied in
// place of positions outside of the image. Offsets in the image fit in 31 bits. Other
// offsets may wrap, but are not used.
class Gatherer {
 public:
  __device__ Gatherer(const Product& p, int pixels, int first_pixel, int step) {
    const int piece = step * kPieces + threadIdx.x % kPieces;
    const int groups = p.channel_bytes / kPieceBytes, tap = piece / groups;
    channel_ = (piece - tap * groups) * kPieceBytes;
    row_ = tap / p.kernel_width;
    column_ = tap - row_ * p.kernel_width;
#pragma unroll
    for (int i = 0; i < kRowsOf; ++i) {
      const int pixel = first_pixel + i * kCopyRows + threadIdx.x / kPieces;
      const int sample = pixel / p.out_area, rest = pixel - sample * p.out_area;
      const int y = rest / p.out_width, x = rest - y * p.out_width;
      y_[i] = pixel < pixels ? y * p.stride_height - p.pad_top : kOutside;
      x_[i] = x * p.stride_width - p.pad_left;
      offset_[i] = kPieceBytes + sample * p.in_height * Offset(p, 1, 0) +
                   Offset(p, y_[i], x_[i]);
    }
  }

  // Starts the copies of the pieces, the first one to `to`, and advances by a step.
  // Pieces past the last tap may hold anything, since their weights are zero.
  __device__ void Load(const Product& p, const uint8_t* image, uint8_t* to) {
    const uint32_t down = row_ * p.dilation_height, right = column_ * p.dilation_width;
    const uint32_t offset = Offset(p, down, right) + channel_;
#pragma unroll
    for (int i = 0; i < kRowsOf; ++i) {
      const bool inside = y_[i] + down < static_cast<uint32_t>(p.in_height) &&
                          x_[i] + right < static_cast<uint32_t>(p.in_width);
      __pipeline_memcpy_async(to + i * kCopyRows * kStepBytes,
                              image + (inside ? offset_[i] + offset : 0), kPieceBytes);
    }
    channel_ += p.next_channel;
    const bool next_tap = channel_ >= p.channel_bytes;
    if (next_tap) channel_ -= p.channel_bytes;
    column_ += p.next_column + next_tap;
    const bool next_row = column_ >= p.kernel_width;
    if (next_row) column_ -= p.kernel_width;
    row_ += p.next_row + next_row;
  }

 private:
  static constexpr int kRowsOf = kRows / kCopyRows;
  static constexpr int kOutside = INT32_MIN / 2;  // too far for any tap to be inside

  __device__ static uint32_t Offset(const Product& p, uint32_t y, uint32_t x) {
    return (y * p.in_width + x) * p.channel_bytes;
  }

  int row_, column_, channel_;
  int y_[kRowsOf], x_[kRowsOf];
  uint32_t offset_[kRowsOf];
};

// Completes a sum: subtracts the zero point's contribution, and scales. `weights` is
// the sum of the channel's weights.
__device__ inline float Complete(int sum, int zero_point, int weights,
                                 float multiplier) {
  return static_cast<float>(sum - zero_point * weights) * multiplier;
}

// Convolves `image` (see Gatherer) for `pixels` output pixels. `packed` is
// [kOperands][columns][row_bytes]; operand j is scaled by 2^(j kOperandBits). A block
// computes tile blockIdx.x over range blockIdx.y of the steps. Unless `partial`,
// [split][pixel][channel], is null, it stores sums there and nothing in `output`.
template <typename S, int kOperands>
__global__ void __launch_bounds__(kThreads, kBlocks)
    ProductKernel(const Product p, int pixels, const uint8_t* image,
                  const int8_t* packed, const int32_t* weight_sums, int zero_point,
                  const float* multipliers, int32_t* partial, S* output) {
  extern __shared__ __align__(128) uint8_t stages[];
  constexpr int kStage = StageBytes(kOperands);
  constexpr int kTiles = kWarpSide / 16, kProducts = kWarpSide / 8;
  const int tile = blockIdx.x / p.column_tiles;
  const int first_column = (blockIdx.x - tile * p.column_tiles) * kColumns;
  const int first_step = blockIdx.y * p.split_steps;
  const uint32_t steps = min(p.split_steps, p.steps - first_step);
  const uint32_t shared = SharedAddress(stages);

  const int copy_row = threadIdx.x / kPieces, copy_piece = threadIdx.x % kPieces;
  const int copy_to = PieceOffset(copy_row, copy_piece);
  Gatherer gatherer(p, pixels, tile * kRows, first_step);
  packed += (first_column + copy_row) * p.row_bytes() +
            first_step * int64_t{kStepBytes} + copy_piece * kPieceBytes;
  const int64_t operand_bytes = p.columns() * p.row_bytes();
  uint32_t loaded = 0;
  const auto load_stage = [&] {
    if (loaded < steps) {
      uint8_t* const stage = stages + loaded++ % kStages * kStage;
      gatherer.Load(p, image, stage + copy_to);
#pragma unroll
      for (int j = 0; j < kOperands; ++j) {
        __pipeline_memcpy_async(stage + (kRows + j * kColumns) * kStepBytes + copy_to,
                                packed + j * operand_bytes, kPieceBytes);
      }
      packed += kStepBytes;
    }
    __pipeline_commit();  // even if empty, so that the last waits count stages, too
  };
  TriggerDependentLaunch();
  GridDependencySynchronize();
#pragma unroll 1
  for (int stage = 0; stage < kStages - 1; ++stage) load_stage();

  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int warp_row = warp / (kColumns / kWarpSide) * kWarpSide;
  const int warp_column = warp % (kColumns / kWarpSide) * kWarpSide;
  // The row that a lane addresses for ldmatrix: of a, 16 rows of 2 pieces; of b, 2
  // pieces of each of two groups of 8 rows.
  const int from_a = PieceOffset(warp_row + lane % 16, lane / 16);
  const int from_b = kRows * kStepBytes +
                     PieceOffset(warp_column + lane / 16 * 8 + lane % 8, lane / 8 % 2);
  int32_t sums[kOperands][kTiles][kProducts][4] = {};
#pragma unroll 1
  for (uint32_t step = 0; step < steps; ++step) {
    // Until all threads have copied this stage, and have read the stage of the previous
    // step, which load_stage() overwrites.
    __pipeline_wait_prior(kStages - 2);
    __syncthreads();
    load_stage();
    const uint32_t stage = shared + step % kStages * kStage;
#pragma unroll
    for (int piece = 0; piece < kPieces; piece += 2) {
      // XOR maps the swizzled offsets of pieces 0 and 1 to those of pieces 2 and 3.
      const int flip = piece * kPieceBytes;
      uint32_t a[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        LoadMatrices(stage + (from_a ^ flip) + m * 16 * kStepBytes, a[m]);
      }
#pragma unroll
      for (int j = 0; j < kOperands; ++j) {
#pragma unroll
        for (int n = 0; n < kProducts; n += 2) {
          uint32_t b[4];
          LoadMatrices(stage + (from_b ^ flip) + (j * kColumns + n * 8) * kStepBytes,
                       b);
#pragma unroll
          for (int m = 0; m < kTiles; ++m) {
            MultiplyBytes(a[m], b[0], b[1], sums[j][m][n]);
            MultiplyBytes(a[m], b[2], b[3], sums[j][m][n + 1]);
          }
        }
      }
    }
  }

  // A lane holds two adjacent columns of rows that are 8 apart.
  const bool pairs = p.out_channels % 2 == 0;
#pragma unroll
  for (int n = 0; n < kProducts; ++n) {
    const int column = first_column + warp_column + n * 8 + lane % 4 * 2;
    int weights[2] = {};
    float multiplier[2] = {};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (partial != nullptr || column + e >= p.out_channels) continue;
      if (zero_point != 0) weights[e] = weight_sums[column + e];
      multiplier[e] = multipliers[column + e];
    }
#pragma unroll
    for (int row = 0; row < 2 * kTiles; ++row) {
      const int pixel = tile * kRows + warp_row + row * 8 + lane / 4;
      if (pixel >= pixels || column >= p.out_channels) continue;
      int sum[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        sum[e] = sums[0][row / 2][n][row % 2 * 2 + e];
        if constexpr (kOperands == 2) {
          sum[e] += sums[1][row / 2][n][row % 2 * 2 + e] * (1 << kOperandBits);
        }
      }
      const int left = p.out_channels - column;
      if (partial != nullptr) {
        const int64_t split_pixel = int64_t{blockIdx.y} * pixels + pixel;
        int32_t* const to = partial + split_pixel * p.out_channels + column;
        if (pairs) {
          *reinterpret_cast<int2*>(to) = {sum[0], sum[1]};
        } else {
          to[0] = sum[0];
          if (left > 1) to[1] = sum[1];
        }
      } else {
        const float result[2] = {
            Complete(sum[0], zero_point, weights[0], multiplier[0]),
            Complete(sum[1], zero_point, weights[1], multiplier[1])};
        StoreRow(result, left, pairs,
                 output + int64_t{pixel} * p.out_channels + column);
      }
    }
  }
}

}  // namespace capsops::inq_conv_int8::int8
