// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/capsule_prediction.h"

#include "cc/framework/planned_op.h"
#include "cc/framework/register.h"

namespace capsops::capsule_prediction {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

template <typename Exec, typename T>
class CapsulePredictionOp : public PlannedOp<Exec> {
 public:
  using PlannedOp<Exec>::PlannedOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& input = ctx->input(0);
    const Tensor& weights = ctx->input(1);
    const auto p = Resolve(input.shape(), weights.shape());
    OP_REQUIRES_OK(ctx, p.status());
    Tensor* output;
    OP_REQUIRES_OK(
        ctx, AllocateOutput(ctx, 0, {p->batch, p->in_caps, p->out_caps, p->out_dim},
                            &output));
    const auto plan = [](const auto& exec, const auto& problem) {
      return PlanForward<Element<T>>(exec, problem);
    };
    OP_REQUIRES_OK(ctx, this->RunPlan(ctx, *p, plan, Data<T>(input), Data<T>(weights),
                                      Data<T>(output)));
  }
};

template <typename Exec, typename T>
class CapsulePredictionGradOp : public PlannedOp<Exec> {
 public:
  using PlannedOp<Exec>::PlannedOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& grad = ctx->input(0);
    const Tensor& input = ctx->input(1);
    const Tensor& weights = ctx->input(2);
    const auto p = ResolveGrad(grad.shape(), input.shape(), weights.shape());
    OP_REQUIRES_OK(ctx, p.status());
    Tensor* grad_input;
    Tensor* grad_weights;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, input.shape(), &grad_input));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, weights.shape(), &grad_weights));
    const auto plan = [](const auto& exec, const auto& problem) {
      return PlanBackward<Element<T>>(exec, problem);
    };
    OP_REQUIRES_OK(ctx, this->RunPlan(ctx, *p, plan, Data<T>(grad), Data<T>(input),
                                      Data<T>(weights), Data<T>(grad_input),
                                      Data<T>(grad_weights)));
  }
};

const RegisterKernels<CapsulePredictionOp> kForward("CapsulePrediction");
const RegisterKernels<CapsulePredictionGradOp> kBackward("CapsulePredictionGrad");

}  // namespace
}  // namespace capsops::capsule_prediction
