// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The only place where the shapes and attributes of capsule convolution are checked.
#pragma once

#include <array>

#include "absl/status/statusor.h"
#include "tensorflow/core/framework/tensor_shape.h"

#include "cc/framework/op_call.h"
#include "cc/framework/window.h"
#include "cc/launch/capsule_conv.h"

namespace capsops::capsule_conv {

using Attributes = WindowAttributes;

// A problem and the shapes of its three tensors, each of rank 6, 7 or unknown.
struct Convolution {
  Problem problem;
  tensorflow::PartialTensorShape input;
  tensorflow::PartialTensorShape weights;
  tensorflow::PartialTensorShape output;
};

absl::StatusOr<Convolution> Resolve(const tensorflow::PartialTensorShape& input,
                                    const tensorflow::PartialTensorShape& weights,
                                    const Attributes& attributes);

// `grad` must have the shape of the forward op's output.
absl::StatusOr<Convolution> ResolveBackpropInput(
    const tensorflow::PartialTensorShape& input_sizes,
    const tensorflow::PartialTensorShape& weights,
    const tensorflow::PartialTensorShape& grad, const Attributes& attributes);

struct ForwardOp : Forward, OpWith<Attributes> {
  static constexpr const char* kOp = kName;
  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const;
};

struct ForwardBiasReluOp : ForwardBiasRelu, OpWith<Attributes> {
  static constexpr const char* kOp = kName;
  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const;
};

struct BackpropInputOp : BackpropInput, OpWith<Attributes> {
  static constexpr const char* kOp = kName;
  static constexpr std::array kHostInputs = {"input_sizes"};
  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const;
};

struct BackpropWeightsOp : BackpropWeights, OpWith<Attributes> {
  static constexpr const char* kOp = kName;
  static constexpr std::array kHostInputs = {"weight_sizes"};
  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const;
};

}  // namespace capsops::capsule_conv
