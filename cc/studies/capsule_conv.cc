// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Registers the schemes of cuda/studies/capsule_conv.h, which are other papers'
// kernels, as ops of a separate library. Shapes are checked by CapsuleConv's own rule,
// then by the scheme.
#include "cuda/studies/capsule_conv.h"

#include <string>
#include <utility>

#include "cc/shapes/capsule_conv.h"
#include "cc/studies/study.h"

namespace capsops::studies::capsule_conv {
namespace {

using capsops::capsule_conv::Convolution;

struct SchemeProblem : Problem {
  const Scheme* scheme;
};

// Base class of both ops.
struct StudyOp : OpBase<SchemeProblem>, OpDefaults {
  // Reads the scheme and the attributes of CapsuleConv.
  template <typename Context>
  absl::Status Read(Context* ctx) {
    std::string name;
    TF_RETURN_IF_ERROR(ctx->GetAttr("kernel", &name));
    for (const Scheme* known :
         {&kVaidyaB, &kVaidyaI1, &kVaidyaI2, &kVaidyaI3, &kLayoutPcrk, &kLayoutPrkc,
          &kLayoutCrkp, &kLayoutRpck, &kLayoutRckp, &kChenGemms, &kChenOfficial,
          &kChenCustom}) {
      if (name == known->name) scheme = known;
    }
    if (scheme == nullptr) {
      return absl::InternalError(absl::StrCat("kernel ", name, " is not implemented"));
    }
    return GetAttributes(ctx, &attributes);
  }

  // Refuses a problem that the scheme does not support, once all dimensions are known.
  absl::StatusOr<Convolution> CheckSupported(const char* op,
                                             absl::StatusOr<Convolution> conv) const {
    if (!conv.ok() || !conv->input.IsFullyDefined() ||
        !conv->weights.IsFullyDefined()) {
      return conv;
    }
    const std::string reason = scheme->unsupported(conv->problem);
    return ErrorIf(
        reason.empty() ? "" : absl::StrCat("kernel ", scheme->name, ": ", reason), op,
        std::move(conv));
  }

  const Scheme* scheme = nullptr;
  WindowAttributes attributes;
};

struct ForwardOp : StudyOp {
  static constexpr const char *kName = "CapsuleConvStudy", *kOp = kName;

  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const {
    TF_ASSIGN_OR_RETURN(
        const auto conv,
        CheckSupported(kName, capsops::capsule_conv::Resolve(
                                  inputs.shape(0), inputs.shape(1), attributes)));
    return Call<Problem>{{conv.problem, scheme}, {0, 1}, {conv.output}};
  }
  template <typename T, typename Exec>
  static auto MakePlan(const Exec&, const Problem& p) {
    return Plan<Exec, const T*, const T*, T*>::Make(
        p.scheme->forward_workspace(p), [p](const Exec& exec, auto... pointers) {
          return p.scheme->forward(exec, p, pointers...);
        });
  }
};

struct BackwardOp : StudyOp {
  static constexpr const char *kName = "CapsuleConvStudyGrad", *kOp = kName;

  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const {
    TF_ASSIGN_OR_RETURN(
        const auto conv,
        CheckSupported(
            kName, capsops::capsule_conv::ResolveBackpropInput(
                       inputs.shape(1), inputs.shape(2), inputs.shape(0), attributes)));
    return Call<Problem>{{conv.problem, scheme}, {0, 1, 2}, {conv.input, conv.weights}};
  }
  template <typename T, typename Exec>
  static auto MakePlan(const Exec&, const Problem& p) {
    return Plan<Exec, const T*, const T*, const T*, T*, T*>::Make(
        p.scheme->backward_workspace(p), [p](const Exec& exec, auto... pointers) {
          return p.scheme->backward(exec, p, pointers...);
        });
  }
};

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
    .SetShapeFn(InferShapes<ForwardOp>)
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
    .SetShapeFn(InferShapes<BackwardOp>)
    .Doc(R"doc(
Both gradients of CapsuleConv as Chen et al. compute them, on a GPU.

grad: Gradient of the loss in CapsuleConv's output.
input: As given to CapsuleConv.
weights: As given to CapsuleConv.
grad_input: Shaped like input.
grad_weights: Shaped like weights.
kernel: As CapsuleConvStudy's.
)doc");

REGISTER_KERNEL_BUILDER(Name(ForwardOp::kOp).Device(tensorflow::DEVICE_GPU),
                        PlannedOp<ForwardOp, GpuExec, float>);
REGISTER_KERNEL_BUILDER(Name(BackwardOp::kOp).Device(tensorflow::DEVICE_GPU),
                        PlannedOp<BackwardOp, GpuExec, float>);

}  // namespace
}  // namespace capsops::studies::capsule_conv
