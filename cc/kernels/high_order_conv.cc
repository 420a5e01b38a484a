// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/high_order_conv.h"

#include "cc/framework/planned_op.h"
#include "cc/framework/register.h"

namespace capsops::high_order_conv {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// The attributes that the two ops have in common.
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
class HighOrderConvOp : public ConvOp<Exec> {
 public:
  using ConvOp<Exec>::ConvOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& input = ctx->input(0);
    const Tensor& filters = ctx->input(1);
    const auto p = Resolve(input.shape(), filters.shape(), this->attributes());
    OP_REQUIRES_OK(ctx, p.status());
    Tensor* output;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, input.shape(), &output));
    const auto plan = [](const auto& exec, const auto& problem) {
      return PlanForward<Element<T>>(exec, problem);
    };
    OP_REQUIRES_OK(ctx, this->RunPlan(ctx, *p, plan, Data<T>(input), Data<T>(filters),
                                      Data<T>(output)));
  }
};

template <typename Exec, typename T>
class HighOrderConvGradOp : public ConvOp<Exec> {
 public:
  using ConvOp<Exec>::ConvOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& grad = ctx->input(0);
    const Tensor& input = ctx->input(1);
    const Tensor& filters = ctx->input(2);
    const auto p =
        ResolveGrad(grad.shape(), input.shape(), filters.shape(), this->attributes());
    OP_REQUIRES_OK(ctx, p.status());
    Tensor* grad_input;
    Tensor* grad_filters;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, input.shape(), &grad_input));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, filters.shape(), &grad_filters));
    const auto plan = [](const auto& exec, const auto& problem) {
      return PlanBackward<Element<T>>(exec, problem);
    };
    OP_REQUIRES_OK(ctx, this->RunPlan(ctx, *p, plan, Data<T>(grad), Data<T>(input),
                                      Data<T>(filters), Data<T>(grad_input),
                                      Data<T>(grad_filters)));
  }
};

const RegisterKernels<HighOrderConvOp> kForward("HighOrderConv");
const RegisterKernels<HighOrderConvGradOp> kBackward("HighOrderConvGrad");

}  // namespace
}  // namespace capsops::high_order_conv
