// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The boundary between frameworks and kernels: weights that are zero or powers of two,
// from their one-byte codes,
//   weights[n,c] = 2^top_exponents[c] * weight(codes[n,c])
// with weight(0) = 0, weight(1 + 2k) = 2^-k and weight(2 + 2k) = -2^-k for 0 <= k <
// 2^(bits - 2). On a CPU a larger code is an error that names its index; on a GPU it
// reads as 0.
//
// T is float, double, Float16 or BFloat16. 2^top_exponents[c] is computed in
// Accumulator<T>, which may be infinite or zero. If it is a normal number, weights that
// are normal numbers of T are exact. Code 0 is zero even if 2^top_exponents[c] is
// infinite.
#pragma once

#include <cstdint>

#include "cc/launch/op.h"
#include "cc/launch/plan.h"

namespace capsops::inq_decode {

// -1 is an unknown dimension; planners need them all.
struct Problem {
  int64_t rows = -1;
  int64_t columns = -1;
  int64_t bits = 5;  // 2 to 8
};

// Returns the bits of the double 2^n: infinity or zero if that is not a normal number.
constexpr int64_t PowerOfTwoBits(int64_t n) {
  return ((n < -1023 ? -1023 : n > 1024 ? 1024 : n) + 1023) << 52;
}

// codes [rows, columns], top_exponents [columns] -> weights, shaped like codes.
template <typename Exec, typename T>
using DecodePlan = Plan<Exec, const uint8_t* /*codes*/,
                        const int64_t* /*top_exponents*/, T* /*weights*/>;

CAPSOPS_OP(Decode, "InqDecode", DecodePlan)

}  // namespace capsops::inq_decode
