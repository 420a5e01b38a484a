// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/high_order_conv.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

#include "cc/framework/shape_rule.h"

namespace capsops::high_order_conv {
namespace {

using tensorflow::PartialTensorShape;

constexpr char kDepth[] = "groups * kernel_height * kernel_width";

int ChannelsAxis(const Problem& p) { return p.channels_first ? 1 : 3; }

// Returns the axes of a tensor; `last` is the axis of a pixel's channels or filters.
std::vector<Axis> Axes(Problem& p, const Axis& last) {
  std::vector<Axis> axes = {
      {"batch", &p.batch}, {"height", &p.height}, {"width", &p.width}};
  axes.insert(axes.begin() + ChannelsAxis(p), last);
  return axes;
}

void SetPair(ShapeRule& rule, const char* name, const char* kind, bool odd,
             const std::vector<int32_t>& values, int64_t* height, int64_t* width) {
  const auto good_one = [odd](int32_t v) { return v > 0 && (!odd || v % 2 == 1); };
  const bool good =
      values.size() == 2 && std::all_of(values.begin(), values.end(), good_one);
  rule.Require(good, [&] {
    return absl::StrCat(name, " must be two ", kind, " integers, got [",
                        absl::StrJoin(values, ","), "]");
  });
  if (!good) return;
  *height = values[0];
  *width = values[1];
}

void SetAttributes(ShapeRule& rule, Problem& p, const Attributes& attributes) {
  SetPair(rule, "kernel_size", "odd positive", true, attributes.kernel_size,
          &p.kernel_height, &p.kernel_width);
  SetPair(rule, "dilations", "positive", false, attributes.dilations,
          &p.dilation_height, &p.dilation_width);
  rule.Require(attributes.groups > 0, [&] {
    return absl::StrCat("groups must be a positive integer, got ", attributes.groups);
  });
  p.groups = attributes.groups;
  p.channels_first = attributes.data_format == "NCHW";
  if (!rule.status().ok()) return;
  const int64_t positions = p.kernel_height * p.kernel_width;  // 2^62 at most
  rule.Require(positions <= std::numeric_limits<int64_t>::max() / p.groups, [&] {
    return absl::StrCat(kDepth, " must be less than 2^63, got ", p.groups, " * ",
                        p.kernel_height, " * ", p.kernel_width);
  });
}

int64_t Depth(const Problem& p) { return p.groups * p.kernel_height * p.kernel_width; }

// Binds a tensor shaped like the image.
void BindImage(ShapeRule& rule, Problem& p, const char* name,
               const PartialTensorShape& shape) {
  rule.Bind(name, shape, Axes(p, {"channels", &p.channels}));
  rule.Require(p.channels < 0 || p.channels % p.groups == 0, [&] {
    return absl::StrCat(name, " dim ", ChannelsAxis(p),
                        " (channels) must be a multiple of ", p.groups,
                        " (groups), got ", shape.DebugString());
  });
}

void BindFilters(ShapeRule& rule, Problem& p, const PartialTensorShape& shape) {
  int64_t depth = Depth(p);
  rule.Bind("filters", shape, Axes(p, {kDepth, &depth}));
}

// Adds a result with `last` elements per pixel.
absl::Status AddResult(int64_t last, Call<Problem>* call) {
  const Problem& p = call->problem;
  return p.channels_first ? call->AddResult({p.batch, last, p.height, p.width})
                          : call->AddResult({p.batch, p.height, p.width, last});
}

}  // namespace

absl::StatusOr<Problem> Resolve(
    const char* op,
    std::initializer_list<std::pair<const char*, PartialTensorShape>> images,
    const PartialTensorShape& filters, const Attributes& attributes) {
  Problem p;
  ShapeRule rule(op);
  SetAttributes(rule, p, attributes);
  if (!rule.status().ok()) return rule.status();
  for (const auto& [name, shape] : images) BindImage(rule, p, name, shape);
  BindFilters(rule, p, filters);
  if (!rule.status().ok()) return rule.status();
  return p;
}

absl::StatusOr<Call<Problem>> ForwardOp::Resolve(const OpInputs& inputs) const {
  TF_ASSIGN_OR_RETURN(const auto p,
                      high_order_conv::Resolve(kName, {{"input", inputs.shape(0)}},
                                               inputs.shape(1), attributes));
  Call<Problem> call{p, {0, 1}};
  TF_RETURN_IF_ERROR(AddResult(p.channels, &call));
  return call;
}

absl::StatusOr<Call<Problem>> BackwardOp::Resolve(const OpInputs& inputs) const {
  TF_ASSIGN_OR_RETURN(
      const auto p, high_order_conv::Resolve(
                        kName, {{"grad", inputs.shape(0)}, {"input", inputs.shape(1)}},
                        inputs.shape(2), attributes));
  Call<Problem> call{p, {0, 1, 2}};
  TF_RETURN_IF_ERROR(AddResult(p.channels, &call));
  TF_RETURN_IF_ERROR(AddResult(Depth(p), &call));
  return call;
}

}  // namespace capsops::high_order_conv
