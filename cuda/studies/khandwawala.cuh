// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Shared parts of the programs of Khandwawala, "Weight Sharing on CNN": the forms of
// the kernel matrix, and sums by weight. A kernel matrix is [out_channels, kernel,
// kernel, in_channels], and images have their channels last.
#pragma once

#include <cstdint>

#include "cuda/studies/inq_conv.h"

namespace capsops::studies::inq_conv {

// An image, and a kernel of `size` x `size`. In the report all of these are
// compile-time constants; here, kernels that the benchmark times have the kernel's
// size, the channels and strides of 1 as constants.
struct Sizes {
  int64_t in_height, in_width, out_height, out_width;
  int64_t stride_height, stride_width;
  int out_channels, size, channels;
  int lowest;           // exponent of the smallest weight
  float lowest_weight;  // 2^lowest

  // NumWindows of the kernel with stride 1.
  __host__ __device__ int64_t rows() const { return in_height - size + 1; }
  __host__ __device__ int64_t columns() const { return in_width - size + 1; }
};

// The output element whose window begins at row y and column x of the image.
struct Place {
  bool exists;
  int64_t row, column;

  template <bool kOneByOne>
  static __device__ Place At(const Sizes& s, int64_t y, int64_t x) {
    const int64_t down = kOneByOne ? 1 : s.stride_height;
    const int64_t across = kOneByOne ? 1 : s.stride_width;
    const bool inside = y < s.rows() && x < s.columns();
    return {inside && y % down == 0 && x % across == 0, y / down, x / across};
  }
};

enum class Form {
  kValues,      // one float
  kPowerSign,   // two ints: the exponent, and 1, -1 or 0
  kSorted,      // four ints: the exponent, row, column and channel
  kConstant,    // one float, in constant memory
  kPowerChain,  // like kPowerSign, but finds the sum by comparisons
  kUnread,      // one float, not loaded: pixels are added up as they are
  kUnused,      // one float, loaded but not used
};

// Four-byte numbers per weight.
constexpr int NumbersOf(Form form) {
  return form == Form::kSorted                                   ? 4
         : form == Form::kPowerSign || form == Form::kPowerChain ? 2
                                                                 : 1;
}

// Whether pixels are added up by weight.
constexpr bool SumsByWeight(Form form) {
  return form != Form::kValues && form != Form::kUnread && form != Form::kUnused;
}

// Sums of the pixels that are multiplied by the same power of two. Registers cannot be
// indexed: for an `of` index that is not a compile-time constant, the compiler uses
// local memory or comparisons. The functions compare.
template <int kPowers>
struct Sums {
  float of[kPowers > 0 ? kPowers : 1];

  __device__ Sums() {
#pragma unroll
    for (int m = 0; m < kPowers; ++m) of[m] = 0;
  }

  template <int m = 0>
  __device__ void AddAtEqual(int power, float x) {
    if constexpr (m < kPowers) {
      if (power == m) {
        of[m] += x;
      } else {
        AddAtEqual<m + 1>(power, x);
      }
    }
  }

  // `weight` is one of the weights, or 0.
  template <int m = 0>
  __device__ void AddAtWeight(float weight, float size, float x) {
    if constexpr (m < kPowers) {
      if (weight == size) {
        of[m] += x;
      } else if (weight == -size) {
        of[m] -= x;
      } else {
        AddAtWeight<m + 1>(weight, 2 * size, x);
      }
    }
  }

  // `e` is a position in a sorted kernel: power m has negative weights before ends[2 *
  // m], then positive ones before ends[2 * m + 1]; zeros come last.
  template <int m = 0>
  __device__ void AddAtPlace(int e, const int* ends, float x) {
    if constexpr (m < kPowers) {
      if (e < ends[2 * m]) {
        of[m] -= x;
      } else if (e < ends[2 * m + 1]) {
        of[m] += x;
      } else {
        AddAtPlace<m + 1>(e, ends, x);
      }
    }
  }

  __device__ float Total(float lowest_weight) const {
    float total = 0;
#pragma unroll
    for (int m = 0; m < kPowers; ++m) {
      total += of[m] * lowest_weight;
      lowest_weight *= 2;
    }
    return total;
  }
};

}  // namespace capsops::studies::inq_conv
