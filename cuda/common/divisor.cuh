// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Division by a divisor known only at run time, in two instructions.
#ifndef CAPSOPS_CUDA_COMMON_DIVISOR_CUH_
#define CAPSOPS_CUDA_COMMON_DIVISOR_CUH_

#include <cstdint>

namespace capsops {

// Divides numbers below 2^16 by multiplying with a reciprocal.
struct Divisor {
  int by = 1;
  uint32_t reciprocal = 0;  // 2^32 / by, rounded up; unused for 1

  Divisor() = default;
  explicit Divisor(int by) : by(by), reciprocal(by > 1 ? 0xffffffffu / by + 1 : 0) {}

  __device__ int Quotient(int n) const {
    return by == 1 ? n : static_cast<int>(__umulhi(n, reciprocal));
  }
  __device__ int Split(int n, int* remainder) const {
    const int quotient = Quotient(n);
    *remainder = n - quotient * by;
    return quotient;
  }
};

}  // namespace capsops

#endif  // CAPSOPS_CUDA_COMMON_DIVISOR_CUH_
