// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Registers cuda/studies/capsule_prediction.h as ops of the studies' library. Shapes
// are checked by CapsulePrediction's own rule.
#include "cuda/studies/capsule_prediction.h"

#include "cc/shapes/capsule_prediction.h"
#include "cc/studies/study.h"

namespace capsops::studies::capsule_prediction {
namespace {

// CapsulePrediction's ops with the paper's kernels.
struct ForwardOp : capsops::capsule_prediction::ForwardOp {
  static constexpr const char* kOp = "CapsulePredictionStudy";

  template <typename T, typename Exec>
  static auto MakePlan(const Exec&, const Problem& p) {
    return Plan<Exec, const T*, const T*, T*>::Make(
        0, [p](const Exec& exec, const T* input, const T* weights, T* output, void*) {
          return capsule_prediction::Forward(exec, p, input, weights, output);
        });
  }
};

struct BackwardOp : capsops::capsule_prediction::BackwardOp {
  static constexpr const char* kOp = "CapsulePredictionStudyGrad";

  template <typename T, typename Exec>
  static auto MakePlan(const Exec&, const Problem& p) {
    return Plan<Exec, const T*, const T*, const T*, T*, T*>::Make(
        0, [p](const Exec& exec, const T* grad, const T* input, const T* weights,
               T* grad_input, T* grad_weights, void*) {
          return capsule_prediction::Backward(exec, p, grad, input, weights, grad_input,
                                              grad_weights);
        });
  }
};

REGISTER_OP("CapsulePredictionStudy")
    .Input("input: float")
    .Input("weights: float")
    .Output("output: float")
    .SetShapeFn(InferShapes<ForwardOp>)
    .Doc(R"doc(
CapsulePrediction as van de Wolfshaar, "Cuda, TensorFlow And Capsule Networks", computes it, on a GPU.

input: As CapsulePrediction's.
weights: As CapsulePrediction's.
output: As CapsulePrediction's.
)doc");

REGISTER_OP("CapsulePredictionStudyGrad")
    .Input("grad: float")
    .Input("input: float")
    .Input("weights: float")
    .Output("grad_input: float")
    .Output("grad_weights: float")
    .SetShapeFn(InferShapes<BackwardOp>)
    .Doc(R"doc(
Both gradients of CapsulePredictionStudy, a kernel for each.

grad: As CapsulePredictionGrad's.
input: As given to CapsulePredictionStudy.
weights: As given to CapsulePredictionStudy.
grad_input: Shaped like input.
grad_weights: Shaped like weights.
)doc");

REGISTER_KERNEL_BUILDER(Name("CapsulePredictionStudy").Device(tensorflow::DEVICE_GPU),
                        PlannedOp<ForwardOp, GpuExec, float>);
REGISTER_KERNEL_BUILDER(
    Name("CapsulePredictionStudyGrad").Device(tensorflow::DEVICE_GPU),
    PlannedOp<BackwardOp, GpuExec, float>);

}  // namespace
}  // namespace capsops::studies::capsule_prediction
