// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Registers cuda/studies/capsule_prediction.h as ops of the studies' library. Shapes
// are checked by CapsulePrediction's own rule.
#include "cuda/studies/capsule_prediction.h"

#include <type_traits>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

#include "cc/framework/device.h"
#include "cc/framework/infer_shapes.h"
#include "cc/framework/planned_op.h"
#include "cc/shapes/capsule_prediction.h"

namespace capsops::studies::capsule_prediction {
namespace {

using capsops::capsule_prediction::BackwardOp;
using capsops::capsule_prediction::ForwardOp;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

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

// Resolves the shapes of `Op`, allocates its results and calls Launch.
template <typename Op>
class StudyOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const auto call = Op().Resolve(KernelInputs(ctx));
    OP_REQUIRES_OK(ctx, call.status());
    std::vector<Tensor*> results(call->results.size());
    for (size_t i = 0; i < results.size(); ++i) {
      OP_REQUIRES_OK(ctx, AllocateOutput(ctx, i, call->results[i], &results[i]));
    }
    GpuExec exec;
    OP_REQUIRES_OK(ctx, MakeExec(ctx, &exec));
    OP_REQUIRES_OK(ctx, ToStatus(Launch(exec, call->problem, ctx, results)));
  }

 private:
  static LaunchError Launch(const GpuExec& exec, const Problem& problem,
                            OpKernelContext* ctx, const std::vector<Tensor*>& results) {
    const auto in = [ctx](int index) { return Data<float>(ctx->input(index)); };
    if constexpr (std::is_same_v<Op, ForwardOp>) {
      return Forward(exec, problem, in(0), in(1), Data<float>(results[0]));
    } else {
      return Backward(exec, problem, in(0), in(1), in(2), Data<float>(results[0]),
                      Data<float>(results[1]));
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("CapsulePredictionStudy").Device(tensorflow::DEVICE_GPU),
                        StudyOp<ForwardOp>);
REGISTER_KERNEL_BUILDER(
    Name("CapsulePredictionStudyGrad").Device(tensorflow::DEVICE_GPU),
    StudyOp<BackwardOp>);

}  // namespace
}  // namespace capsops::studies::capsule_prediction
