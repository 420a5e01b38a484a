// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The boundary between frameworks and kernels: weights that are zero or powers of two,
// from their one-byte codes,
//   weights[n,c] = scales[c] * weight(codes[n,c])
// with weight(0) = 0, weight(1 + 2k) = 2^-k and weight(2 + 2k) = -2^-k for 0 <= k <
// 2^(bits - 2). On a CPU a larger code is an error that names its index; on a GPU it
// reads as 0.
//
// T is float, double, Float16 or BFloat16. Scales are powers of two, so weights that
// are normal numbers of T are exact. Code 0 is zero even if its scale is infinite.
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

// codes [rows, columns], scales [columns] -> weights, shaped like codes.
template <typename Exec, typename T>
using DecodePlan =
    Plan<Exec, const uint8_t* /*codes*/, const T* /*scales*/, T* /*weights*/>;

CAPSOPS_OP(Decode, "InqDecode", DecodePlan)

}  // namespace capsops::inq_decode
