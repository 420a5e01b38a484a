// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/capsule_conv.h"

#include "tensorflow/core/framework/op_kernel.h"

#include "cc/framework/device.h"

namespace capsops::capsule_conv {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// What the three ops have in common.
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
class CapsuleConvOp : public ConvOp {
 public:
  using ConvOp::ConvOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& input = ctx->input(0);
    const Tensor& weights = ctx->input(1);
    const auto conv = Resolve(input.shape(), weights.shape(), attributes());
    OP_REQUIRES_OK(ctx, conv.status());
    const Problem& p = conv->problem;
    const Exec exec = MakeExec<Exec>(ctx);
    Tensor* output;
    Tensor workspace;
    OP_REQUIRES_OK(
        ctx, AllocateResult(ctx, conv->output, ForwardWorkspace<Element<T>>(exec, p),
                            &output, &workspace));
    OP_REQUIRES_OK(ctx, ToStatus(Forward(exec, p, Data<T>(input), Data<T>(weights),
                                         Data<T>(output), workspace.data())));
  }
};

template <typename Exec, typename T>
class CapsuleConvBackpropInputOp : public ConvOp {
 public:
  using ConvOp::ConvOp;

  void Compute(OpKernelContext* ctx) override {
    const auto input =
        ShapeInSizes(type_string().c_str(), "input_sizes", ctx->input(0));
    OP_REQUIRES_OK(ctx, input.status());
    const Tensor& weights = ctx->input(1);
    const Tensor& grad = ctx->input(2);
    const auto conv =
        ResolveBackpropInput(*input, weights.shape(), grad.shape(), attributes());
    OP_REQUIRES_OK(ctx, conv.status());
    const Problem& p = conv->problem;
    const Exec exec = MakeExec<Exec>(ctx);
    Tensor* grad_input;
    Tensor workspace;
    OP_REQUIRES_OK(ctx, AllocateResult(ctx, conv->input,
                                       BackpropInputWorkspace<Element<T>>(exec, p),
                                       &grad_input, &workspace));
    OP_REQUIRES_OK(ctx, ToStatus(BackpropInput(exec, p, Data<T>(weights), Data<T>(grad),
                                               Data<T>(grad_input), workspace.data())));
  }
};

template <typename Exec, typename T>
class CapsuleConvBackpropWeightsOp : public ConvOp {
 public:
  using ConvOp::ConvOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& input = ctx->input(0);
    const auto weights =
        ShapeInSizes(type_string().c_str(), "weight_sizes", ctx->input(1));
    OP_REQUIRES_OK(ctx, weights.status());
    const Tensor& grad = ctx->input(2);
    const auto conv =
        ResolveBackpropWeights(input.shape(), *weights, grad.shape(), attributes());
    OP_REQUIRES_OK(ctx, conv.status());
    const Problem& p = conv->problem;
    const Exec exec = MakeExec<Exec>(ctx);
    Tensor* grad_weights;
    Tensor workspace;
    OP_REQUIRES_OK(ctx, AllocateResult(ctx, conv->weights,
                                       BackpropWeightsWorkspace<Element<T>>(exec, p),
                                       &grad_weights, &workspace));
    OP_REQUIRES_OK(ctx,
                   ToStatus(BackpropWeights(exec, p, Data<T>(input), Data<T>(grad),
                                            Data<T>(grad_weights), workspace.data())));
  }
};

#define CAPSOPS_REGISTER(DEVICE, EXEC, T)                                             \
  REGISTER_KERNEL_BUILDER(                                                            \
      Name("CapsuleConv").Device(tensorflow::DEVICE_##DEVICE).TypeConstraint<T>("T"), \
      CapsuleConvOp<EXEC, T>);                                                        \
  REGISTER_KERNEL_BUILDER(Name("CapsuleConvBackpropInput")                            \
                              .Device(tensorflow::DEVICE_##DEVICE)                    \
                              .HostMemory("input_sizes")                              \
                              .TypeConstraint<T>("T"),                                \
                          CapsuleConvBackpropInputOp<EXEC, T>);                       \
  REGISTER_KERNEL_BUILDER(Name("CapsuleConvBackpropWeights")                          \
                              .Device(tensorflow::DEVICE_##DEVICE)                    \
                              .HostMemory("weight_sizes")                             \
                              .TypeConstraint<T>("T"),                                \
                          CapsuleConvBackpropWeightsOp<EXEC, T>)
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
}  // namespace capsops::capsule_conv
