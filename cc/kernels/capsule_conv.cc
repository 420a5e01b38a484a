// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/capsule_conv.h"

#include "cc/framework/planned_op.h"
#include "cc/framework/register.h"

namespace capsops::capsule_conv {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// What the three ops have in common.
template <typename Exec>
class ConvOp : public PlannedOp<Exec> {
 public:
  explicit ConvOp(OpKernelConstruction* ctx) : PlannedOp<Exec>(ctx) {
    OP_REQUIRES_OK(ctx, GetAttributes(ctx, &attributes_));
  }

 protected:
  const Attributes& attributes() const { return attributes_; }
  absl::StatusOr<tensorflow::PartialTensorShape> ShapeIn(const char* name,
                                                         const Tensor& sizes) const {
    return ShapeInSizes(this->type_string().c_str(), name, sizes);
  }

 private:
  Attributes attributes_;
};

template <typename Exec, typename T>
class CapsuleConvOp : public ConvOp<Exec> {
 public:
  using ConvOp<Exec>::ConvOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& input = ctx->input(0);
    const Tensor& weights = ctx->input(1);
    const auto conv = Resolve(input.shape(), weights.shape(), this->attributes());
    OP_REQUIRES_OK(ctx, conv.status());
    Tensor* output;
    OP_REQUIRES_OK(ctx, AllocateOutput(ctx, 0, conv->output, &output));
    const auto plan = [](const auto& exec, const auto& problem) {
      return PlanForward<Element<T>>(exec, problem);
    };
    OP_REQUIRES_OK(ctx, this->RunPlan(ctx, conv->problem, plan, Data<T>(input),
                                      Data<T>(weights), Data<T>(output)));
  }
};

template <typename Exec, typename T>
class CapsuleConvBackpropInputOp : public ConvOp<Exec> {
 public:
  using ConvOp<Exec>::ConvOp;

  void Compute(OpKernelContext* ctx) override {
    const auto input = this->ShapeIn("input_sizes", ctx->input(0));
    OP_REQUIRES_OK(ctx, input.status());
    const Tensor& weights = ctx->input(1);
    const Tensor& grad = ctx->input(2);
    const auto conv =
        ResolveBackpropInput(*input, weights.shape(), grad.shape(), this->attributes());
    OP_REQUIRES_OK(ctx, conv.status());
    Tensor* grad_input;
    OP_REQUIRES_OK(ctx, AllocateOutput(ctx, 0, conv->input, &grad_input));
    const auto plan = [](const auto& exec, const auto& problem) {
      return PlanBackpropInput<Element<T>>(exec, problem);
    };
    OP_REQUIRES_OK(ctx, this->RunPlan(ctx, conv->problem, plan, Data<T>(grad),
                                      Data<T>(weights), Data<T>(grad_input)));
  }
};

template <typename Exec, typename T>
class CapsuleConvBackpropWeightsOp : public ConvOp<Exec> {
 public:
  using ConvOp<Exec>::ConvOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& input = ctx->input(0);
    const auto weights = this->ShapeIn("weight_sizes", ctx->input(1));
    OP_REQUIRES_OK(ctx, weights.status());
    const Tensor& grad = ctx->input(2);
    const auto conv = ResolveBackpropWeights(input.shape(), *weights, grad.shape(),
                                             this->attributes());
    OP_REQUIRES_OK(ctx, conv.status());
    Tensor* grad_weights;
    OP_REQUIRES_OK(ctx, AllocateOutput(ctx, 0, conv->weights, &grad_weights));
    const auto plan = [](const auto& exec, const auto& problem) {
      return PlanBackpropWeights<Element<T>>(exec, problem);
    };
    OP_REQUIRES_OK(ctx, this->RunPlan(ctx, conv->problem, plan, Data<T>(input),
                                      Data<T>(grad), Data<T>(grad_weights)));
  }
};

const RegisterKernels<CapsuleConvOp> kForward("CapsuleConv");
const RegisterKernels<CapsuleConvBackpropInputOp> kInput("CapsuleConvBackpropInput",
                                                         {{"input_sizes"}});
const RegisterKernels<CapsuleConvBackpropWeightsOp> kWeights(
    "CapsuleConvBackpropWeights", {{"weight_sizes"}});

}  // namespace
}  // namespace capsops::capsule_conv
