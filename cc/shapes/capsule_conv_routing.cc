// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/capsule_conv_routing.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensorflow/core/platform/errors.h"

#include "cc/framework/shape_rule.h"

namespace capsops::capsule_conv_routing {
namespace {

using tensorflow::PartialTensorShape;
using Axes = std::vector<Axis>;

constexpr size_t kMostAxes = 3;

// Returns the spatial axes of images of `count` dimensions, and sets their sizes to
// unknown.
std::vector<WindowAxis> SpatialAxes(Problem& p, size_t count) {
  const WindowAxis all[kMostAxes] = {{{"in_depth", &p.in_depth},
                                      {"kernel_depth", &p.kernel_depth},
                                      &p.out_depth,
                                      &p.pad_front,
                                      &p.stride_depth,
                                      &p.dilation_depth},
                                     DownAxis(p),
                                     AcrossAxis(p)};
  std::vector<WindowAxis> axes(all + kMostAxes - count, all + kMostAxes);
  for (const WindowAxis& axis : axes) *axis.in.dim = *axis.kernel.dim = *axis.out = -1;
  return axes;
}

// The axes of each tensor. Weights that all types share lack the axis `types`.
struct TensorAxes {
  Axes input, weights, shared_weights, bias, logits, output;

  TensorAxes(Problem& p, const std::vector<WindowAxis>& spatial) {
    const Axis types = {"types", &p.types}, in_dim = {"in_dim", &p.in_dim};
    constexpr const char* kOut[kMostAxes] = {"out_depth", "out_height", "out_width"};
    Axes out;
    bias = {{"parents", &p.parents}, {"out_dim", &p.out_dim}};
    logits = {types, bias[0]};
    for (size_t i = 0; i < spatial.size(); ++i) {
      input.push_back(spatial[i].in);
      weights.push_back(spatial[i].kernel);
      out.push_back({kOut[kMostAxes - spatial.size() + i], spatial[i].out});
    }
    input = Joined(Joined({{"batch", &p.batch}}, input), {types, in_dim});
    shared_weights = Joined(Joined(weights, {in_dim}), bias);
    weights = Joined(Joined(weights, {types, in_dim}), bias);
    output = Joined(Joined({{"batch", &p.batch}}, out), bias);
  }
};

// Requires that the sizes of what routing keeps per pixel fit in 64 bits, with room to
// spare. Unknown dimensions and dimensions of 0 count as 1.
void CheckIterations(ShapeRule& rule, const Problem& p) {
  rule.Require(p.iterations <= INT32_MAX, [&] {
    return absl::StrCat("iterations must be at most ", INT32_MAX, ", got ",
                        p.iterations);
  });
  int64_t left = int64_t{1} << 48;
  for (const int64_t size : {p.iterations, p.types, p.parents, p.out_dim}) {
    left /= std::max<int64_t>(size, 1);
  }
  rule.Require(left > 0, [&] {
    return absl::StrCat(
        "votes of a pixel in all iterations, iterations x types x parents x out_dim, "
        "must be at most 2^48, got ",
        p.iterations, " x ", p.types, " x ", p.parents, " x ", p.out_dim);
  });
}

// Binds the inputs and, if `gradient`, the gradient of the output, which is the first
// input. Adds the shapes of the results.
absl::StatusOr<Call<Problem>> ResolveAll(const char* op, const OpInputs& inputs,
                                         const Attributes& attributes, bool gradient) {
  const int first = gradient ? 1 : 0;
  Call<Problem> call;
  Problem& p = call.problem;
  ShapeRule rule(op);
  const size_t count = attributes.strides.size();
  rule.Require(count >= 1 && count <= kMostAxes, [&] {
    return absl::StrCat("strides must be one, two or three positive integers, got [",
                        absl::StrJoin(attributes.strides, ","), "]");
  });
  if (!rule.status().ok()) return rule.status();
  const std::vector<WindowAxis> spatial =
      SpatialAxes(p, std::clamp<size_t>(count, 1, kMostAxes));
  const TensorAxes axes(p, spatial);
  const PartialTensorShape weights = inputs.shape(first + 1);
  rule.Bind("input", inputs.shape(first), axes.input);
  const bool per_type = weights.dims() == static_cast<int>(axes.weights.size());
  const bool shared = weights.dims() == static_cast<int>(axes.shared_weights.size());
  rule.Require(weights.unknown_rank() || per_type || shared, [&] {
    return absl::StrCat("weights must have rank ", Listed(axes.shared_weights), " or ",
                        Listed(axes.weights), ", got ", weights.DebugString());
  });
  rule.Bind("weights", weights, per_type ? axes.weights : axes.shared_weights);
  const absl::Span<const WindowAxis> window = spatial;
  if (attributes.transposed) {
    ResolveTransposedWindow(rule, attributes, "weights", weights, window);
  } else {
    ResolveWindow(rule, attributes, "weights", weights, window);
  }
  rule.Require(!attributes.transposed ||
                   p.dilation_depth * p.dilation_height * p.dilation_width == 1,
               [&] {
                 return absl::StrCat("dilations must be 1 where transposed, got [",
                                     absl::StrJoin(attributes.dilations, ","), "]");
               });
  rule.Bind("bias", inputs.shape(first + 2), axes.bias);
  rule.Bind("logits", inputs.shape(first + 3), axes.logits);
  if (gradient) rule.Bind("grad", inputs.shape(0), axes.output);
  p.iterations = attributes.iterations;
  p.set_epsilon(attributes.epsilon);
  p.shared_weights = per_type ? 0 : 1;
  p.transposed = attributes.transposed;
  p.leaky = attributes.leaky;
  CheckIterations(rule, p);
  CheckEpsilon(rule, attributes.epsilon);
  if (!rule.status().ok()) return rule.status();
  call.operands = {0, 1, 2, 3};
  if (!gradient) {
    TF_RETURN_IF_ERROR(call.AddResult(Sizes(axes.output)));
    return call;
  }
  call.operands.push_back(4);
  TF_RETURN_IF_ERROR(call.AddResult(Sizes(axes.input)));
  if (weights.unknown_rank()) {
    call.results.emplace_back();
  } else {
    TF_RETURN_IF_ERROR(
        call.AddResult(Sizes(per_type ? axes.weights : axes.shared_weights)));
  }
  TF_RETURN_IF_ERROR(call.AddResult(Sizes(axes.bias)));
  TF_RETURN_IF_ERROR(call.AddResult(Sizes(axes.logits)));
  return call;
}

}  // namespace

absl::StatusOr<Call<Problem>> ForwardOp::Resolve(const OpInputs& inputs) const {
  return ResolveAll(kName, inputs, attributes, false);
}

absl::StatusOr<Call<Problem>> BackwardOp::Resolve(const OpInputs& inputs) const {
  return ResolveAll(kName, inputs, attributes, true);
}

}  // namespace capsops::capsule_conv_routing
