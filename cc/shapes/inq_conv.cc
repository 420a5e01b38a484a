// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/inq_conv.h"

#include "absl/strings/str_cat.h"

#include "cc/framework/shape_rule.h"

namespace capsops::inq_conv {
namespace {

using tensorflow::PartialTensorShape;

// Binds all shapes. `input_name` names the input, or the vector that gives its shape.
// A `grad` of unknown rank allows any output.
absl::StatusOr<Problem> ResolveAll(const char* op, const char* input_name,
                                   const PartialTensorShape& input,
                                   const PartialTensorShape& codes,
                                   const PartialTensorShape& top_exponent,
                                   const PartialTensorShape& grad,
                                   const Attributes& attributes) {
  Problem p;
  ShapeRule rule(op);
  rule.Require(attributes.bits >= 2 && attributes.bits <= 8, [&] {
    return absl::StrCat("bits must be from 2 to 8, got ", attributes.bits);
  });
  p.bits = attributes.bits;
  rule.Bind(input_name, input, InputAxes(p));
  rule.Bind("codes", codes, WeightsAxes(p));
  rule.Bind("top_exponent", top_exponent, {});
  ResolveWindow(rule, attributes, "codes", codes, p);
  rule.Bind("grad", grad, OutputAxes(p));
  if (!rule.status().ok()) return rule.status();
  return p;
}

}  // namespace

absl::StatusOr<Problem> Resolve(const PartialTensorShape& input,
                                const PartialTensorShape& codes,
                                const PartialTensorShape& top_exponent,
                                const Attributes& attributes, const char* op) {
  return ResolveAll(op, "input", input, codes, top_exponent, PartialTensorShape(),
                    attributes);
}

absl::StatusOr<Call<Problem>> ForwardOp::Resolve(const OpInputs& inputs) const {
  TF_ASSIGN_OR_RETURN(const auto p, inq_conv::Resolve(inputs.shape(0), inputs.shape(1),
                                                      inputs.shape(2), attributes));
  TF_ASSIGN_OR_RETURN(const auto top_exponent, inputs.Value(2));
  return MakeCall(absl::OkStatus(), p, {0, 1},
                  {{p.batch, p.out_height, p.out_width, p.out_channels}},
                  {top_exponent});
}

absl::StatusOr<Call<Problem>> BackpropInputOp::Resolve(const OpInputs& inputs) const {
  TF_ASSIGN_OR_RETURN(const auto input, inputs.ShapeIn(0, kName, "input_sizes"));
  TF_ASSIGN_OR_RETURN(const auto p,
                      ResolveAll(kName, "input_sizes", input, inputs.shape(1),
                                 inputs.shape(2), inputs.shape(3), attributes));
  TF_ASSIGN_OR_RETURN(const auto top_exponent, inputs.Value(2));
  return MakeCall(absl::OkStatus(), p, {3, 1},
                  {{p.batch, p.in_height, p.in_width, p.in_channels}}, {top_exponent});
}

}  // namespace capsops::inq_conv
