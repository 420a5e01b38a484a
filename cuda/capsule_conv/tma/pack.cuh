// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Packs the filter into the right operand of tma/product.cuh, [tap][column][term].
#pragma once

#include <cstdint>

#include "cuda/capsule_conv/block.cuh"
#include "cuda/common/divisor.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"

namespace capsops::capsule_conv::tma {

// A block packs kPackSide columns by kPackSide terms.
constexpr int kPackSide = 64, kPackThreads = 256;
constexpr int kPackTurns = kPackSide * kPackSide / kPackThreads;

// Clears the flags of all partial tiles (PartialTiles), one per block of the product.
struct FlagsToClear {
  int* there;
  int blocks;

  __device__ void Clear() const {
    if (blockIdx.x > 0) return;
    for (int n = threadIdx.x; n < blocks; n += blockDim.x) there[n] = 0;
  }
};

// Parameters of PackFilterKernel.
struct PackedFilter {
  Filter filter;
  bool by_columns;  // whether columns, not terms, are adjacent in memory
  Divisor by_inner, by_out_inner;
  int terms, columns;
  int term_blocks, column_blocks;
};

// Packs the filter through shared memory, so that both reads and writes of a warp are
// contiguous.
template <typename S>
__global__ void __launch_bounds__(kPackThreads)
    PackFilterKernel(const PackedFilter p, const S* weights, S* packed,
                     const FlagsToClear parts) {
  TriggerDependentLaunch();
  parts.Clear();
  __shared__ S tile[kPackSide][kPackSide + 1];  // padded against bank conflicts
  Digits<int> digits(blockIdx.x);
  const int term = digits.Next(p.term_blocks) * kPackSide;
  const int column = digits.Next(p.column_blocks) * kPackSide;
  const int64_t tap = digits.rest;
  const Filter& filter = p.filter;
  const S* const from = weights + tap * filter.tap;
  const int fast = threadIdx.x % kPackSide, slow = threadIdx.x / kPackSide;
  constexpr int kLines = kPackThreads / kPackSide;
  S read[kPackTurns]{};
#pragma unroll
  for (int n = 0; n < kPackTurns; ++n) {
    const int line = slow + n * kLines;
    const int k = term + (p.by_columns ? line : fast);
    const int m = column + (p.by_columns ? fast : line);
    int inner, out_inner;
    const int channel = p.by_inner.Split(k, &inner);
    const int out_channel = p.by_out_inner.Split(m, &out_inner);
    if (k < p.terms && m < p.columns) {
      read[n] = from[channel * filter.channel + inner * filter.element +
                     out_channel * filter.out_channel + out_inner * filter.out_element];
    }
  }
#pragma unroll
  for (int n = 0; n < kPackTurns; ++n) {
    const int line = slow + n * kLines;
    S& to = p.by_columns ? tile[line][fast] : tile[fast][line];
    to = read[n];
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < kPackTurns; ++n) {
    const int line = slow + n * kLines;
    if (term + fast < p.terms && column + line < p.columns) {
      packed[(tap * p.columns + column + line) * p.terms + term + fast] =
          tile[fast][line];
    }
  }
}

}  // namespace capsops::capsule_conv::tma
