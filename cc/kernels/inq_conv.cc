// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/inq_conv.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"

#include "cc/framework/device.h"

namespace capsops::inq_conv {
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

  // A code past the book is the caller's mistake.
  absl::Status LaunchStatus(const LaunchError& error) const {
    if (!absl::StartsWith(error.text(), "codes")) return ToStatus(error);
    return absl::InvalidArgumentError(absl::StrCat(type_string(), ": ", error.text()));
  }

 private:
  Attributes attributes_;
};

template <typename Exec, typename T>
class InqConvOp : public ConvOp {
 public:
  using ConvOp::ConvOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& input = ctx->input(0);
    const Tensor& codes = ctx->input(1);
    const Tensor& top_exponent = ctx->input(2);
    const auto conv =
        Resolve(input.shape(), codes.shape(), top_exponent.shape(), attributes());
    OP_REQUIRES_OK(ctx, conv.status());
    const Problem& p = conv->problem;
    const Exec exec = MakeExec<Exec>(ctx);
    Tensor* output;
    Tensor workspace;
    OP_REQUIRES_OK(
        ctx, AllocateResult(ctx, conv->output, ForwardWorkspace<Element<T>>(exec, p),
                            &output, &workspace));
    OP_REQUIRES_OK(
        ctx, LaunchStatus(Forward(exec, p, Data<T>(input), Data<uint8_t>(codes),
                                  top_exponent.scalar<int32_t>()(), Data<T>(output),
                                  workspace.data())));
  }
};

template <typename Exec, typename T>
class InqConvBackpropInputOp : public ConvOp {
 public:
  using ConvOp::ConvOp;

  void Compute(OpKernelContext* ctx) override {
    const auto input =
        ShapeInSizes(type_string().c_str(), "input_sizes", ctx->input(0));
    OP_REQUIRES_OK(ctx, input.status());
    const Tensor& codes = ctx->input(1);
    const Tensor& top_exponent = ctx->input(2);
    const Tensor& grad = ctx->input(3);
    const auto conv = ResolveBackpropInput(*input, codes.shape(), top_exponent.shape(),
                                           grad.shape(), attributes());
    OP_REQUIRES_OK(ctx, conv.status());
    const Problem& p = conv->problem;
    const Exec exec = MakeExec<Exec>(ctx);
    Tensor* grad_input;
    Tensor workspace;
    OP_REQUIRES_OK(ctx, AllocateResult(ctx, conv->input,
                                       BackpropInputWorkspace<Element<T>>(exec, p),
                                       &grad_input, &workspace));
    OP_REQUIRES_OK(
        ctx, LaunchStatus(BackpropInput(exec, p, Data<uint8_t>(codes),
                                        top_exponent.scalar<int32_t>()(), Data<T>(grad),
                                        Data<T>(grad_input), workspace.data())));
  }
};

#define CAPSOPS_REGISTER(DEVICE, EXEC, T)                          \
  REGISTER_KERNEL_BUILDER(Name("InqConv")                          \
                              .Device(tensorflow::DEVICE_##DEVICE) \
                              .HostMemory("top_exponent")          \
                              .TypeConstraint<T>("T"),             \
                          InqConvOp<EXEC, T>);                     \
  REGISTER_KERNEL_BUILDER(Name("InqConvBackpropInput")             \
                              .Device(tensorflow::DEVICE_##DEVICE) \
                              .HostMemory("input_sizes")           \
                              .HostMemory("top_exponent")          \
                              .TypeConstraint<T>("T"),             \
                          InqConvBackpropInputOp<EXEC, T>)
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
}  // namespace capsops::inq_conv
