// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The only place where the shapes and attributes of INQ convolution are checked.
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/core/framework/tensor_shape.h"

#include "cc/framework/op_call.h"
#include "cc/framework/window.h"
#include "cc/launch/inq_conv.h"

namespace capsops::inq_conv {

struct Attributes : WindowAttributes {
  int32_t bits = 0;
};

// Reads the attributes of a kernel under construction or of a shape function.
template <typename Context>
absl::Status GetAttributes(Context* ctx, Attributes* attributes) {
  absl::Status status = capsops::GetAttributes(ctx, attributes);
  if (status.ok()) status = ctx->GetAttr("bits", &attributes->bits);
  return status;
}

// Checks shapes and attributes; `op` is for messages.
absl::StatusOr<Problem> Resolve(const tensorflow::PartialTensorShape& input,
                                const tensorflow::PartialTensorShape& codes,
                                const tensorflow::PartialTensorShape& top_exponent,
                                const Attributes& attributes,
                                const char* op = Forward::kName);

struct ForwardOp : Forward, OpWith<Attributes> {
  static constexpr const char* kOp = kName;
  static constexpr std::array kHostInputs = {"top_exponent"};
  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const;
};

struct BackpropInputOp : BackpropInput, OpWith<Attributes> {
  static constexpr const char* kOp = kName;
  static constexpr std::array kHostInputs = {"input_sizes", "top_exponent"};
  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const;
};

}  // namespace capsops::inq_conv
