// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The custom call of an op, which kernels.cc emits and handlers.cc runs. Its target is
// named Target<Op, T>(), and its attribute kProblem holds the Problem and the plan's
// by-value arguments as 64-bit words. Its operands and results are the plan's, and the
// workspace is one more result.
#pragma once

#include <cstdint>
#include <string>

#include "cc/launch/capsule_conv.h"
#include "cc/launch/capsule_conv_routing.h"
#include "cc/launch/capsule_moments.h"
#include "cc/launch/capsule_prediction.h"
#include "cc/launch/capsule_routing.h"
#include "cc/launch/exec.h"
#include "cc/launch/high_order_conv.h"
#include "cc/launch/inq_capsule_routing.h"
#include "cc/launch/inq_conv.h"
#include "cc/launch/inq_conv_int8.h"
#include "cc/launch/inq_decode.h"

namespace capsops {

inline constexpr char kProblem[] = "problem";

template <typename T>
inline constexpr const char* kTypeName = nullptr;
template <>
inline constexpr const char* kTypeName<float> = "float32";
template <>
inline constexpr const char* kTypeName<double> = "float64";
template <>
inline constexpr const char* kTypeName<Float16> = "float16";
template <>
inline constexpr const char* kTypeName<BFloat16> = "bfloat16";

template <typename Op, typename T>
std::string Target() {
  return std::string("tf_capsops.") + Op::kName + "." + kTypeName<T>;
}

template <typename Problem>
constexpr int ProblemWords() {
  static_assert(sizeof(Problem) % sizeof(int64_t) == 0);
  return sizeof(Problem) / sizeof(int64_t);
}

}  // namespace capsops
