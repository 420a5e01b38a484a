// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The CUDA kernels of van de Wolfshaar, "Cuda, TensorFlow And Capsule Networks". They
// compute what cc/launch/capsule_prediction.h defines, in float32 and on a GPU only,
// and are used by the benchmark only.
#pragma once

#include "cc/launch/capsule_prediction.h"

namespace capsops::studies::capsule_prediction {

using capsops::capsule_prediction::Problem;

LaunchError Forward(const GpuExec& exec, const Problem& problem, const float* input,
                    const float* weights, float* output);
LaunchError Backward(const GpuExec& exec, const Problem& problem, const float* grad,
                     const float* input, const float* weights, float* grad_input,
                     float* grad_weights);

}  // namespace capsops::studies::capsule_prediction
