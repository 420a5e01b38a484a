// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Division by divisors known only at run time.
#pragma once

#include <cstdint>

namespace capsops {

// Divides numbers below 2^16: the quotient is the high word of a product with the
// reciprocal, which is exact in this range.
struct Divisor {
  int by = 1;
  uint32_t reciprocal = 0;  // 2^32 / by, rounded up; for 1 it would not fit

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

// Decodes a mixed-radix number, least significant digit first.
template <typename Int>
struct Digits {
  Int rest;
  __device__ explicit Digits(Int number) : rest(number) {}
  __device__ Int Next(int64_t radix) {
    const Int by = static_cast<Int>(radix), quotient = rest / by;
    const Int digit = rest - quotient * by;
    rest = quotient;
    return digit;
  }
};

}  // namespace capsops
