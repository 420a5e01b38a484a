// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Packs a float gradient as the right operand of tma/product.cuh,
// [step][column][pixel], because wgmma takes TF32 operands only in K-major order.
#pragma once

#include <cstdint>

#include "cuda/capsule_conv/tma/pack.cuh"
#include "cuda/capsule_conv/tma/weights.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_conv::tma {

constexpr int kStepPixels = 32;  // pixels per step
constexpr int kGradColumns = 128;

// Parameters of PackGradKernel.
struct PackedGrad {
  PixelBoxes boxes;
  int batch, height, width, columns;
  int column_blocks;
};

// Transposes one step's pixels of kGradColumns columns per block, through shared
// memory. The order of each 8 pixels is 0, 2, 4, 6, 1, 3, 5, 7, as in LoadFragments.
__global__ void __launch_bounds__(kPackThreads)
    PackGradKernel(const PackedGrad p, const float* grad, float* packed,
                   const FlagsToClear parts) {
  TriggerDependentLaunch();
  parts.Clear();
  constexpr int kLines = kPackThreads / kGradColumns;
  constexpr int kTurns = kStepPixels / kLines;
  __shared__ float tile[kStepPixels][kGradColumns + 1];  // padded: no bank conflicts
  const int step = blockIdx.x / p.column_blocks;
  const int column = (blockIdx.x - step * p.column_blocks) * kGradColumns;
  const PixelBoxes& boxes = p.boxes;
  const int line = step / boxes.width, first_x = (step - line * boxes.width) * boxes.x;
  const int image = line / boxes.height;
  const int first_y = (line - image * boxes.height) * boxes.y;
  const int read = threadIdx.x % kGradColumns, slow = threadIdx.x / kGradColumns;
  float numbers[kTurns]{};
#pragma unroll
  for (int n = 0; n < kTurns; ++n) {
    const int row = slow + n * kLines;
    const int x = row & (boxes.x - 1), rest = row >> boxes.x_bits;
    const int y = rest & (boxes.y - 1);
    const int at = image * boxes.batch + (rest >> boxes.y_bits);
    const bool there = at < p.batch && first_y + y < p.height && first_x + x < p.width;
    const int64_t pixel =
        (int64_t{at} * p.height + first_y + y) * p.width + first_x + x;
    if (there && column + read < p.columns) {
      numbers[n] = grad[pixel * p.columns + column + read];
    }
  }
#pragma unroll
  for (int n = 0; n < kTurns; ++n) tile[slow + n * kLines][read] = numbers[n];
  __syncthreads();
  const int at = threadIdx.x % kStepPixels, t = at % 8;
  const int pixel = at - t + t % 4 * 2 + t / 4;
#pragma unroll
  for (int m = threadIdx.x / kStepPixels; m < kGradColumns;
       m += kPackThreads / kStepPixels) {
    if (column + m >= p.columns) continue;
    packed[(int64_t{step} * p.columns + column + m) * kStepPixels + at] =
        tile[pixel][m];
  }
}

}  // namespace capsops::capsule_conv::tma
