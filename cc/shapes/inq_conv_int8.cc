// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/inq_conv_int8.h"

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/tensor_shape.h"

#include "cc/framework/shape_rule.h"

namespace capsops::inq_conv_int8 {

absl::StatusOr<Call<Problem>> ForwardOp::Resolve(const OpInputs& inputs) const {
  ShapeRule rule(kName);
  const int bits = attributes.bits;
  rule.Require(bits >= 2 && bits <= kMostBits, [&] {
    return absl::StrCat("bits must be from 2 to ", kMostBits,
                        ", as sums of weights of more bits exceed an int32, got ",
                        bits);
  });
  if (!rule.status().ok()) return rule.status();
  // This op has multipliers instead of a top exponent, whose check an unknown shape
  // skips.
  TF_ASSIGN_OR_RETURN(
      const auto conv,
      inq_conv::Resolve(inputs.shape(0), inputs.shape(1),
                        tensorflow::PartialTensorShape(), attributes, kName));
  Problem p{conv};
  rule.Bind("scale", inputs.shape(2), {});
  rule.Bind("zero_point", inputs.shape(3), {});
  rule.Bind("multipliers", inputs.shape(4), {{"out_channels", &p.out_channels}});
  const bool known = p.kernel_height >= 0 && p.kernel_width >= 0 && p.in_channels >= 0;
  // The exact product may not fit in 64 bits.
  const double terms =
      static_cast<double>(p.kernel_height) * p.kernel_width * p.in_channels;
  rule.Require(!known || terms <= MostTerms(bits), [&] {
    return absl::StrCat("codes must have at most ", MostTerms(bits),
                        " elements per output channel (bits ", bits,
                        "), as the sum of more may exceed an int32, got ",
                        inputs.shape(1).DebugString());
  });
  if (!rule.status().ok()) return rule.status();
  TF_ASSIGN_OR_RETURN(const auto zero_point, inputs.Value(3));
  rule.Require(zero_point >= 0 && zero_point <= 255, [&] {
    return absl::StrCat("zero_point must be from 0 to 255, got ", zero_point);
  });
  return MakeCall(rule.status(), p, {0, 1, 2, 4},
                  {{p.batch, p.out_height, p.out_width, p.out_channels}}, {zero_point});
}

}  // namespace capsops::inq_conv_int8
