// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Finds the taps of a filter whose pixels are inside the image.
#ifndef CAPSOPS_CUDA_HIGH_ORDER_CONV_REACH_CUH_
#define CAPSOPS_CUDA_HIGH_ORDER_CONV_REACH_CUH_

#include <cstdint>

#include "cc/launch/high_order_conv.h"

namespace capsops::high_order_conv {

inline int64_t Pixels(const Problem& p) { return p.batch * p.height * p.width; }

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

}  // namespace capsops::high_order_conv

#endif  // CAPSOPS_CUDA_HIGH_ORDER_CONV_REACH_CUH_
