// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The only place where the shapes and attributes of InqConvInt8 are checked.
#pragma once

#include <array>

#include "absl/status/statusor.h"

#include "cc/framework/op_call.h"
#include "cc/launch/inq_conv_int8.h"
#include "cc/shapes/inq_conv.h"

namespace capsops::inq_conv_int8 {

struct ForwardOp : Forward, OpWith<inq_conv::Attributes> {
  static constexpr const char* kOp = kName;
  static constexpr std::array kHostInputs = {"zero_point"};
  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const;
};

}  // namespace capsops::inq_conv_int8
