// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/inq_conv.h"

#include "cc/framework/planned_op.h"
#include "cc/framework/register.h"

namespace capsops::inq_conv {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// What the two ops have in common.
template <typename Exec>
class ConvOp : public PlannedOp<Exec> {
 public:
  explicit ConvOp(OpKernelConstruction* ctx) : PlannedOp<Exec>(ctx) {
    OP_REQUIRES_OK(ctx, GetAttributes(ctx, &attributes_));
  }

 protected:
  const Attributes& attributes() const { return attributes_; }

 private:
  Attributes attributes_;
};

template <typename Exec, typename T>
class InqConvOp : public ConvOp<Exec> {
 public:
  using ConvOp<Exec>::ConvOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& input = ctx->input(0);
    const Tensor& codes = ctx->input(1);
    const Tensor& top_exponent = ctx->input(2);
    const auto conv =
        Resolve(input.shape(), codes.shape(), top_exponent.shape(), this->attributes());
    OP_REQUIRES_OK(ctx, conv.status());
    Tensor* output;
    OP_REQUIRES_OK(ctx, AllocateOutput(ctx, 0, conv->output, &output));
    const auto plan = [](const auto& exec, const auto& problem) {
      return PlanForward<Element<T>>(exec, problem);
    };
    OP_REQUIRES_OK(
        ctx,
        this->RunPlan(ctx, conv->problem, plan, Data<T>(input), Data<uint8_t>(codes),
                      top_exponent.scalar<int32_t>()(), Data<T>(output)));
  }
};

template <typename Exec, typename T>
class InqConvBackpropInputOp : public ConvOp<Exec> {
 public:
  using ConvOp<Exec>::ConvOp;

  void Compute(OpKernelContext* ctx) override {
    const auto input =
        ShapeInSizes(this->type_string().c_str(), "input_sizes", ctx->input(0));
    OP_REQUIRES_OK(ctx, input.status());
    const Tensor& codes = ctx->input(1);
    const Tensor& top_exponent = ctx->input(2);
    const Tensor& grad = ctx->input(3);
    const auto conv = ResolveBackpropInput(*input, codes.shape(), top_exponent.shape(),
                                           grad.shape(), this->attributes());
    OP_REQUIRES_OK(ctx, conv.status());
    Tensor* grad_input;
    OP_REQUIRES_OK(ctx, AllocateOutput(ctx, 0, conv->input, &grad_input));
    const auto plan = [](const auto& exec, const auto& problem) {
      return PlanBackpropInput<Element<T>>(exec, problem);
    };
    OP_REQUIRES_OK(
        ctx,
        this->RunPlan(ctx, conv->problem, plan, Data<T>(grad), Data<uint8_t>(codes),
                      top_exponent.scalar<int32_t>()(), Data<T>(grad_input)));
  }
};

const RegisterKernels<InqConvOp> kForward("InqConv", {{"top_exponent"}});
const RegisterKernels<InqConvBackpropInputOp> kInput("InqConvBackpropInput",
                                                     {{"input_sizes", "top_exponent"}});

}  // namespace
}  // namespace capsops::inq_conv
