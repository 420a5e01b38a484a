// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/capsule_prediction.h"

#include "cc/framework/shape_rule.h"

namespace capsops::capsule_prediction {
namespace {

using tensorflow::PartialTensorShape;

void BindOperands(ShapeRule& rule, Problem& p, const PartialTensorShape& input,
                  const PartialTensorShape& weights) {
  rule.Bind("input", input,
            {{"batch", &p.batch}, {"in_caps", &p.in_caps}, {"in_dim", &p.in_dim}});
  rule.Bind("weights", weights,
            {{"in_caps", &p.in_caps},
             {"out_caps", &p.out_caps},
             {"out_dim", &p.out_dim},
             {"in_dim", &p.in_dim}});
}

}  // namespace

absl::StatusOr<Call<Problem>> ForwardOp::Resolve(const OpInputs& inputs) const {
  Problem p;
  ShapeRule rule(kName);
  BindOperands(rule, p, inputs.shape(0), inputs.shape(1));
  return MakeCall(rule.status(), p, {0, 1},
                  {{p.batch, p.in_caps, p.out_caps, p.out_dim}});
}

absl::StatusOr<Call<Problem>> BackwardOp::Resolve(const OpInputs& inputs) const {
  Problem p;
  ShapeRule rule(kName);
  rule.Bind("grad", inputs.shape(0),
            {{"batch", &p.batch},
             {"in_caps", &p.in_caps},
             {"out_caps", &p.out_caps},
             {"out_dim", &p.out_dim}});
  BindOperands(rule, p, inputs.shape(1), inputs.shape(2));
  return MakeCall(
      rule.status(), p, {0, 1, 2},
      {{p.batch, p.in_caps, p.in_dim}, {p.in_caps, p.out_caps, p.out_dim, p.in_dim}});
}

}  // namespace capsops::capsule_prediction
