// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/inq_decode.h"

#include "absl/strings/str_cat.h"

#include "cc/framework/shape_rule.h"

namespace capsops::inq_decode {

absl::StatusOr<Call<Problem>> DecodeOp::Resolve(const OpInputs& inputs) const {
  Problem p;
  ShapeRule rule(kName);
  rule.Require(attributes.bits >= 2 && attributes.bits <= 8, [&] {
    return absl::StrCat("bits must be from 2 to 8, got ", attributes.bits);
  });
  p.bits = attributes.bits;
  rule.Bind("codes", inputs.shape(0), {{"rows", &p.rows}, {"columns", &p.columns}});
  rule.Bind("top_exponents", inputs.shape(1), {{"columns", &p.columns}});
  return MakeCall(rule.status(), p, {0, 1}, {{p.rows, p.columns}});
}

}  // namespace capsops::inq_decode
