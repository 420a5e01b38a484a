// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/capsule_routing.h"

#include <string>

#include "cc/framework/planned_op.h"
#include "cc/framework/register.h"

namespace capsops::capsule_routing {
namespace {

using tensorflow::DataTypeToEnum;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

template <typename Exec>
class RoutingOp : public PlannedOp<Exec> {
 public:
  explicit RoutingOp(OpKernelConstruction* ctx) : PlannedOp<Exec>(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("epsilon", &epsilon_));
  }

 protected:
  float epsilon_;
};

// CapsuleRouting and CapsuleRoutingWithSums, which returns the sums.
template <typename Exec, typename T>
class CapsuleRoutingOp : public RoutingOp<Exec> {
 public:
  explicit CapsuleRoutingOp(OpKernelConstruction* ctx) : RoutingOp<Exec>(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("iterations", &iterations_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& input = ctx->input(0);
    const Tensor& weights = ctx->input(1);
    const Tensor& logits = ctx->input(2);
    const auto p = Resolve(input.shape(), weights.shape(), logits.shape(), iterations_,
                           this->epsilon_);
    OP_REQUIRES_OK(ctx, p.status());
    TensorShape sums_shape;
    OP_REQUIRES_OK(
        ctx, TensorShape::BuildTensorShape(
                 {p->iterations, p->batch, p->out_caps, p->out_dim}, &sums_shape));
    Tensor* output;
    OP_REQUIRES_OK(
        ctx, AllocateOutput(ctx, 0, {p->batch, p->out_caps, p->out_dim}, &output));
    Tensor unreturned;
    Tensor* sums = &unreturned;
    if (ctx->num_outputs() > 1) {
      OP_REQUIRES_OK(ctx, ctx->allocate_output(1, sums_shape, &sums));
    } else {
      OP_REQUIRES_OK(ctx, ctx->allocate_temp(DataTypeToEnum<Sum<T>>::value, sums_shape,
                                             &unreturned));
    }
    const auto plan = [](const auto& exec, const auto& problem) {
      return PlanForward<Element<T>>(exec, problem);
    };
    OP_REQUIRES_OK(ctx,
                   this->RunPlan(ctx, *p, plan, Data<T>(input), Data<T>(weights),
                                 Data<T>(logits), Data<T>(output), Data<Sum<T>>(sums)));
  }

 protected:
  std::string planned_name() const override { return kForwardName; }

 private:
  int64_t iterations_;
};

template <typename Exec, typename T>
class CapsuleRoutingGradOp : public RoutingOp<Exec> {
 public:
  using RoutingOp<Exec>::RoutingOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& grad = ctx->input(0);
    const Tensor& input = ctx->input(1);
    const Tensor& weights = ctx->input(2);
    const Tensor& logits = ctx->input(3);
    const Tensor& sums = ctx->input(4);
    const auto p = ResolveGrad(grad.shape(), input.shape(), weights.shape(),
                               logits.shape(), sums.shape(), this->epsilon_);
    OP_REQUIRES_OK(ctx, p.status());
    Tensor* grad_input;
    Tensor* grad_weights;
    Tensor* grad_logits;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, input.shape(), &grad_input));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, weights.shape(), &grad_weights));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(2, logits.shape(), &grad_logits));
    const auto plan = [](const auto& exec, const auto& problem) {
      return PlanBackward<Element<T>>(exec, problem);
    };
    OP_REQUIRES_OK(ctx, this->RunPlan(ctx, *p, plan, Data<T>(grad), Data<T>(input),
                                      Data<T>(weights), Data<T>(logits),
                                      Data<Sum<T>>(sums), Data<T>(grad_input),
                                      Data<T>(grad_weights), Data<T>(grad_logits)));
  }
};

template <typename Exec, typename T>
class CapsuleRoutingCoefficientsOp : public RoutingOp<Exec> {
 public:
  using RoutingOp<Exec>::RoutingOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& input = ctx->input(0);
    const Tensor& weights = ctx->input(1);
    const Tensor& logits = ctx->input(2);
    const Tensor& sums = ctx->input(3);
    const auto p = ResolveCoefficients(input.shape(), weights.shape(), logits.shape(),
                                       sums.shape(), this->epsilon_);
    OP_REQUIRES_OK(ctx, p.status());
    Tensor* coefficients;
    OP_REQUIRES_OK(ctx, AllocateOutput(ctx, 0, {p->batch, p->in_caps, p->out_caps},
                                       &coefficients));
    const auto plan = [](const auto& exec, const auto& problem) {
      return PlanCoefficients<Element<T>>(exec, problem);
    };
    OP_REQUIRES_OK(
        ctx, this->RunPlan(ctx, *p, plan, Data<T>(input), Data<T>(weights),
                           Data<T>(logits), Data<Sum<T>>(sums), Data<T>(coefficients)));
  }
};

const RegisterKernels<CapsuleRoutingOp> kForward("CapsuleRouting");
const RegisterKernels<CapsuleRoutingOp> kForwardWithSums("CapsuleRoutingWithSums",
                                                         {{}, "U"});
const RegisterKernels<CapsuleRoutingGradOp> kBackward("CapsuleRoutingGrad", {{}, "U"});
const RegisterKernels<CapsuleRoutingCoefficientsOp> kCoefficients(
    "CapsuleRoutingCoefficients", {{}, "U"});

}  // namespace
}  // namespace capsops::capsule_routing
