// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/capsule_prediction.h"

#include "tensorflow/core/framework/op_kernel.h"

#include "cc/framework/device.h"

namespace capsops::capsule_prediction {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

template <typename Exec, typename T>
class CapsulePredictionOp : public OpKernel {
 public:
  explicit CapsulePredictionOp(OpKernelConstruction* ctx) : OpKernel(ctx) {}

  void Compute(OpKernelContext* ctx) override {
    const Tensor& input = ctx->input(0);
    const Tensor& weights = ctx->input(1);
    const auto p = Resolve(input.shape(), weights.shape());
    OP_REQUIRES_OK(ctx, p.status());
    TensorShape shape;
    OP_REQUIRES_OK(ctx, TensorShape::BuildTensorShape(
                            {p->batch, p->in_caps, p->out_caps, p->out_dim}, &shape));
    Tensor* output;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &output));
    OP_REQUIRES_OK(ctx, ToStatus(Forward(MakeExec<Exec>(ctx), *p, Data<T>(input),
                                         Data<T>(weights), Data<T>(output))));
  }
};

template <typename Exec, typename T>
class CapsulePredictionGradOp : public OpKernel {
 public:
  explicit CapsulePredictionGradOp(OpKernelConstruction* ctx) : OpKernel(ctx) {}

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
    OP_REQUIRES_OK(ctx, ToStatus(Backward(MakeExec<Exec>(ctx), *p, Data<T>(grad),
                                          Data<T>(input), Data<T>(weights),
                                          Data<T>(grad_input), Data<T>(grad_weights))));
  }
};

#define CAPSOPS_REGISTER(DEVICE, EXEC, T)                          \
  REGISTER_KERNEL_BUILDER(Name("CapsulePrediction")                \
                              .Device(tensorflow::DEVICE_##DEVICE) \
                              .TypeConstraint<T>("T"),             \
                          CapsulePredictionOp<EXEC, T>);           \
  REGISTER_KERNEL_BUILDER(Name("CapsulePredictionGrad")            \
                              .Device(tensorflow::DEVICE_##DEVICE) \
                              .TypeConstraint<T>("T"),             \
                          CapsulePredictionGradOp<EXEC, T>)
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
}  // namespace capsops::capsule_prediction
