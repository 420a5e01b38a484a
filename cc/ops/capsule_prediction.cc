// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/capsule_prediction.h"

#include "tensorflow/core/framework/op.h"

#include "cc/framework/infer_shapes.h"

namespace capsops::capsule_prediction {
namespace {

REGISTER_OP("CapsulePrediction")
    .Input("input: T")
    .Input("weights: T")
    .Output("output: T")
    .Attr("T: {float, double, half, bfloat16}")
    .SetShapeFn(InferShapes<ForwardOp>)
    .Doc(R"doc(
Predicts output capsules from input capsules, every pair by its own matrix.

    output[b, i, j] = weights[i, j] @ input[b, i]

Half types accumulate in float32. An empty in_dim gives zeros.

input: Capsule vectors, [batch, in_caps, in_dim].
weights: Transformation matrices, [in_caps, out_caps, out_dim, in_dim].
output: Prediction vectors, [batch, in_caps, out_caps, out_dim].
)doc");

REGISTER_OP("CapsulePredictionGrad")
    .Input("grad: T")
    .Input("input: T")
    .Input("weights: T")
    .Output("grad_input: T")
    .Output("grad_weights: T")
    .Attr("T: {float, double, half, bfloat16}")
    .SetShapeFn(InferShapes<BackwardOp>)
    .Doc(R"doc(
Gradients of CapsulePrediction with respect to both of its inputs.

    grad_input[b, i]   = sum_j weights[i, j]^T @ grad[b, i, j]
    grad_weights[i, j] = sum_b outer(grad[b, i, j], input[b, i])

grad: Gradient of the loss in the output, [batch, in_caps, out_caps, out_dim].
input: As given to CapsulePrediction, [batch, in_caps, in_dim].
weights: As given to CapsulePrediction, [in_caps, out_caps, out_dim, in_dim].
grad_input: Shaped like input.
grad_weights: Shaped like weights.
)doc");

}  // namespace
}  // namespace capsops::capsule_prediction
