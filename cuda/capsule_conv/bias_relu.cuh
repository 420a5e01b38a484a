// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Bias and ReLU of one element.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_BIAS_RELU_CUH_
#define CAPSOPS_CUDA_CAPSULE_CONV_BIAS_RELU_CUH_

#include "cuda/common/types.cuh"

namespace capsops::capsule_conv {

// Returns max(x + bias, 0); NaN stays NaN.
template <typename A, typename S>
__device__ A BiasRelu(A x, S bias) {
  x += Widen(bias);
  return x < 0 ? 0 : x;
}

}  // namespace capsops::capsule_conv

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_BIAS_RELU_CUH_
