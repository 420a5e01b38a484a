// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/framework/window.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensorflow/core/platform/errors.h"

namespace capsops {
namespace {

using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

void SetPair(ShapeRule& rule, const char* name, const std::vector<int32_t>& values,
             int64_t* height, int64_t* width) {
  const bool good = values.size() == 2 && values[0] > 0 && values[1] > 0;
  rule.Require(good, [&] {
    return absl::StrCat(name, " must be two positive integers, got [",
                        absl::StrJoin(values, ","), "]");
  });
  if (!good) return;
  *height = values[0];
  *width = values[1];
}

// Computes output size and padding along an axis; `index` is that axis of the weights.
void ResolveWindowAxis(ShapeRule& rule, const WindowAxis& axis, bool same,
                       const char* weights_name, const PartialTensorShape& weights,
                       int index) {
  const int64_t kernel = *axis.kernel.dim, in = *axis.in.dim;
  const int64_t stride = *axis.stride, dilation = *axis.dilation;
  const auto kernel_must_be = [&](auto... requirement) {
    return absl::StrCat(weights_name, " dim ", index, " (", axis.kernel.name,
                        ") must be ", requirement..., ", got ", weights.DebugString());
  };
  const int64_t largest = std::numeric_limits<int32_t>::max();
  rule.Require(kernel != 0, [&] { return kernel_must_be("at least 1"); });
  rule.Require(kernel <= largest, [&] { return kernel_must_be("at most ", largest); });
  if (in < 0 || !rule.status().ok()) return;
  if (in == 0) {
    *axis.out = 0;
    return;
  }
  const int64_t reach = (kernel - 1) * dilation;  // from the first tap to the last
  if (same) {
    *axis.out = (in - 1) / stride + 1;
    const int64_t padding = (*axis.out - 1) * stride + 1 - in + reach;
    if (kernel > 0) *axis.pad = std::max<int64_t>(0, padding) / 2;
  } else if (kernel > 0) {
    rule.Require(reach < in, [&] {
      return kernel_must_be("at most ", (in - 1) / dilation + 1, " (", axis.in.name,
                            " ", in, ", dilation ", dilation, ", padding VALID)");
    });
    *axis.out = (in - 1 - reach) / stride + 1;
  }
}

}  // namespace

void ResolveWindow(ShapeRule& rule, const WindowAttributes& attributes,
                   const char* weights_name, const PartialTensorShape& weights,
                   const WindowAxis& down, const WindowAxis& across) {
  SetPair(rule, "strides", attributes.strides, down.stride, across.stride);
  SetPair(rule, "dilations", attributes.dilations, down.dilation, across.dilation);
  const bool same = attributes.padding == "SAME";
  ResolveWindowAxis(rule, down, same, weights_name, weights, 0);
  ResolveWindowAxis(rule, across, same, weights_name, weights, 1);
}

absl::StatusOr<PartialTensorShape> ShapeInSizes(const char* op, const char* name,
                                                const Tensor& sizes) {
  ShapeRule rule(op);
  rule.Require(sizes.dims() == 1, [&] {
    return absl::StrCat(name, " must be a vector, got shape ",
                        sizes.shape().DebugString());
  });
  if (!rule.status().ok()) return rule.status();
  const auto values = sizes.vec<int32_t>();
  const std::vector<int64_t> dims(values.data(), values.data() + values.size());
  const std::string text = absl::StrCat("[", absl::StrJoin(dims, ","), "]");
  rule.Require(std::all_of(dims.begin(), dims.end(), [](int64_t d) { return d >= 0; }),
               [&] { return absl::StrCat(name, " must not be negative, got ", text); });
  PartialTensorShape shape;
  rule.Require(PartialTensorShape::BuildPartialTensorShape(dims, &shape).ok(), [&] {
    return absl::StrCat(name, " must count fewer than 2^63 elements, got ", text);
  });
  if (!rule.status().ok()) return rule.status();
  return shape;
}

absl::StatusOr<PartialTensorShape> ShapeInSizes(const char* op, const char* name,
                                                InferenceContext* ctx, int index) {
  if (const Tensor* sizes = ctx->input_tensor(index)) {
    return ShapeInSizes(op, name, *sizes);
  }
  int64_t length = -1;
  const absl::Status status =
      ShapeRule(op).Bind(name, InputShape(ctx, index), {{"rank", &length}}).status();
  if (!status.ok()) return status;
  ShapeHandle handle;
  TF_RETURN_IF_ERROR(ctx->MakeShapeFromShapeTensor(index, &handle));
  return PartialTensorShape(ctx->ShapeHandleToProto(handle));
}

}  // namespace capsops
