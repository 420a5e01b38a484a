// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/capsule_prediction.h"

#include "tensorflow/core/framework/op.h"

#include "cc/framework/shape_rule.h"

namespace capsops::capsule_prediction {
namespace {

using tensorflow::shape_inference::InferenceContext;

REGISTER_OP("CapsulePrediction")
    .Input("input: T")
    .Input("weights: T")
    .Output("output: T")
    .Attr("T: {float, double, half, bfloat16}")
    .SetShapeFn([](InferenceContext* ctx) -> absl::Status {
      const auto p = Resolve(InputShape(ctx, 0), InputShape(ctx, 1));
      if (!p.ok()) return p.status();
      return SetOutputShape(ctx, 0, {p->batch, p->in_caps, p->out_caps, p->out_dim});
    })
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
    .SetShapeFn([](InferenceContext* ctx) -> absl::Status {
      const auto p =
          ResolveGrad(InputShape(ctx, 0), InputShape(ctx, 1), InputShape(ctx, 2));
      if (!p.ok()) return p.status();
      const absl::Status status =
          SetOutputShape(ctx, 0, {p->batch, p->in_caps, p->in_dim});
      if (!status.ok()) return status;
      return SetOutputShape(ctx, 1, {p->in_caps, p->out_caps, p->out_dim, p->in_dim});
    })
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
