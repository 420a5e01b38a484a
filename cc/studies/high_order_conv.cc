// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Registers cuda/studies/high_order_conv.h as ops of the studies' library. Their
// weights are a transpose of HighOrderConv's NCHW filters: shapes are checked by
// HighOrderConv's rule for these filters, then by the scheme.
#include "cuda/studies/high_order_conv.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cc/shapes/high_order_conv.h"
#include "cc/studies/study.h"

namespace capsops::studies::high_order_conv {
namespace {

using capsops::high_order_conv::Attributes;

constexpr const char* kForward = "HighOrderConvStudy";
constexpr const char* kBackward = "HighOrderConvStudyGrad";

// Sets HighOrderConv's attributes; these ops have only kernel_size.
template <typename Context>
absl::Status GetKernelSize(Context* ctx, Attributes* attributes) {
  attributes->dilations = {1, 1};
  attributes->data_format = "NCHW";
  return ctx->GetAttr("kernel_size", &attributes->kernel_size);
}

// Returns the filters' shape; weights [positions, batch, 1, height, width] are
// transposed.
absl::StatusOr<PartialTensorShape> FiltersOf(const char* op,
                                             const PartialTensorShape& weights) {
  if (weights.unknown_rank()) return weights;
  int64_t positions = -1, batch = -1, shared = 1, height = -1, width = -1;
  const absl::Status status = ShapeRule(op)
                                  .Bind("weights", weights,
                                        {{"kernel_positions", &positions},
                                         {"batch", &batch},
                                         {"channels that differ", &shared},
                                         {"height", &height},
                                         {"width", &width}})
                                  .status();
  if (!status.ok()) return status;
  PartialTensorShape filters;
  TF_RETURN_IF_ERROR(PartialTensorShape::BuildPartialTensorShape(
      std::vector<int64_t>{batch, positions, height, width}, &filters));
  return filters;
}

// Refuses a problem that the scheme does not support. Unknown dimensions (-1) pass.
absl::StatusOr<Problem> CheckSupported(const char* op,
                                       absl::StatusOr<Problem> problem) {
  if (!problem.ok()) return problem;
  const std::string reason = Unsupported(*problem);
  return ErrorIf(reason, op, std::move(problem));
}

absl::StatusOr<Problem> Resolve(const Attributes& attributes,
                                const PartialTensorShape& input,
                                const PartialTensorShape& weights) {
  const auto filters = FiltersOf(kForward, weights);
  if (!filters.ok()) return filters.status();
  return CheckSupported(kForward,
                        capsops::high_order_conv::Resolve(input, *filters, attributes));
}

absl::StatusOr<Problem> ResolveGrad(const Attributes& attributes,
                                    const PartialTensorShape& grad,
                                    const PartialTensorShape& input,
                                    const PartialTensorShape& weights) {
  const auto filters = FiltersOf(kBackward, weights);
  if (!filters.ok()) return filters.status();
  return CheckSupported(kBackward, capsops::high_order_conv::ResolveGrad(
                                       grad, input, *filters, attributes));
}

absl::Status SetImageShape(InferenceContext* ctx, const Problem& p) {
  return SetOutputShape(ctx, 0, {p.batch, p.channels, p.height, p.width});
}

REGISTER_OP("HighOrderConvStudy")
    .Input("input: float")
    .Input("weights: float")
    .Output("output: float")
    .Attr("kernel_size: list(int)")
    .SetShapeFn([](InferenceContext* ctx) -> absl::Status {
      Attributes attributes;
      TF_RETURN_IF_ERROR(GetKernelSize(ctx, &attributes));
      const auto p = Resolve(attributes, InputShape(ctx, 0), InputShape(ctx, 1));
      if (!p.ok()) return p.status();
      return SetImageShape(ctx, *p);
    })
    .Doc(R"doc(
HighOrderConv as Simeng and Zhejin, "PyTorch Extension", compute it in CUDA, on a GPU.

input: Images, [batch, channels, height, width]; width is at most 1024.
weights: A filter for each pixel, [kernel_height * kernel_width, batch, 1, height, width].
output: Shaped like input.
kernel_size: Rows and columns of a filter, two odd numbers.
)doc");

REGISTER_OP("HighOrderConvStudyGrad")
    .Input("grad: float")
    .Input("input: float")
    .Input("weights: float")
    .Output("grad_input: float")
    .Output("grad_weights: float")
    .Attr("kernel_size: list(int)")
    .SetShapeFn([](InferenceContext* ctx) -> absl::Status {
      Attributes attributes;
      TF_RETURN_IF_ERROR(GetKernelSize(ctx, &attributes));
      const auto p = ResolveGrad(attributes, InputShape(ctx, 0), InputShape(ctx, 1),
                                 InputShape(ctx, 2));
      if (!p.ok()) return p.status();
      TF_RETURN_IF_ERROR(SetImageShape(ctx, *p));
      return SetOutputShape(
          ctx, 1,
          {p->kernel_height * p->kernel_width, p->batch, 1, p->height, p->width});
    })
    .Doc(R"doc(
Both gradients of HighOrderConvStudy, in one kernel as there.

grad: Gradient of the loss in the output, shaped like input.
input: As given to HighOrderConvStudy.
weights: As given to HighOrderConvStudy.
grad_input: Shaped like input.
grad_weights: Shaped like weights.
kernel_size: As given to HighOrderConvStudy.
)doc");

// Base class of both ops, which reads their attribute.
class StudyOp : public OpKernel {
 public:
  explicit StudyOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetKernelSize(ctx, &attributes_));
  }

 protected:
  Attributes attributes_;
};

class HighOrderConvStudyOp : public StudyOp {
 public:
  using StudyOp::StudyOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& input = ctx->input(0);
    const Tensor& weights = ctx->input(1);
    const auto problem = Resolve(attributes_, input.shape(), weights.shape());
    OP_REQUIRES_OK(ctx, problem.status());
    Tensor* output;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, input.shape(), &output));
    GpuExec exec;
    OP_REQUIRES_OK(ctx, MakeExec(ctx, &exec));
    OP_REQUIRES_OK(ctx, ToStatus(Forward(exec, *problem, Data<float>(input),
                                         Data<float>(weights), Data<float>(output))));
  }
};

class HighOrderConvStudyGradOp : public StudyOp {
 public:
  using StudyOp::StudyOp;

  void Compute(OpKernelContext* ctx) override {
    Gradients of(ctx);
    const auto problem =
        ResolveGrad(attributes_, of.grad.shape(), of.input.shape(), of.weights.shape());
    OP_REQUIRES_OK(ctx, problem.status());
    OP_REQUIRES_OK(ctx, of.Allocate(ctx));
    GpuExec exec;
    OP_REQUIRES_OK(ctx, MakeExec(ctx, &exec));
    OP_REQUIRES_OK(ctx, ToStatus(Backward(
                            exec, *problem, Data<float>(of.grad), Data<float>(of.input),
                            Data<float>(of.weights), Data<float>(of.grad_input),
                            Data<float>(of.grad_weights))));
  }
};

REGISTER_KERNEL_BUILDER(Name(kForward).Device(tensorflow::DEVICE_GPU),
                        HighOrderConvStudyOp);
REGISTER_KERNEL_BUILDER(Name(kBackward).Device(tensorflow::DEVICE_GPU),
                        HighOrderConvStudyGradOp);

}  // namespace
}  // namespace capsops::studies::high_order_conv
