// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/capsule_routing.h"

#include "tensorflow/core/framework/op.h"

#include "cc/framework/infer_shapes.h"

namespace capsops::capsule_routing {
namespace {

REGISTER_OP("CapsuleRouting")
    .Input("input: T")
    .Input("weights: T")
    .Input("logits: T")
    .Output("output: T")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("iterations: int >= 1 = 3")
    .Attr("epsilon: float = 1e-7")
    .SetShapeFn(InferShapes<ForwardOp>)
    .Doc(R"doc(
Routes input capsules to output capsules by agreement.

    u_hat[b, i, j] = weights[i, j] @ input[b, i]
    l = logits, for every sample
    repeat `iterations` times:
        c = softmax of l[b, i] over the output capsules j
        s[b, j] = sum_i c[b, i, j] u_hat[b, i, j]
        v = s |s|^2 / (1 + |s|^2) / sqrt(|s|^2 + epsilon)
        l = l + <u_hat, v>
    output = v

u_hat is never stored. Half types are computed in float32. An empty sum gives zeros.

input: Capsule vectors, [batch, in_caps, in_dim].
weights: Transformation matrices, [in_caps, out_caps, out_dim, in_dim].
logits: What routing starts from, [in_caps, out_caps].
output: Capsule vectors, [batch, out_caps, out_dim].
iterations: How often the output capsules are computed.
epsilon: Added to the squared length under the root; positive.
)doc");

REGISTER_OP("CapsuleRoutingWithSums")
    .Input("input: T")
    .Input("weights: T")
    .Input("logits: T")
    .Output("output: T")
    .Output("sums: U")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("U: {float, double}")
    .Attr("iterations: int >= 1 = 3")
    .Attr("epsilon: float = 1e-7")
    .SetShapeFn(InferShapes<ForwardWithSumsOp>)
    .Doc(R"doc(
CapsuleRouting that also returns what its gradient needs.

No gradient reaches the inputs through `sums`.

input: Capsule vectors, [batch, in_caps, in_dim].
weights: Transformation matrices, [in_caps, out_caps, out_dim, in_dim].
logits: What routing starts from, [in_caps, out_caps].
output: Capsule vectors, [batch, out_caps, out_dim].
sums: The sums s of every iteration, [iterations, batch, out_caps, out_dim].
U: double where T is double, else float.
iterations: How often the output capsules are computed.
epsilon: Added to the squared length under the root; positive.
)doc");

REGISTER_OP("CapsuleRoutingGrad")
    .Input("grad: T")
    .Input("input: T")
    .Input("weights: T")
    .Input("logits: T")
    .Input("sums: U")
    .Output("grad_input: T")
    .Output("grad_weights: T")
    .Output("grad_logits: T")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("U: {float, double}")
    .Attr("epsilon: float = 1e-7")
    .SetShapeFn(InferShapes<BackwardOp>)
    .Doc(R"doc(
Gradients of CapsuleRouting with respect to its inputs, through every iteration.

grad: Gradient of the loss in the output, [batch, out_caps, out_dim].
input: As given to CapsuleRoutingWithSums, [batch, in_caps, in_dim].
weights: As given to CapsuleRoutingWithSums, [in_caps, out_caps, out_dim, in_dim].
logits: As given to CapsuleRoutingWithSums, [in_caps, out_caps].
sums: As CapsuleRoutingWithSums returned them, [iterations, batch, out_caps, out_dim].
grad_input: Shaped like input.
grad_weights: Shaped like weights.
grad_logits: Shaped like logits.
U: double where T is double, else float.
epsilon: As given to CapsuleRoutingWithSums.
)doc");

REGISTER_OP("CapsuleRoutingCoefficients")
    .Input("input: T")
    .Input("weights: T")
    .Input("logits: T")
    .Input("sums: U")
    .Output("coefficients: T")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("U: {float, double}")
    .Attr("epsilon: float = 1e-7")
    .SetShapeFn(InferShapes<CoefficientsOp>)
    .Doc(R"doc(
The coefficients c of CapsuleRouting, of the iteration after those already done.

input: As given to CapsuleRoutingWithSums, [batch, in_caps, in_dim].
weights: As given to CapsuleRoutingWithSums, [in_caps, out_caps, out_dim, in_dim].
logits: As given to CapsuleRoutingWithSums, [in_caps, out_caps].
sums: Those of the iterations done, maybe none, [iterations, batch, out_caps, out_dim].
coefficients: How much of each prediction an output capsule takes, [batch, in_caps, out_caps].
U: double where T is double, else float.
epsilon: As given to CapsuleRoutingWithSums.
)doc");

REGISTER_OP("InqCapsuleRouting")
    .Input("input: T")
    .Input("codes: uint8")
    .Input("top_exponent: int64")
    .Input("logits: T")
    .Output("output: T")
    .Output("sums: U")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("U: {float, double}")
    .Attr("bits: int = 5")
    .Attr("iterations: int >= 1 = 3")
    .Attr("epsilon: float = 1e-7")
    .SetShapeFn(InferShapes<inq_capsule_routing::ForwardOp>)
    .Doc(R"doc(
CapsuleRoutingWithSums with weights that are zero or powers of two, given by their codes.

The codes are those of InqDecode with a single code book. The outputs are those for the
decoded weights. A code past the end of the book is an error on a CPU and zero on a GPU.

input: Capsule vectors, [batch, in_caps, in_dim].
codes: Codes of the transformation matrices, [in_caps, out_caps, out_dim, in_dim].
top_exponent: Exponent of the largest weights of the code book, [].
logits: What routing starts from, [in_caps, out_caps].
output: Capsule vectors, [batch, out_caps, out_dim].
sums: The sums s of every iteration, [iterations, batch, out_caps, out_dim].
U: double where T is double, else float.
bits: Bits that a code takes in storage, 2 to 8.
iterations: How often the output capsules are computed.
epsilon: Added to the squared length under the root; positive.
)doc");

}  // namespace
}  // namespace capsops::capsule_routing
