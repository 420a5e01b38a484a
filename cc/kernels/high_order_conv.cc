// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/high_order_conv.h"

#include "tensorflow/core/framework/op_kernel.h"

#include "cc/framework/device.h"

namespace capsops::high_order_conv {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// What the two ops have in common.
class ConvOp : public OpKernel {
 public:
  explicit ConvOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetAttributes(ctx, &attributes_));
  }

 protected:
  const Attributes& attributes() const { return attributes_; }

 private:
  Attributes attributes_;
};

template <typename Exec, typename T>
class HighOrderConvOp : public ConvOp {
 public:
  using ConvOp::ConvOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& input = ctx->input(0);
    const Tensor& filters = ctx->input(1);
    const auto p = Resolve(input.shape(), filters.shape(), attributes());
    OP_REQUIRES_OK(ctx, p.status());
    const Exec exec = MakeExec<Exec>(ctx);
    Tensor* output;
    Tensor workspace;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, input.shape(), &output));
    OP_REQUIRES_OK(ctx, AllocateWorkspace(ctx, ForwardWorkspace<Element<T>>(exec, *p),
                                          &workspace));
    OP_REQUIRES_OK(ctx, ToStatus(Forward(exec, *p, Data<T>(input), Data<T>(filters),
                                         Data<T>(output), workspace.data())));
  }
};

template <typename Exec, typename T>
class HighOrderConvGradOp : public ConvOp {
 public:
  using ConvOp::ConvOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& grad = ctx->input(0);
    const Tensor& input = ctx->input(1);
    const Tensor& filters = ctx->input(2);
    const auto p =
        ResolveGrad(grad.shape(), input.shape(), filters.shape(), attributes());
    OP_REQUIRES_OK(ctx, p.status());
    const Exec exec = MakeExec<Exec>(ctx);
    Tensor* grad_input;
    Tensor* grad_filters;
    Tensor workspace;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, input.shape(), &grad_input));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, filters.shape(), &grad_filters));
    OP_REQUIRES_OK(ctx, AllocateWorkspace(ctx, BackwardWorkspace<Element<T>>(exec, *p),
                                          &workspace));
    OP_REQUIRES_OK(ctx, ToStatus(Backward(exec, *p, Data<T>(grad), Data<T>(input),
                                          Data<T>(filters), Data<T>(grad_input),
                                          Data<T>(grad_filters), workspace.data())));
  }
};

#define CAPSOPS_REGISTER(DEVICE, EXEC, T)                          \
  REGISTER_KERNEL_BUILDER(Name("HighOrderConv")                    \
                              .Device(tensorflow::DEVICE_##DEVICE) \
                              .TypeConstraint<T>("T"),             \
                          HighOrderConvOp<EXEC, T>);               \
  REGISTER_KERNEL_BUILDER(Name("HighOrderConvGrad")                \
                              .Device(tensorflow::DEVICE_##DEVICE) \
                              .TypeConstraint<T>("T"),             \
                          HighOrderConvGradOp<EXEC, T>)
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
}  // namespace capsops::high_order_conv
