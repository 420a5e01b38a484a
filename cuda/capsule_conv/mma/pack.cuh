// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Packs the filter into B fragments of mma.sync, in the order in which blocks read
// them:
//   [depth][column block][chunk][step][part][register][column][4] words.
// The four words belong to lanes t = 0 to 3, so that a warp loads a register of 8
// columns from 32 consecutive words. A step contracts 2 quads of float or 4 of a 16-bit
// type. In register r, lane t has
//   float: element 2 (t % 2) + r of quad t / 2,
//   16-bit types: elements 2 r and 2 r + 1 of quad t.
// The A fragments use this order as well: a lane loads adjacent words of a patch.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/capsule_conv/block.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/tensor_cores.cuh"
#include "cuda/common/types.cuh"

namespace capsops::capsule_conv::mma {

template <typename S>
constexpr int kStepQuads = std::is_same_v<S, float> ? 2 : 4;
// Precisions of the row operand and of the filter.
template <Tf32 kTf32>
constexpr Tf32 kRowTf32 = kTf32 == Tf32::kSplitLeft ? Tf32::kSplit : kTf32;
template <Tf32 kTf32>
constexpr Tf32 kFilterTf32 = kTf32 == Tf32::kSplitLeft ? Tf32::kExact : kTf32;
template <Tf32 kTf32>
constexpr int kParts = kTf32 == Tf32::kSplit ? 2 : 1;  // 2 if the operand is split

// Words of a step of the packed filter with `columns` columns.
template <Tf32 kTf32>
__host__ __device__ constexpr int StepWords(int columns) {
  return kParts<kFilterTf32<kTf32>> * 2 * columns * 4;
}

// Packs one word per thread, and its remainder if floats are split. `weights[i]` is
// element i of the filter; Weights is a pointer or decodes another format.
template <typename S, Tf32 kTf32, typename Weights>
__global__ void PackKernel(const Filter filter, const Order order, const Axis vertical,
                           const Axis horizontal, int columns, int64_t words,
                           const Weights weights, uint32_t* packed) {
  TriggerDependentLaunch();
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index >= words) return;
  Digits<int64_t> digits(index);
  const int t = digits.Next(4), column = digits.Next(columns), which = digits.Next(2);
  const int step = digits.Next(order.steps), chunk = digits.Next(order.chunks);
  const int column_block = digits.Next(order.column_blocks), depth = digits.rest;

  constexpr bool kFloat = std::is_same_v<S, float>;
  const int quad = step * kStepQuads<S> + (kFloat ? t / 2 : t);
  const int tap = quad / order.planes;
  const int plane = chunk * order.planes + quad % order.planes;
  const int quads = (filter.inner + kQuad - 1) / kQuad;
  const int channel = plane / quads, first = plane % quads * kQuad;
  const int n = column_block * columns + column;
  const int out_channel = n / filter.out_inner;
  const bool there = tap < vertical.taps * horizontal.taps &&
                     channel < filter.channels && out_channel < filter.out_channels;
  const int y = vertical.first + tap / horizontal.taps * vertical.every;
  const int x = horizontal.first + tap % horizontal.taps * horizontal.every;
  const int64_t from = (int64_t{y} * filter.kernel_width + x) * filter.tap +
                       channel * filter.channel + depth * filter.depth_stride +
                       out_channel * filter.out_channel +
                       n % filter.out_inner * filter.out_element;
  const auto element = [&](int e) {
    return there && first + e < filter.inner
               ? weights[from + (first + e) * filter.element]
               : S{};
  };
  const int64_t at =
      ((int64_t{depth} * order.column_blocks + column_block) * order.chunks + chunk) *
          order.steps +
      step;
  uint32_t* const to =
      packed + at * StepWords<kTf32>(columns) + (which * columns + column) * 4 + t;
  if constexpr (kFloat) {
    constexpr Tf32 kOf = kFilterTf32<kTf32>;
    Operand<1, kOf> operand;
    operand.SetWithoutOverflow(0, element(t % 2 * 2 + which));
    to[0] = operand.high[0];
    if constexpr (kOf == Tf32::kSplit) to[2 * columns * 4] = operand.low[0];
  } else {
    const Pack<S, 2> pair{{element(2 * which), element(2 * which + 1)}};
    to[0] = *reinterpret_cast<const uint32_t*>(&pair);
  }
}

template <typename S, Tf32 kTf32, typename Weights>
LaunchError PackFilter(const GpuExec& exec, const char* op, const Filter& filter,
                       const Product& p, int columns, const Weights& weights,
                       uint32_t* packed) {
  constexpr int kThreads = 256;
  const int64_t words = PackedSteps(filter, p.order) * 2 * columns * 4;
  const int64_t blocks = CeilDivide(words, kThreads);
  CAPSOPS_RETURN_IF_ERROR(CheckGrid(op, blocks));
  return Launch(op, PackKernel<S, kTf32, Weights>, blocks, kThreads, 0, exec, filter,
                p.order, p.vertical, p.horizontal, columns, words, weights, packed);
}

}  // namespace capsops::capsule_conv::mma
