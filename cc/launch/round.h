// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Integer division and rounding. These functions are static because cc/cpu compiles
// them once per instruction set, and the linker must not merge the copies.
#pragma once

#include <cstdint>

namespace capsops {

static inline int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Version for quotients that fit in an int.
static inline int CeilDivideInt(int64_t a, int64_t b) {
  return static_cast<int>(CeilDivide(a, b));
}

static inline int64_t RoundUp(int64_t value, int64_t multiple) {
  return CeilDivide(value, multiple) * multiple;
}

// Returns the greatest common divisor; `a` must not be 0.
static inline int64_t Gcd(int64_t a, int64_t b) {
  while (b != 0) {
    const int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

}  // namespace capsops
