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

// Sets the member `to` of each axis to its value in an attribute.
void SetEach(ShapeRule& rule, const char* name, const std::vector<int32_t>& values,
             absl::Span<const WindowAxis> axes, int64_t* WindowAxis::* to) {
  constexpr const char* kCounts[] = {"one positive integer", "two positive integers",
                                     "three positive integers"};
  const bool good = values.size() == axes.size() &&
                    std::all_of(values.begin(), values.end(),
                                [](int32_t value) { return value > 0; });
  rule.Require(good, [&] {
    return absl::StrCat(name, " must be ", kCounts[axes.size() - 1], ", got [",
                        absl::StrJoin(values, ","), "]");
  });
  for (size_t i = 0; good && i < axes.size(); ++i) *(axes[i].*to) = values[i];
}

// Sets strides and dilations, and returns whether the padding is SAME.
bool ReadAttributes(ShapeRule& rule, const WindowAttributes& attributes,
                    absl::Span<const WindowAxis> axes) {
  SetEach(rule, "strides", attributes.strides, axes, &WindowAxis::stride);
  SetEach(rule, "dilations", attributes.dilations, axes, &WindowAxis::dilation);
  return attributes.padding == "SAME";
}

// Messages about the kernel's size along an axis, which is axis `index` of the weights.
struct KernelTexts {
  const char* weights_name;
  const PartialTensorShape& weights;
  const char* axis;
  size_t index;

  template <typename... Requirement>
  std::string MustBe(const Requirement&... requirement) const {
    return absl::StrCat(weights_name, " dim ", index, " (", axis, ") must be ",
                        requirement..., ", got ", weights.DebugString());
  }
  void CheckRange(ShapeRule& rule, int64_t kernel) const {
    const int64_t largest = std::numeric_limits<int32_t>::max();
    rule.Require(kernel != 0, [&] { return MustBe("at least 1"); });
    rule.Require(kernel <= largest, [&] { return MustBe("at most ", largest); });
  }
};

// Computes output size and padding along an axis.
void ResolveWindowAxis(ShapeRule& rule, const WindowAxis& axis, bool same,
                       const KernelTexts& texts) {
  const int64_t kernel = *axis.kernel.dim, in = *axis.in.dim;
  const int64_t stride = *axis.stride, dilation = *axis.dilation;
  texts.CheckRange(rule, kernel);
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
      return texts.MustBe("at most ", (in - 1) / dilation + 1, " (", axis.in.name, " ",
                          in, ", dilation ", dilation, ", padding VALID)");
    });
    *axis.out = (in - 1 - reach) / stride + 1;
  }
}

// ResolveWindowAxis for a transposed convolution.
void ResolveTransposedAxis(ShapeRule& rule, const WindowAxis& axis, bool same,
                           const KernelTexts& texts) {
  const int64_t kernel = *axis.kernel.dim, in = *axis.in.dim, stride = *axis.stride;
  texts.CheckRange(rule, kernel);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 4;
  rule.Require(in <= kMost / stride, [&] {
    return absl::StrCat(axis.in.name, " x strides must be at most ", kMost, ", got ",
                        in, " x ", stride);
  });
  if (!rule.status().ok()) return;
  const int64_t beyond = std::max<int64_t>(kernel - stride, 0);
  if (kernel > 0 && same) *axis.pad = beyond / 2;
  if (in >= 0 && (same || kernel > 0)) *axis.out = in * stride + (same ? 0 : beyond);
}

template <typename Resolve>
void ResolveAxes(ShapeRule& rule, const WindowAttributes& attributes,
                 const char* weights_name, const PartialTensorShape& weights,
                 absl::Span<const WindowAxis> axes, const Resolve& resolve) {
  const bool same = ReadAttributes(rule, attributes, axes);
  for (size_t i = 0; i < axes.size(); ++i) {
    resolve(rule, axes[i], same,
            KernelTexts{weights_name, weights, axes[i].kernel.name, i});
  }
}

}  // namespace

void ResolveWindow(ShapeRule& rule, const WindowAttributes& attributes,
                   const char* weights_name, const PartialTensorShape& weights,
                   absl::Span<const WindowAxis> axes) {
  ResolveAxes(rule, attributes, weights_name, weights, axes, ResolveWindowAxis);
}

void ResolveTransposedWindow(ShapeRule& rule, const WindowAttributes& attributes,
                             const char* weights_name,
                             const PartialTensorShape& weights,
                             absl::Span<const WindowAxis> axes) {
  ResolveAxes(rule, attributes, weights_name, weights, axes, ResolveTransposedAxis);
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
