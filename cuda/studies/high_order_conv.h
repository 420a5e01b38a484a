// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The CUDA extension of Simeng and Zhejin, "PyTorch Extension". It computes what
// cc/launch/high_order_conv.h defines, in float32 and on a GPU only, and is used by the
// benchmark only. Tensors have the paper's layout, and gradients that of their tensors:
//   input, output  [batch, channels, height, width]
//   weights        [kernel_height * kernel_width, batch, 1, height, width]
#pragma once

#include <string>

#include "cc/launch/high_order_conv.h"

namespace capsops::studies::high_order_conv {

using capsops::high_order_conv::Problem;

// Returns why the paper does not cover a problem, or "".
std::string Unsupported(const Problem& problem);

LaunchError Forward(const GpuExec& exec, const Problem& problem, const float* input,
                    const float* weights, float* output);
LaunchError Backward(const GpuExec& exec, const Problem& problem, const float* grad,
                     const float* input, const float* weights, float* grad_input,
                     float* grad_weights);

}  // namespace capsops::studies::high_order_conv
