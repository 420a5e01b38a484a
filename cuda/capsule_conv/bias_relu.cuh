// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Bias and ReLU of one element.
#pragma once

#include "cuda/common/types.cuh"

namespace capsops::capsule_conv {

// Returns max(x + bias, 0); NaN stays NaN.
template <typename A, typename S>
__device__ A BiasRelu(A x, S bias) {
  x += Widen(bias);
  return x < 0 ? 0 : x;
}

}  // namespace capsops::capsule_conv
