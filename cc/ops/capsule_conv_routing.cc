// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/capsule_conv_routing.h"

#include "tensorflow/core/framework/op.h"

#include "cc/framework/infer_shapes.h"

namespace capsops::capsule_conv_routing {
namespace {

#define CAPSOPS_ATTRIBUTES                    \
  .Attr("T: {float, double, half, bfloat16}") \
      .Attr("iterations: int >= 1")           \
      .Attr("epsilon: float = 1e-7")          \
      .Attr("strides: list(int)")             \
      .Attr("dilations: list(int)")           \
      .Attr("padding: {'VALID', 'SAME'}")     \
      .Attr("transposed: bool = false")       \
      .Attr("leaky: bool = false")

REGISTER_OP("CapsuleConvRouting")
    .Input("input: T")
    .Input("weights: T")
    .Input("bias: T")
    .Input("logits: T")
    .Output("output: T") CAPSOPS_ATTRIBUTES.SetShapeFn(InferShapes<ForwardOp>)
    .Doc(R"doc(
Convolves capsules of several types to votes, and routes these at every output pixel.

    votes[n, p, i, j] = sum over taps t of
        input[n, p * strides + t * dilations - pad, i] @ weights[t, i, :, j]
    b = logits, at every pixel
    repeat `iterations` times:
        c = softmax of b[i] over the parents j
        s[j] = sum_i c[i, j] votes[i, j] + bias[j]
        v = s |s|^2 / (1 + |s|^2) / sqrt(|s|^2 + epsilon)
        b = b + <votes, v>
    output = v

Images have one, two or three spatial axes. Only the votes of some pixels are stored at
a time. Half types are routed in float32. Empty sums give zeros.

input: Capsules, [batch, in_size..., types, in_dim].
weights: Matrices, [kernel_size..., in_dim, parents, out_dim] for all types, or [kernel_size..., types, in_dim, parents, out_dim].
bias: Added to the sums of votes, [parents, out_dim].
logits: What routing starts from, [types, parents].
output: Capsules, [batch, out_size..., parents, out_dim].
iterations: How often the parents are computed.
epsilon: Added to the squared length under the root; positive.
strides: Pixels from one position of the kernel to the next, for each spatial axis.
dilations: Pixels between neighbors in the kernel; 1 if transposed.
padding: As of CapsuleConv or, if transposed, of the convolution that it transposes.
transposed: Whether the votes are those of the transposed convolution.
leaky: Whether the softmax has one extra entry with logit 0, whose share is discarded.
)doc");

REGISTER_OP("CapsuleConvRoutingGrad")
    .Input("grad: T")
    .Input("input: T")
    .Input("weights: T")
    .Input("bias: T")
    .Input("logits: T")
    .Output("grad_input: T")
    .Output("grad_weights: T")
    .Output("grad_bias: T")
    .Output("grad_logits: T") CAPSOPS_ATTRIBUTES.SetShapeFn(InferShapes<BackwardOp>)
    .Doc(R"doc(
Gradients of CapsuleConvRouting with respect to its inputs, through every iteration.

grad: Gradient of the loss in the output, [batch, out_size..., parents, out_dim].
input: As given to CapsuleConvRouting, [batch, in_size..., types, in_dim].
weights: As given to CapsuleConvRouting, [kernel_size..., in_dim, parents, out_dim] or [kernel_size..., types, in_dim, parents, out_dim].
bias: As given to CapsuleConvRouting, [parents, out_dim].
logits: As given to CapsuleConvRouting, [types, parents].
grad_input: Shaped like input.
grad_weights: Shaped like weights.
grad_bias: Shaped like bias.
grad_logits: Shaped like logits.
iterations: As given to CapsuleConvRouting.
epsilon: As given to CapsuleConvRouting.
strides: As given to CapsuleConvRouting.
dilations: As given to CapsuleConvRouting.
padding: As given to CapsuleConvRouting.
transposed: As given to CapsuleConvRouting.
leaky: As given to CapsuleConvRouting.
)doc");

#undef CAPSOPS_ATTRIBUTES

}  // namespace
}  // namespace capsops::capsule_conv_routing
