// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// What convolutions with strides and padding share: their attributes, the window that
// moves over the image, and shapes that are given as tensors of sizes.
#ifndef CAPSOPS_CC_FRAMEWORK_WINDOW_H_
#define CAPSOPS_CC_FRAMEWORK_WINDOW_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

#include "cc/framework/shape_rule.h"

namespace capsops {

struct WindowAttributes {
  std::vector<int32_t> strides;  // down, across
  std::vector<int32_t> dilations;
  std::string padding;  // VALID or SAME, as the op's registration has it
};

// From a kernel's construction or a shape function.
template <typename Context>
absl::Status GetAttributes(Context* ctx, WindowAttributes* attributes) {
  absl::Status status = ctx->GetAttr("strides", &attributes->strides);
  if (status.ok()) status = ctx->GetAttr("dilations", &attributes->dilations);
  if (status.ok()) status = ctx->GetAttr("padding", &attributes->padding);
  return status;
}

// One of the axes that a kernel moves on: what is known of it, and what follows.
struct WindowAxis {
  Axis in;             // of the image
  Axis kernel;         // of the weights
  int64_t *out, *pad;  // pixels of the output, zeros before the image
  int64_t *stride, *dilation;
};

// Sets all that follows from the attributes and the sizes of image and kernel, as
// tf.nn.conv2d has it, but that an empty image has an empty output with any kernel.
// The first two axes of `weights`, a tensor of this name, are the kernel's.
void SlideWindow(ShapeRule& rule, const WindowAttributes& attributes,
                 const char* weights_name,
                 const tensorflow::PartialTensorShape& weights, const WindowAxis& down,
                 const WindowAxis& across);

// The same for any Problem with these dimensions.
template <typename Problem>
void SlideWindow(ShapeRule& rule, const WindowAttributes& attributes,
                 const char* weights_name,
                 const tensorflow::PartialTensorShape& weights, Problem& p) {
  SlideWindow(rule, attributes, weights_name, weights,
              {{"in_height", &p.in_height},
               {"kernel_height", &p.kernel_height},
               &p.out_height,
               &p.pad_top,
               &p.stride_height,
               &p.dilation_height},
              {{"in_width", &p.in_width},
               {"kernel_width", &p.kernel_width},
               &p.out_width,
               &p.pad_left,
               &p.stride_width,
               &p.dilation_width});
}

// The shape that a vector of int32 holds; `op` and `name` are for messages.
absl::StatusOr<tensorflow::PartialTensorShape> ShapeInSizes(
    const char* op, const char* name, const tensorflow::Tensor& sizes);

// What a shape function knows of the shape that input `index`, such a vector, holds.
absl::StatusOr<tensorflow::PartialTensorShape> ShapeInSizes(
    const char* op, const char* name,
    tensorflow::shape_inference::InferenceContext* ctx, int index);

}  // namespace capsops

#endif  // CAPSOPS_CC_FRAMEWORK_WINDOW_H_
