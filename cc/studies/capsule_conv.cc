// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Registers the schemes of cuda/studies/capsule_conv.h as ops of a separate library.
// Shapes are checked by CapsuleConv's own rule, then by the scheme.
#include "cuda/studies/capsule_conv.h"

#include <string>
#include <utility>

#include "cc/shapes/capsule_conv.h"
#include "cc/studies/study.h"

namespace capsops::studies::capsule_conv {
namespace {

using capsops::capsule_conv::Attributes;
using capsops::capsule_conv::Convolution;

constexpr const char* kForward = "CapsuleConvStudy";
constexpr const char* kBackward = "CapsuleConvStudyGrad";

// Reads the scheme and the attributes of CapsuleConv.
template <typename Context>
absl::Status GetScheme(Context* ctx, const Scheme** scheme, Attributes* attributes) {
  std::string name;
  TF_RETURN_IF_ERROR(ctx->GetAttr("kernel", &name));
  *scheme = nullptr;
  for (const Scheme* known :
       {&kVaidyaB, &kVaidyaI1, &kVaidyaI2, &kVaidyaI3, &kLayoutPcrk, &kLayoutPrkc,
        &kLayoutCrkp, &kLayoutRpck, &kLayoutRckp, &kChenGemms, &kChenOfficial,
        &kChenCustom}) {
    if (name == known->name) *scheme = known;
  }
  if (*scheme == nullptr) {
    return absl::InternalError(absl::StrCat("kernel ", name, " is not implemented"));
  }
  return GetAttributes(ctx, attributes);
}

// Refuses a problem that the scheme does not support, once all dimensions are known.
absl::StatusOr<Convolution> CheckSupported(const char* op, const Scheme& scheme,
                                           absl::StatusOr<Convolution> conv) {
  if (!conv.ok() || !conv->input.IsFullyDefined() || !conv->weights.IsFullyDefined()) {
    return conv;
  }
  const std::string reason = scheme.unsupported(conv->problem);
  return ErrorIf(
      reason.empty() ? "" : absl::StrCat("kernel ", scheme.name, ": ", reason), op,
      std::move(conv));
}

absl::StatusOr<Convolution> Resolve(const Scheme& scheme, const Attributes& attributes,
                                    const PartialTensorShape& input,
                                    const PartialTensorShape& weights) {
  return CheckSupported(kForward, scheme,
                        capsops::capsule_conv::Resolve(input, weights, attributes));
}

absl::StatusOr<Convolution> ResolveGrad(const Scheme& scheme,
                                        const Attributes& attributes,
                                        const PartialTensorShape& grad,
                                        const PartialTensorShape& input,
                                        const PartialTensorShape& weights) {
  return CheckSupported(
      kBackward, scheme,
      capsops::capsule_conv::ResolveBackpropInput(input, weights, grad, attributes));
}

REGISTER_OP("CapsuleConvStudy")
    .Input("input: float")
    .Input("weights: float")
    .Output("output: float")
    .Attr(
        "kernel: {'B', 'I1', 'I2', 'I3', 'layout_pcrk', 'layout_prkc', 'layout_crkp', "
        "'layout_rpck', 'layout_rckp', 'gemms', 'official', 'custom'}")
    .Attr("strides: list(int) = [1, 1]")
    .Attr("padding: {'VALID', 'SAME'} = 'VALID'")
    .Attr("dilations: list(int) = [1, 1]")
    .SetShapeFn([](InferenceContext* ctx) -> absl::Status {
      const Scheme* scheme;
      Attributes attributes;
      TF_RETURN_IF_ERROR(GetScheme(ctx, &scheme, &attributes));
      const auto conv =
          Resolve(*scheme, attributes, InputShape(ctx, 0), InputShape(ctx, 1));
      if (!conv.ok()) return conv.status();
      return SetOutputShape(ctx, 0, conv->output);
    })
    .Doc(R"doc(
CapsuleConv as other papers compute it, on a GPU.

input: As CapsuleConv's; for B to I3 and the layouts one sample of 4x4 matrices.
weights: As CapsuleConv's; for B to I3 and the layouts one out channel of 4x4 matrices.
output: As CapsuleConv's.
kernel: Of Vaidya, "Speeding up Capsules", B, I1, I2 or I3; or layout_*, the memory of input and output in another order of axes than their shape says, from the outermost: p pixels, c channels, r rows and k columns of poses. Of Chen et al., "How to Accelerate Capsule Convolutions in Capsule Networks", gemms (its "GPU"), official or custom.
)doc");

REGISTER_OP("CapsuleConvStudyGrad")
    .Input("grad: float")
    .Input("input: float")
    .Input("weights: float")
    .Output("grad_input: float")
    .Output("grad_weights: float")
    .Attr("kernel: {'gemms', 'official', 'custom'}")
    .Attr("strides: list(int) = [1, 1]")
    .Attr("padding: {'VALID', 'SAME'} = 'VALID'")
    .Attr("dilations: list(int) = [1, 1]")
    .SetShapeFn([](InferenceContext* ctx) -> absl::Status {
      const Scheme* scheme;
      Attributes attributes;
      TF_RETURN_IF_ERROR(GetScheme(ctx, &scheme, &attributes));
      const auto conv = ResolveGrad(*scheme, attributes, InputShape(ctx, 0),
                                    InputShape(ctx, 1), InputShape(ctx, 2));
      if (!conv.ok()) return conv.status();
      TF_RETURN_IF_ERROR(SetOutputShape(ctx, 0, conv->input));
      return SetOutputShape(ctx, 1, conv->weights);
    })
    .Doc(R"doc(
Both gradients of CapsuleConv as Chen et al. compute them, on a GPU.

grad: Gradient of the loss in CapsuleConv's output.
input: As given to CapsuleConv.
weights: As given to CapsuleConv.
grad_input: Shaped like input.
grad_weights: Shaped like weights.
kernel: As CapsuleConvStudy's.
)doc");

// Base class of both ops, which reads their attributes.
class StudyOp : public OpKernel {
 public:
  explicit StudyOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetScheme(ctx, &scheme_, &attributes_));
  }

