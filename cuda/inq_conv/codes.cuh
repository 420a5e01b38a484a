// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Decodes weights that are powers of two, and kernels with one element per thread that
// convert tensors in global memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "cuda/capsule_conv/block.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"

namespace capsops::inq_conv {

// Splits 2^top_exponent, the largest weight, into 2^top * 2^shift: weights are decoded
// with `top`, so that their type represents them all, and results are multiplied by
// 2^shift.
struct Exponents {
  int top, shift;

  // `levels` is the number of powers of two. Those of float16 go from 2^-24 to 2^15.
  template <typename S>
  static Exponents Of(int32_t top_exponent, int levels) {
    int least = -60, most = 60;
    if (std::is_same_v<S, double>) least = -900, most = 900;
    if (std::is_same_v<S, __half>) least = std::min(levels - 25, 15), most = 15;
    const int top = std::clamp(top_exponent, least, most);
    // With a larger shift, every result is zero or infinite anyway.
    constexpr int64_t kMax = 4000;
    const int64_t shift = int64_t{top_exponent} - top;
    return {top, static_cast<int>(std::clamp(shift, -kMax, kMax))};
  }

  // Returns 2^shift as two factors, since it may exceed the range of a float.
  capsule_conv::Scale scale() const {
    const int first = std::clamp(shift, -126, 127);
    return {std::ldexp(1.0f, first),
            std::ldexp(1.0f, std::clamp(shift - first, -149, 127))};
  }
};

// A tensor of codes that is decoded as it is read. For 0 <= k < levels, code 1 + 2k is
// 2^(top - k), and code 2 + 2k is its negative. Other codes are zero.
template <typename S>
struct CodedWeights {
  const uint8_t* codes;
  int levels, top;

  __device__ S operator[](int64_t i) const {
    using Wide = std::conditional_t<std::is_same_v<S, double>, double, float>;
    const int code = codes[i] - 1, level = code >> 1;
    S weight{};
    if (code >= 0 && level < levels) {
      Narrow(ldexp(code % 2 == 0 ? Wide{1} : Wide{-1}, top - level), &weight);
    }
    return weight;
  }
};

// Decodes one weight per thread.
template <typename S>
__global__ void DecodeKernel(const CodedWeights<S> from, int64_t count, S* to) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) to[i] = from[i];
}

// Multiplies one value per thread by 2^shift.
template <typename S>
__global__ void ScaleKernel(int shift, int64_t count, S* values) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) values[i] = ldexp(values[i], shift);
}

// Converts one element per thread to another type.
template <typename From, typename To>
__global__ void ConvertKernel(const From* from, int64_t count, To* to) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) Narrow(Widen(from[i]), &to[i]);
}

}  // namespace capsops::inq_conv
