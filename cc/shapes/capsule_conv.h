// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The only place where the shapes and attributes of capsule convolution are checked.
#ifndef CAPSOPS_CC_SHAPES_CAPSULE_CONV_H_
#define CAPSOPS_CC_SHAPES_CAPSULE_CONV_H_

#include "absl/status/statusor.h"
#include "tensorflow/core/framework/tensor_shape.h"

#include "cc/framework/window.h"
#include "cc/launch/capsule_conv.h"

namespace capsops::capsule_conv {

using Attributes = WindowAttributes;

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

}  // namespace capsops::capsule_conv

#endif  // CAPSOPS_CC_SHAPES_CAPSULE_CONV_H_
