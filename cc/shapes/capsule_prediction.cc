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

absl::StatusOr<Problem> Resolve(const PartialTensorShape& input,
                                const PartialTensorShape& weights) {
  Problem p;
  ShapeRule rule("CapsulePrediction");
  BindOperands(rule, p, input, weights);
  if (!rule.status().ok()) return rule.status();
  return p;
}

absl::StatusOr<Problem> ResolveGrad(const PartialTensorShape& grad,
                                    const PartialTensorShape& input,
                                    const PartialTensorShape& weights) {
  Problem p;
  ShapeRule rule("CapsulePredictionGrad");
  rule.Bind("grad", grad,
            {{"batch", &p.batch},
             {"in_caps", &p.in_caps},
             {"out_caps", &p.out_caps},
             {"out_dim", &p.out_dim}});
  BindOperands(rule, p, input, weights);
  if (!rule.status().ok()) return rule.status();
  return p;
}

}  // namespace capsops::capsule_prediction
