// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/capsule_routing.h"

#include "tensorflow/core/framework/op_kernel.h"

#include "cc/framework/device.h"

namespace capsops::capsule_routing {
namespace {

using tensorflow::DataTypeToEnum;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// CapsuleRouting and CapsuleRoutingWithSums, which returns the sums.
template <typename Exec, typename T>
class CapsuleRoutingOp : public OpKernel {
 public:
  explicit CapsuleRoutingOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("iterations", &iterations_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("epsilon", &epsilon_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& input = ctx->input(0);
    const Tensor& weights = ctx->input(1);
    const Tensor& logits = ctx->input(2);
    const auto p =
        Resolve(input.shape(), weights.shape(), logits.shape(), iterations_, epsilon_);
    OP_REQUIRES_OK(ctx, p.status());
    TensorShape shape, sums_shape;
    OP_REQUIRES_OK(ctx, TensorShape::BuildTensorShape(
                            {p->batch, p->out_caps, p->out_dim}, &shape));
    OP_REQUIRES_OK(
        ctx, TensorShape::BuildTensorShape(
                 {p->iterations, p->batch, p->out_caps, p->out_dim}, &sums_shape));
    Tensor* output;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &output));
    Tensor unreturned;
    Tensor* sums = &unreturned;
    if (ctx->num_outputs() > 1) {
      OP_REQUIRES_OK(ctx, ctx->allocate_output(1, sums_shape, &sums));
    } else {
      OP_REQUIRES_OK(ctx, ctx->allocate_temp(DataTypeToEnum<Sum<T>>::value, sums_shape,
                                             &unreturned));
    }
    const Exec exec = MakeExec<Exec>(ctx);
    Tensor workspace;
    OP_REQUIRES_OK(ctx, AllocateWorkspace(ctx, ForwardWorkspace<Element<T>>(exec, *p),
                                          &workspace));
    OP_REQUIRES_OK(ctx, ToStatus(Forward(exec, *p, Data<T>(input), Data<T>(weights),
                                         Data<T>(logits), Data<T>(output),
                                         Data<Sum<T>>(sums), workspace.data())));
  }

 private:
  int64_t iterations_;
  float epsilon_;
};

template <typename Exec, typename T>
class CapsuleRoutingGradOp : public OpKernel {
 public:
  explicit CapsuleRoutingGradOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("epsilon", &epsilon_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& grad = ctx->input(0);
    const Tensor& input = ctx->input(1);
    const Tensor& weights = ctx->input(2);
    const Tensor& logits = ctx->input(3);
    const Tensor& sums = ctx->input(4);
    const auto p = ResolveGrad(grad.shape(), input.shape(), weights.shape(),
                               logits.shape(), sums.shape(), epsilon_);
    OP_REQUIRES_OK(ctx, p.status());
    Tensor* grad_input;
    Tensor* grad_weights;
    Tensor* grad_logits;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, input.shape(), &grad_input));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, weights.shape(), &grad_weights));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(2, logits.shape(), &grad_logits));
    const Exec exec = MakeExec<Exec>(ctx);
    Tensor workspace;
    OP_REQUIRES_OK(ctx, AllocateWorkspace(ctx, BackwardWorkspace<Element<T>>(exec, *p),
                                          &workspace));
    OP_REQUIRES_OK(
        ctx, ToStatus(Backward(exec, *p, Data<T>(grad), Data<T>(input),
                               Data<T>(weights), Data<T>(logits), Data<Sum<T>>(sums),
                               Data<T>(grad_input), Data<T>(grad_weights),
                               Data<T>(grad_logits), workspace.data())));
  }

 private:
  float epsilon_;
};

template <typename Exec, typename T>
class CapsuleRoutingCoefficientsOp : public OpKernel {
 public:
  explicit CapsuleRoutingCoefficientsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("epsilon", &epsilon_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& input = ctx->input(0);
    const Tensor& weights = ctx->input(1);
    const Tensor& logits = ctx->input(2);
    const Tensor& sums = ctx->input(3);
    const auto p = ResolveCoefficients(input.shape(), weights.shape(), logits.shape(),
                                       sums.shape(), epsilon_);
    OP_REQUIRES_OK(ctx, p.status());
    TensorShape shape;
    OP_REQUIRES_OK(ctx, TensorShape::BuildTensorShape(
                            {p->batch, p->in_caps, p->out_caps}, &shape));
    Tensor* coefficients;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &coefficients));
    const Exec exec = MakeExec<Exec>(ctx);
    Tensor workspace;
    OP_REQUIRES_OK(ctx,
                   AllocateWorkspace(ctx, CoefficientsWorkspace<Element<T>>(exec, *p),
                                     &workspace));
    OP_REQUIRES_OK(ctx,
                   ToStatus(Coefficients(exec, *p, Data<T>(input), Data<T>(weights),
                                         Data<T>(logits), Data<Sum<T>>(sums),
                                         Data<T>(coefficients), workspace.data())));
  }

 private:
  float epsilon_;
};

#define CAPSOPS_REGISTER(DEVICE, EXEC, T)                          \
  REGISTER_KERNEL_BUILDER(Name("CapsuleRouting")                   \
                              .Device(tensorflow::DEVICE_##DEVICE) \
                              .TypeConstraint<T>("T"),             \
                          CapsuleRoutingOp<EXEC, T>);              \
  REGISTER_KERNEL_BUILDER(Name("CapsuleRoutingWithSums")           \
                              .Device(tensorflow::DEVICE_##DEVICE) \
                              .TypeConstraint<T>("T")              \
                              .TypeConstraint<Sum<T>>("U"),        \
                          CapsuleRoutingOp<EXEC, T>);              \
  REGISTER_KERNEL_BUILDER(Name("CapsuleRoutingGrad")               \
                              .Device(tensorflow::DEVICE_##DEVICE) \
                              .TypeConstraint<T>("T")              \
                              .TypeConstraint<Sum<T>>("U"),        \
                          CapsuleRoutingGradOp<EXEC, T>);          \
  REGISTER_KERNEL_BUILDER(Name("CapsuleRoutingCoefficients")       \
                              .Device(tensorflow::DEVICE_##DEVICE) \
                              .TypeConstraint<T>("T")              \
                              .TypeConstraint<Sum<T>>("U"),        \
                          CapsuleRoutingCoefficientsOp<EXEC, T>)
#define CAPSOPS_REGISTER_ALL(DEVICE, EXEC)     \
  CAPSOPS_REGISTER(DEVICE, EXEC, float);       \
  CAPSOPS_REGISTER(DEVICE, EXEC, double);      \
  CAPSOPS_REGISTER(DEVICE, EXEC, Eigen::half); \
  CAPSOPS_REGISTER(DEVICE, EXEC, Eigen::bfloat16)

CAPSOPS_REGISTER_ALL(CPU, CpuExec);
#if TF_CAPSOPS_CUDA
CAPSOPS_REGISTER_ALL(GPU, GpuExec);
#endif

}  // namespace
}  // namespace capsops::capsule_routing