 protected:
  const Scheme& scheme() const { return *scheme_; }
  const Attributes& attributes() const { return attributes_; }

 private:
  const Scheme* scheme_;
  Attributes attributes_;
};

class CapsuleConvStudyOp : public StudyOp {
 public:
  using StudyOp::StudyOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& input = ctx->input(0);
    const Tensor& weights = ctx->input(1);
    const auto conv = Resolve(scheme(), attributes(), input.shape(), weights.shape());
    OP_REQUIRES_OK(ctx, conv.status());
    Tensor* output;
    OP_REQUIRES_OK(ctx, AllocateOutput(ctx, 0, conv->output, &output));
    GpuExec exec;
    OP_REQUIRES_OK(ctx, MakeExec(ctx, &exec));
    Tensor workspace;
    OP_REQUIRES_OK(
        ctx,
        AllocateWorkspace(ctx, scheme().forward_workspace(conv->problem), &workspace));
    OP_REQUIRES_OK(ctx,
                   ToStatus(scheme().forward(exec, conv->problem, Data<float>(input),
                                             Data<float>(weights), Data<float>(output),
                                             workspace.data())));
  }
};

class CapsuleConvStudyGradOp : public StudyOp {
 public:
  using StudyOp::StudyOp;

  void Compute(OpKernelContext* ctx) override {
    Gradients of(ctx);
    const auto conv = ResolveGrad(scheme(), attributes(), of.grad.shape(),
                                  of.input.shape(), of.weights.shape());
    OP_REQUIRES_OK(ctx, conv.status());
    OP_REQUIRES_OK(ctx, of.Allocate(ctx));
    GpuExec exec;
    OP_REQUIRES_OK(ctx, MakeExec(ctx, &exec));
    Tensor workspace;
    OP_REQUIRES_OK(
        ctx,
        AllocateWorkspace(ctx, scheme().backward_workspace(conv->problem), &workspace));
    OP_REQUIRES_OK(ctx,
                   ToStatus(scheme().backward(
                       exec, conv->problem, Data<float>(of.grad), Data<float>(of.input),
                       Data<float>(of.weights), Data<float>(of.grad_input),
                       Data<float>(of.grad_weights), workspace.data())));
  }
};

REGISTER_KERNEL_BUILDER(Name(kForward).Device(tensorflow::DEVICE_GPU),
                        CapsuleConvStudyOp);
REGISTER_KERNEL_BUILDER(Name(kBackward).Device(tensorflow::DEVICE_GPU),
                        CapsuleConvStudyGradOp);

}  // namespace
}  // namespace capsops::studies::capsule_conv
