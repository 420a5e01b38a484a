// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/capsule_conv.h"

#include <vector>

#include "absl/strings/str_cat.h"

#include "cc/framework/shape_rule.h"

namespace capsops::capsule_conv {
namespace {

using tensorflow::PartialTensorShape;

constexpr int kDepthAxis = 4;  // the axis that only capsules of rank 3 have
constexpr int kRank = 6;       // rank of tensors of capsules of rank 2
constexpr int kPixelAxes = 3;  // batch, height and width; the axes of a pixel follow

// A tensor of the call: its name for messages, its shape, and its axes including depth.
struct Operand {
  const char* name;
  PartialTensorShape shape;
  std::vector<Axis> axes;

  std::vector<Axis> AxesOfRank(int rank, int depth_axis = kDepthAxis) const {
    std::vector<Axis> chosen = axes;
    if (rank == kRank) chosen.erase(chosen.begin() + depth_axis);
    return chosen;
  }
};

// Returns the rank that all tensors must have: the first rank that is known, or -1 if
// none is.
int CommonRank(ShapeRule& rule, const std::vector<Operand>& operands) {
  for (const Operand& operand : operands) {
    if (operand.shape.unknown_rank()) continue;
    const int rank = operand.shape.dims();
    rule.Require(rank == kRank || rank == kRank + 1, [&] {
      return absl::StrCat(operand.name, " must have rank ",
                          Listed(operand.AxesOfRank(kRank)), " or ",
                          Listed(operand.axes), ", got ", operand.shape.DebugString());
    });
    return rank;
  }
  return -1;
}

absl::Status SetShape(std::vector<Axis> axes, int rank, PartialTensorShape* shape) {
  if (rank < 0) return absl::OkStatus();
  if (rank == kRank) axes.erase(axes.begin() + kDepthAxis);
  return PartialTensorShape::BuildPartialTensorShape(Sizes(axes), shape);
}

// Binds all shapes. A name is that of a tensor, or of the vector that gives its shape.
// A `grad` of unknown rank allows any output; `bias` may be null.
absl::StatusOr<Convolution> ResolveAll(const char* op, const char* input_name,
                                       const PartialTensorShape& input,
                                       const char* weights_name,
                                       const PartialTensorShape& weights,
                                       const PartialTensorShape& grad,
                                       const Attributes& attributes,
                                       const PartialTensorShape* bias = nullptr) {
  Convolution conv;
  Problem& p = conv.problem;
  ShapeRule rule(op);
  const Axis depth{"pose_depth", &p.pose_depth}, rows{"pose_rows", &p.pose_rows};
  const Axis inner{"pose_inner", &p.pose_inner};
  const Axis columns{"pose_columns", &p.pose_columns};
  const std::vector<Operand> operands = {
      {input_name, input, Joined(InputAxes(p), {depth, rows, inner})},
      {weights_name, weights, Joined(WeightsAxes(p), {depth, inner, columns})},
      {"grad", grad, Joined(OutputAxes(p), {depth, rows, columns})}};
  const int rank = CommonRank(rule, operands);
  if (rank == kRank) p.pose_depth = 1;
  const auto bind = [&](const Operand& operand) {
    rule.Bind(operand.name, operand.shape, operand.AxesOfRank(rank));
  };
  bind(operands[0]);
  bind(operands[1]);
  ResolveWindow(rule, attributes, weights_name, weights, p);
  bind(operands[2]);
  if (bias != nullptr && rank >= 0) {
    const std::vector<Axis> pixel(operands[2].axes.begin() + kPixelAxes,
                                  operands[2].axes.end());
    const Operand operand{"bias", *bias, pixel};
    rule.Bind("bias", *bias, operand.AxesOfRank(rank, kDepthAxis - kPixelAxes));
  }
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
  return ResolveAll(BackpropInput::kName, "input_sizes", input_sizes, "weights",
                    weights, grad, attributes);
}

absl::StatusOr<Call<Problem>> ForwardOp::Resolve(const OpInputs& inputs) const {
  TF_ASSIGN_OR_RETURN(
      const auto conv,
      capsule_conv::Resolve(inputs.shape(0), inputs.shape(1), attributes));
  return Call<Problem>{conv.problem, {0, 1}, {conv.output}};
}

absl::StatusOr<Call<Problem>> ForwardBiasReluOp::Resolve(const OpInputs& inputs) const {
  const PartialTensorShape bias = inputs.shape(2);
  TF_ASSIGN_OR_RETURN(
      const auto conv,
      ResolveAll(kName, "input", inputs.shape(0), "weights", inputs.shape(1),
                 PartialTensorShape(), attributes, &bias));
  return Call<Problem>{conv.problem, {0, 1, 2}, {conv.output}};
}

absl::StatusOr<Call<Problem>> BackpropInputOp::Resolve(const OpInputs& inputs) const {
  TF_ASSIGN_OR_RETURN(const auto input, inputs.ShapeIn(0, kName, "input_sizes"));
  TF_ASSIGN_OR_RETURN(
      const auto conv,
      ResolveBackpropInput(input, inputs.shape(1), inputs.shape(2), attributes));
  return Call<Problem>{conv.problem, {2, 1}, {conv.input}};
}

absl::StatusOr<Call<Problem>> BackpropWeightsOp::Resolve(const OpInputs& inputs) const {
  TF_ASSIGN_OR_RETURN(const auto weights, inputs.ShapeIn(1, kName, "weight_sizes"));
  TF_ASSIGN_OR_RETURN(const auto conv,
                      ResolveAll(kName, "input", inputs.shape(0), "weight_sizes",
                                 weights, inputs.shape(2), attributes));
  return Call<Problem>{conv.problem, {0, 2}, {conv.weights}};
}

}  // namespace capsops::capsule_conv
