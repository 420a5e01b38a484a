// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/capsule_conv.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "cc/framework/shape_rule.h"

namespace capsops::capsule_conv {
namespace {

using tensorflow::PartialTensorShape;
using tensorflow::Tensor;

constexpr int kDepthAxis = 4;  // where capsules of rank 3 have one axis more
constexpr int kRank = 6;       // of tensors of capsules of rank 2

// A tensor as it was given: its name for messages, its shape, and its axes with depth.
struct Operand {
  const char* name;
  PartialTensorShape shape;
  std::vector<Axis> axes;

  std::vector<Axis> AxesOfRank(int rank) const {
    std::vector<Axis> chosen = axes;
    if (rank == kRank) chosen.erase(chosen.begin() + kDepthAxis);
    return chosen;
  }
};

std::vector<Axis> InputAxes(Problem& p) {
  return {{"batch", &p.batch},           {"in_height", &p.in_height},
          {"in_width", &p.in_width},     {"in_channels", &p.in_channels},
          {"pose_depth", &p.pose_depth}, {"pose_rows", &p.pose_rows},
          {"pose_inner", &p.pose_inner}};
}

std::vector<Axis> WeightsAxes(Problem& p) {
  return {{"kernel_height", &p.kernel_height}, {"kernel_width", &p.kernel_width},
          {"in_channels", &p.in_channels},     {"out_channels", &p.out_channels},
          {"pose_depth", &p.pose_depth},       {"pose_inner", &p.pose_inner},
          {"pose_columns", &p.pose_columns}};
}

std::vector<Axis> OutputAxes(Problem& p) {
  return {{"batch", &p.batch},
          {"out_height", &p.out_height},
          {"out_width", &p.out_width},
          {"out_channels", &p.out_channels},
          {"pose_depth", &p.pose_depth},
          {"pose_rows", &p.pose_rows},
          {"pose_columns", &p.pose_columns}};
}

std::string Listed(const std::vector<Axis>& axes) {
  const auto name = [](std::string* out, const Axis& axis) { *out += axis.name; };
  return absl::StrCat(axes.size(), " [", absl::StrJoin(axes, ", ", name), "]");
}

// The rank that all tensors have: that of the first whose rank is known, else -1.
int CommonRank(ShapeRule& rule, const std::vector<Operand>& operands) {
  for (const Operand& operand : operands) {
    if (operand.shape.unknown_rank()) continue;
    const int rank = operand.shape.dims();
    rule.Require(
        rank == kRank || rank == kRank + 1,
        absl::StrCat(operand.name, " must have rank ",
                     Listed(operand.AxesOfRank(kRank)), " or ", Listed(operand.axes),
                     ", got ", operand.shape.DebugString()));
    return rank;
  }
  return -1;
}

void SetPair(ShapeRule& rule, const char* name, const std::vector<int32_t>& values,
             int64_t* height, int64_t* width) {
  const bool good = values.size() == 2 && values[0] > 0 && values[1] > 0;
  rule.Require(good, absl::StrCat(name, " must be two positive integers, got [",
                                  absl::StrJoin(values, ","), "]"));
  if (!good) return;
  *height = values[0];
  *width = values[1];
}

// What is known of the output along one of the axes that a kernel moves on.
struct Extent {
  int64_t out = -1;
  int64_t pad = 0;
};

// As tf.nn.conv2d has it, but that an empty image has an empty output with any kernel.
// `axis` is that of the weights.
Extent SlideKernel(ShapeRule& rule, const Operand& weights, int axis, const Axis& in,
                   int64_t stride, int64_t dilation, bool same) {
  Extent extent;
  const int64_t kernel = *weights.axes[axis].dim;
  const auto kernel_must_be = [&](auto... requirement) {
    return absl::StrCat(weights.name, " dim ", axis, " (", weights.axes[axis].name,
                        ") must be ", requirement..., ", got ",
                        weights.shape.DebugString());
  };
  const int64_t largest = std::numeric_limits<int32_t>::max();
  rule.Require(kernel != 0, kernel_must_be("at least 1"));
  rule.Require(kernel <= largest, kernel_must_be("at most ", largest));
  if (*in.dim < 0 || !rule.status().ok()) return extent;
  if (*in.dim == 0) return {0, 0};
  const int64_t reach = (kernel - 1) * dilation;  // from the first row to the last
  if (same) {
    extent.out = (*in.dim - 1) / stride + 1;
    const int64_t padding = (extent.out - 1) * stride + 1 - *in.dim + reach;
    if (kernel > 0) extent.pad = std::max<int64_t>(0, padding) / 2;
  } else if (kernel > 0) {
    rule.Require(
        reach < *in.dim,
        kernel_must_be("at most ", (*in.dim - 1) / dilation + 1, " (", in.name, " ",
                       *in.dim, ", dilation ", dilation, ", padding VALID)"));
    extent.out = (*in.dim - 1 - reach) / stride + 1;
  }
  return extent;
}

absl::Status SetShape(std::vector<Axis> axes, int rank, PartialTensorShape* shape) {
  if (rank < 0) return absl::OkStatus();
  if (rank == kRank) axes.erase(axes.begin() + kDepthAxis);
  std::vector<int64_t> dims;
  for (const Axis& axis : axes) dims.push_back(*axis.dim);
  return PartialTensorShape::BuildPartialTensorShape(dims, shape);
}

// The names are those of the tensors, or of what has their shapes; without `output` the
// output may have any shape.
absl::StatusOr<Convolution> ResolveAll(const char* op, const char* input_name,
                                       const PartialTensorShape& input,
                                       const char* weights_name,
                                       const PartialTensorShape& weights,
                                       const PartialTensorShape& grad,
                                       const Attributes& attributes) {
  Convolution conv;
  Problem& p = conv.problem;
  ShapeRule rule(op);
  const std::vector<Operand> operands = {{input_name, input, InputAxes(p)},
                                         {weights_name, weights, WeightsAxes(p)},
                                         {"grad", grad, OutputAxes(p)}};
  const int rank = CommonRank(rule, operands);
  if (rank == kRank) p.pose_depth = 1;
  const auto bind = [&](const Operand& operand) {
    rule.Bind(operand.name, operand.shape, operand.AxesOfRank(rank));
  };
  bind(operands[0]);
  bind(operands[1]);
  SetPair(rule, "strides", attributes.strides, &p.stride_height, &p.stride_width);
  SetPair(rule, "dilations", attributes.dilations, &p.dilation_height,
          &p.dilation_width);
  const bool same = attributes.padding == "SAME";
  rule.Require(same || attributes.padding == "VALID",
               absl::StrCat("padding must be VALID or SAME, got ", attributes.padding));
  const Extent height = SlideKernel(rule, operands[1], 0, operands[0].axes[1],
                                    p.stride_height, p.dilation_height, same);
  const Extent width = SlideKernel(rule, operands[1], 1, operands[0].axes[2],
                                   p.stride_width, p.dilation_width, same);
  p.out_height = height.out;
  p.out_width = width.out;
  p.pad_top = height.pad;
  p.pad_left = width.pad;
  bind(operands[2]);
  if (!rule.status().ok()) return rule.status();
  absl::Status status = SetShape(operands[0].axes, rank, &conv.input);
  status.Update(SetShape(operands[1].axes, rank, &conv.weights));
  status.Update(SetShape(operands[2].axes, rank, &conv.output));
  if (!status.ok()) return status;
  return conv;
}

}  // namespace

absl::StatusOr<Convolution> Resolve(const PartialTensorShape& input,
                                    const PartialTensorShape& weights,
                                    const Attributes& attributes) {
  return ResolveAll("CapsuleConv", "input", input, "weights", weights,
                    PartialTensorShape(), attributes);
}

absl::StatusOr<Convolution> ResolveBackpropInput(const PartialTensorShape& input_sizes,
                                                 const PartialTensorShape& weights,
                                                 const PartialTensorShape& grad,
                                                 const Attributes& attributes) {
  return ResolveAll("CapsuleConvBackpropInput", "input_sizes", input_sizes, "weights",
                    weights, grad, attributes);
}

absl::StatusOr<Convolution> ResolveBackpropWeights(
    const PartialTensorShape& input, const PartialTensorShape& weight_sizes,
    const PartialTensorShape& grad, const Attributes& attributes) {
  return ResolveAll("CapsuleConvBackpropWeights", "input", input, "weight_sizes",
                    weight_sizes, grad, attributes);
}

absl::StatusOr<PartialTensorShape> ShapeInSizes(const char* op, const char* name,
                                                const Tensor& sizes) {
  ShapeRule rule(op);
  rule.Require(sizes.dims() == 1, absl::StrCat(name, " must be a vector, got shape ",
                                               sizes.shape().DebugString()));
  if (!rule.status().ok()) return rule.status();
  const auto values = sizes.vec<int32_t>();
  const std::vector<int64_t> dims(values.data(), values.data() + values.size());
  const std::string text = absl::StrCat("[", absl::StrJoin(dims, ","), "]");
  rule.Require(std::all_of(dims.begin(), dims.end(), [](int64_t d) { return d >= 0; }),
               absl::StrCat(name, " must not be negative, got ", text));
  PartialTensorShape shape;
  rule.Require(PartialTensorShape::BuildPartialTensorShape(dims, &shape).ok(),
               absl::StrCat(name, " must count fewer than 2^63 elements, got ", text));
  if (!rule.status().ok()) return rule.status();
  return shape;
}

}  // namespace capsops::capsule_conv
