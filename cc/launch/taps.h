// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#ifndef CAPSOPS_CC_LAUNCH_TAPS_H_
#define CAPSOPS_CC_LAUNCH_TAPS_H_

#include <algorithm>
#include <cstdint>

namespace capsops {

// The taps of a kernel along one axis that read the image for some pixel of the output:
// `count` from `first` on. A kernel may be much larger than the image, and what its
// other taps read is zero. `pad` is the padding that tap `first` sees, which may be
// below 0.
struct Taps {
  int64_t first, count, pad;

  Taps(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t dilation,
       int64_t padding) {
    const auto ceil_divide = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
    const int64_t zero = 0;
    first = std::max(zero, ceil_divide(padding - (out - 1) * stride, dilation));
    count =
        std::max(zero, std::min(kernel, ceil_divide(in + padding, dilation)) - first);
    pad = padding - first * dilation;
  }
};

}  // namespace capsops

#endif  // CAPSOPS_CC_LAUNCH_TAPS_H_
