// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/capsule_moments.h"

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"

#include "cc/framework/infer_shapes.h"

namespace capsops::capsule_moments {
namespace {

// The inputs and attributes of all ops of moments, and their descriptions.
#define CAPSOPS_INPUTS         \
  .Input("poses: T")           \
      .Input("activations: T") \
      .Input("weights: T")     \
      .Input("bias: S")        \
      .Input("linear: S")      \
      .Input("precision: S")   \
      .Input("center: S")      \
      .Input("prior: S")
#define CAPSOPS_ATTRIBUTES                                       \
  .Attr("T: {float, double, half, bfloat16}")                    \
      .Attr("S: {float, double}")                                \
      .Attr("normalize: {'parents', 'all', 'none'} = 'parents'") \
      .Attr("strides: list(int) = [1, 1]")                       \
      .Attr("padding: {'VALID', 'SAME'} = 'VALID'")              \
      .Attr("dilations: list(int) = [1, 1]")
constexpr char kInputs[] =
    R"doc(poses: Pose matrices, [batch, in_height, in_width, in_channels, pose_rows, pose_inner].
activations: A factor for each pose, [batch, in_height, in_width, in_channels], or ones, [0].
weights: Transformation matrices, [kernel_height, kernel_width, in_channels, out_channels, pose_inner, pose_columns].
bias: Added to the logits of a parent, [batch, out_height, out_width, out_channels], or [0].
linear: Multiplies votes, [batch, out_height, out_width, out_channels, pose_rows, pose_columns], or [0].
precision: Multiplies the squares of centered votes, [batch, out_height, out_width, out_channels, pose_rows, pose_columns], or [0].
center: Subtracted from votes, [batch, out_height, out_width, out_channels, pose_rows, pose_columns], or [0].
prior: Added to the logits of a child and a parent, [kernel_height, kernel_width, in_channels, out_channels], or [0].
)doc";
constexpr char kAttributes[] =
    R"doc(normalize: What the shares of a child add up to one over: its parents in a window, all parents in all windows that see it, or nothing, where the logits are the shares.
strides: Pixels from one window to the next, down and across.
padding: Whether all windows lie inside the image (VALID), or as many windows as strides begin in it (SAME).
dilations: Pixels between neighbors in a window, down and across.
)doc";

REGISTER_OP("CapsuleMoments")
CAPSOPS_INPUTS.Output("mass: S")
    .Output("first: S")
    .Output("second: S")
    .Attr("order: int >= 0 = 1") CAPSOPS_ATTRIBUTES.SetShapeFn(InferShapes<ForwardOp>)
    .Doc(absl::StrCat(
        R"doc(
Adds up moments of the votes that the capsules in a window give to each parent.

Child k = (kh, kw, c) of the window at (y, x) is the pose at pixel (y * sh + kh * dh,
x * sw + kw * dw), channel c. Children outside of the image do not exist.

    vote[k, o]  = pose[k] @ weights[k, o],  u = vote - center[o]
    logit[k, o] = prior[k, o] + bias[o] + <linear[o], vote> - 1/2 <precision[o], u^2>
    share       = softmax of logit
    mass[o]     = sum over k of activation[k] share[k, o]
    first[o]    = sum over k of activation[k] share[k, o] u
    second[o]   = sum over k of activation[k] share[k, o] u^2

Votes are never stored. Half types are computed in float32. Empty sums give zeros. An
optional input of shape [0] is absent, and counts as zeros.

)doc",
        kInputs,
        R"doc(mass: Sums of shares, [batch, out_height, out_width, out_channels].
first: Sums of centered votes, [batch, out_height, out_width, out_channels, pose_rows, pose_columns]; [0] where order is 0.
second: Sums of their squares, shaped like first; [0] where order is below 2.
S: double where T is double, else float.
order: The highest moment that is computed, 0, 1 or 2.
)doc",
        kAttributes));

REGISTER_OP("CapsuleMomentsGrad")
    .Input("grad_mass: S")
    .Input("grad_first: S")
    .Input("grad_second: S") CAPSOPS_INPUTS.Input("mass: S")
    .Input("first: S")
    .Output("grad_poses: T")
    .Output("grad_activations: T")
    .Output("grad_weights: T")
    .Output("grad_bias: S")
    .Output("grad_linear: S")
    .Output("grad_precision: S")
    .Output("grad_center: S")
    .Output("grad_prior: S")
    .Attr("order: int >= 0 = 1") CAPSOPS_ATTRIBUTES.SetShapeFn(InferShapes<BackwardOp>)
    .Doc(absl::StrCat(
        R"doc(
Gradients of CapsuleMoments with respect to its inputs.

grad_mass: Gradient of the loss in mass, [batch, out_height, out_width, out_channels].
grad_first: Gradient of the loss in first, [batch, out_height, out_width, out_channels, pose_rows, pose_columns], where order is 0 [0].
grad_second: Gradient of the loss in second, [batch, out_height, out_width, out_channels, pose_rows, pose_columns], where order is below 2 [0].
)doc",
        kInputs,
        R"doc(mass: As CapsuleMoments returned it, [batch, out_height, out_width, out_channels].
first: As CapsuleMoments returned it, [batch, out_height, out_width, out_channels, pose_rows, pose_columns], where order is 0 [0].
grad_poses: Shaped like poses.
grad_activations: Shaped like activations.
grad_weights: Shaped like weights.
grad_bias: Shaped like bias.
grad_linear: Shaped like linear.
grad_precision: Shaped like precision.
grad_center: Shaped like center.
grad_prior: Shaped like prior.
S: double where T is double, else float.
order: As given to CapsuleMoments.
)doc",
        kAttributes));

REGISTER_OP("CapsuleMomentShares")
CAPSOPS_INPUTS.Output("shares: S") CAPSOPS_ATTRIBUTES.SetShapeFn(InferShapes<SharesOp>)
    .Doc(absl::StrCat(
        R"doc(
The shares by which CapsuleMoments multiplies votes, before activations.

)doc",
        kInputs,
        R"doc(shares: How much of each vote a parent takes, [batch, out_height, out_width, kernel_height, kernel_width, in_channels, out_channels]; 0 for children that do not exist.
S: double where T is double, else float.
)doc",
        kAttributes));

#undef CAPSOPS_ATTRIBUTES

}  // namespace
}  // namespace capsops::capsule_moments
