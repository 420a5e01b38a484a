// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The only place where the shapes and attributes of capsule convolution are checked.
#ifndef CAPSOPS_CC_SHAPES_CAPSULE_CONV_H_
#define CAPSOPS_CC_SHAPES_CAPSULE_CONV_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

#include "cc/launch/capsule_conv.h"

namespace capsops::capsule_conv {

struct Attributes {
  std::vector<int32_t> strides;  // down, across
  std::vector<int32_t> dilations;
  std::string padding;  // VALID or SAME
};

// From a kernel's construction or a shape function.
template <typename Context>
absl::Status GetAttributes(Context* ctx, Attributes* attributes) {
  absl::Status status = ctx->GetAttr("strides", &attributes->strides);
  if (status.ok()) status = ctx->GetAttr("dilations", &attributes->dilations);
  if (status.ok()) status = ctx->GetAttr("padding", &attributes->padding);
  return status;
}

// A problem and the shapes of its three tensors, of rank 6, 7 or unknown.
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

absl::StatusOr<Convolution> ResolveBackpropWeights(
    const tensorflow::PartialTensorShape& input,
    const tensorflow::PartialTensorShape& weight_sizes,
    const tensorflow::PartialTensorShape& grad, const Attributes& attributes);

// The shape that a vector of int32 holds; `op` and `name` are for messages.
absl::StatusOr<tensorflow::PartialTensorShape> ShapeInSizes(
    const char* op, const char* name, const tensorflow::Tensor& sizes);

}  // namespace capsops::capsule_conv

#endif  // CAPSOPS_CC_SHAPES_CAPSULE_CONV_H_
