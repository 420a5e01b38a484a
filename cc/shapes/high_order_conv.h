// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The only place where the shapes and attributes of high-order convolution are checked.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/core/framework/tensor_shape.h"

#include "cc/framework/op_call.h"
#include "cc/launch/high_order_conv.h"

namespace capsops::high_order_conv {

struct Attributes {
  std::vector<int32_t> kernel_size;  // height, width
  std::vector<int32_t> dilations;
  int32_t groups = 1;
  std::string data_format;  // NHWC or NCHW
};

// Reads the attributes of a kernel under construction or of a shape function.
template <typename Context>
absl::Status GetAttributes(Context* ctx, Attributes* attributes) {
  absl::Status status = ctx->GetAttr("kernel_size", &attributes->kernel_size);
  if (status.ok()) status = ctx->GetAttr("dilations", &attributes->dilations);
  if (status.ok()) status = ctx->GetAttr("groups", &attributes->groups);
  if (status.ok()) status = ctx->GetAttr("data_format", &attributes->data_format);
  return status;
}

// Checks the shapes of `op`. `images` are the names and shapes of the tensors that must
// be shaped like the input.
absl::StatusOr<Problem> Resolve(
    const char* op,
    std::initializer_list<std::pair<const char*, tensorflow::PartialTensorShape>>
        images,
    const tensorflow::PartialTensorShape& filters, const Attributes& attributes);

struct ForwardOp : Forward, OpWith<Attributes> {
  static constexpr const char* kOp = kName;
  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const;
};

struct BackwardOp : Backward, OpWith<Attributes> {
  static constexpr const char* kOp = kName;
  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const;
};

}  // namespace capsops::high_order_conv
