// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Functions shared by the kernel paths and their planners.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cc/launch/high_order_conv.h"
#include "cuda/common/launch.cuh"

namespace capsops::high_order_conv {

constexpr char kEmpty[] = "a dimension is 0";
constexpr char kTooLarge[] = "the image is too large";

inline bool Empty(const Problem& p) {
  return p.batch == 0 || p.height == 0 || p.width == 0 || p.channels == 0;
}

// Returns make(size) with a compile-time size: 3, 5, 7 or 0 for any other.
template <typename Make>
auto WithSize(int64_t size, const Make& make) {
  if (size == 3) return make(std::integral_constant<int, 3>{});
  if (size == 5) return make(std::integral_constant<int, 5>{});
  if (size == 7) return make(std::integral_constant<int, 7>{});
  return make(std::integral_constant<int, 0>{});
}

// Returns make(K) with a compile-time K for a K x K window, or a refusal unless K is 3,
// 5 or 7 and T is not double.
template <typename Plan, typename T, typename Make>
Plan WithKernel(const Problem& p, const Make& make) {
  if constexpr (std::is_same_v<T, double>) {
    return Plan::Refuse("T is float64");
  } else {
    const int64_t size = p.kernel_height == p.kernel_width ? p.kernel_height : 0;
    return WithSize(size, [&](auto k) {
      if constexpr (k > 0) {
        return make(k);
      } else {
        return Plan::Refuse("kernel_size is not 3x3, 5x5 or 7x7");
      }
    });
  }
}

inline int64_t Pixels(const Problem& p) { return p.batch * p.height * p.width; }

// Returns n / by and its remainder, for n >= 0 and by > 0. Divides in 32 bits if both
// fit, since a 64-bit division is slow.
__device__ inline int64_t Split(int64_t n, int64_t by, int64_t* remainder) {
  const bool narrow = (static_cast<uint64_t>(n) | static_cast<uint64_t>(by)) >> 32 == 0;
  const int64_t quotient =
      narrow ? static_cast<uint32_t>(n) / static_cast<uint32_t>(by) : n / by;
  *remainder = n - quotient * by;
  return quotient;
}

// The taps [begin, end) along one axis whose pixels are inside the image.
struct Reach {
  int64_t begin, end;

  // `before` and `after` count the pixels on either side of this one. The first tap is
  // kernel / 2 times `dilation` pixels before it.
  __device__ Reach(int64_t before, int64_t after, int64_t kernel, int64_t dilation) {
    int64_t ignored;
    const int64_t center = kernel / 2;
    begin = max(int64_t{0}, center - Split(before, dilation, &ignored));
    end = min(kernel, center + Split(after, dilation, &ignored) + 1);
  }
};

// Returns the size of a segment of shared memory that holds `count` elements, beginning
// at any offset in a 16-byte word.
template <typename S>
__host__ __device__ int SegmentSize(int count) {
  constexpr int kWord = 16 / sizeof(S);
  return (count + 2 * kWord - 2) / kWord * kWord;
}

// Splits the elements [start, start + count) of a tensor among the block's threads, to
// copy them from or to a segment of shared memory. In the segment they have the same
// offset within a 16-byte word as in the tensor; returns that offset. Calls word(e) for
// whole words and element(e) for the other elements; e is an index into the segment.
template <typename S, typename Word, typename Element>
__device__ int ForSegment(int64_t start, int count, const Word& word,
                          const Element& element) {
  constexpr int kWord = 16 / sizeof(S);
  const int skip = start % kWord;
  for (int e = threadIdx.x * kWord; e < skip + count; e += blockDim.x * kWord) {
    if (e >= skip && e + kWord <= skip + count) {
      word(e);
    } else {
      for (int i = max(e, skip); i < min(e + kWord, skip + count); ++i) element(i);
    }
  }
  return skip;
}

}  // namespace capsops::high_order_conv
