// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule prediction as the CUDA kernels of van de Wolfshaar, "Cuda, TensorFlow And
// Capsule Networks", compute it: what cc/launch/capsule_prediction.h says, in float32
// and on a GPU only. Nothing but the benchmark uses it.
#ifndef CAPSOPS_CUDA_STUDIES_CAPSULE_PREDICTION_H_
#define CAPSOPS_CUDA_STUDIES_CAPSULE_PREDICTION_H_

#include "cc/launch/capsule_prediction.h"

namespace capsops::studies::capsule_prediction {

using capsops::capsule_prediction::Problem;

LaunchError Forward(const GpuExec& exec, const Problem& problem, const float* input,
                    const float* weights, float* output);
LaunchError Backward(const GpuExec& exec, const Problem& problem, const float* grad,
                     const float* input, const float* weights, float* grad_input,
                     float* grad_weights);

}  // namespace capsops::studies::capsule_prediction

#endif  // CAPSOPS_CUDA_STUDIES_CAPSULE_PREDICTION_H_
