// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Shared by all strided convolutions: their attributes, the size of their output, and
// inputs that hold the shape of a tensor, such as input_sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

#include "cc/framework/shape_rule.h"

namespace capsops {

struct WindowAttributes {
  std::vector<int32_t> strides;  // one for each spatial axis: height, width
  std::vector<int32_t> dilations;
  std::string padding;  // VALID or SAME; the op's registration checks it
};

// Reads the attributes of a kernel under construction or of a shape function.
template <typename Context>
absl::Status GetAttributes(Context* ctx, WindowAttributes* attributes) {
  absl::Status status = ctx->GetAttr("strides", &attributes->strides);
  if (status.ok()) status = ctx->GetAttr("dilations", &attributes->dilations);
  if (status.ok()) status = ctx->GetAttr("padding", &attributes->padding);
  return status;
}

// The axis names and dimensions of a window along one spatial axis.
struct WindowAxis {
  Axis in;             // image size
  Axis kernel;         // kernel size
  int64_t *out, *pad;  // results: output size, and zeros before the image
  int64_t *stride, *dilation;
};

// Computes output sizes and padding from the attributes, the image and the kernel, like
// tf.nn.conv2d, except that an empty image gives an empty output for any kernel. The
// first axes of `weights` are the kernel's, and `weights_name` is for messages.
void ResolveWindow(ShapeRule& rule, const WindowAttributes& attributes,
                   const char* weights_name,
                   const tensorflow::PartialTensorShape& weights,
                   absl::Span<const WindowAxis> axes);

// ResolveWindow for a transposed convolution, like tf.nn.conv_transpose: the output is
// such that a convolution of it has the shape of the input.
void ResolveTransposedWindow(ShapeRule& rule, const WindowAttributes& attributes,
                             const char* weights_name,
                             const tensorflow::PartialTensorShape& weights,
                             absl::Span<const WindowAxis> axes);

// Returns the axes of any Problem with these dimensions.
template <typename Problem>
WindowAxis DownAxis(Problem& p) {
  return {{"in_height", &p.in_height},
          {"kernel_height", &p.kernel_height},
          &p.out_height,
          &p.pad_top,
          &p.stride_height,
          &p.dilation_height};
}
template <typename Problem>
WindowAxis AcrossAxis(Problem& p) {
  return {{"in_width", &p.in_width},
          {"kernel_width", &p.kernel_width},
          &p.out_width,
          &p.pad_left,
          &p.stride_width,
          &p.dilation_width};
}

// Return the axes of the image that a convolution reads, of its weights, and of the
// image that it writes, without the axes of poses.
template <typename Problem>
std::vector<Axis> InputAxes(Problem& p) {
  return {{"batch", &p.batch},
          {"in_height", &p.in_height},
          {"in_width", &p.in_width},
          {"in_channels", &p.in_channels}};
}
template <typename Problem>
std::vector<Axis> WeightsAxes(Problem& p) {
  return {{"kernel_height", &p.kernel_height},
          {"kernel_width", &p.kernel_width},
          {"in_channels", &p.in_channels},
          {"out_channels", &p.out_channels}};
}
template <typename Problem>
std::vector<Axis> OutputAxes(Problem& p) {
  return {{"batch", &p.batch},
          {"out_height", &p.out_height},
          {"out_width", &p.out_width},
          {"out_channels", &p.out_channels}};
}

// Overload for images of height and width.
template <typename Problem>
void ResolveWindow(ShapeRule& rule, const WindowAttributes& attributes,
                   const char* weights_name,
                   const tensorflow::PartialTensorShape& weights, Problem& p) {
  ResolveWindow(rule, attributes, weights_name, weights, {DownAxis(p), AcrossAxis(p)});
}

// Returns the shape that a vector of int32 holds; `op` and `name` are for messages.
absl::StatusOr<tensorflow::PartialTensorShape> ShapeInSizes(
    const char* op, const char* name, const tensorflow::Tensor& sizes);

// Returns what a shape function knows of the shape in input `index`, an int32 vector.
absl::StatusOr<tensorflow::PartialTensorShape> ShapeInSizes(
    const char* op, const char* name,
    tensorflow::shape_inference::InferenceContext* ctx, int index);

}  // namespace capsops
