// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/capsule_moments.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/errors.h"

#include "cc/framework/shape_rule.h"

namespace capsops::capsule_moments {
namespace {

using tensorflow::PartialTensorShape;

// The axes of each kind of tensor: one number per child, vote, window, and so on.
struct Axes {
  explicit Axes(Problem& p)
      : children(InputAxes(p)), pairs(WeightsAxes(p)), parents(OutputAxes(p)) {
    const Axis rows{"pose_rows", &p.pose_rows}, inner{"pose_inner", &p.pose_inner};
    const Axis columns{"pose_columns", &p.pose_columns};
    poses = Joined(children, {rows, inner});
    weights = Joined(pairs, {inner, columns});
    moments = Joined(parents, {rows, columns});
  }

  std::vector<Axis> children, poses, pairs, weights, parents, moments;
};

bool IsAbsent(const PartialTensorShape& shape) {
  return shape.dims() == 1 && shape.dim_size(0) == 0;
}

// Binds an optional tensor, which is absent if it is an empty vector. Leaves `present`
// unchanged if too little of the shape is known to tell.
void BindOptional(ShapeRule& rule, const char* name, const PartialTensorShape& shape,
                  const std::vector<Axis>& axes, int64_t* present) {
  if (shape.unknown_rank() || (shape.dims() == 1 && shape.dim_size(0) < 0)) return;
  *present = IsAbsent(shape) ? 0 : 1;
  if (*present == 1) rule.Bind(name, shape, axes);
}

// Binds the eight inputs of the forward op, from input `first` on, and computes the
// sizes of the output.
void BindInputs(ShapeRule& rule, const Attributes& attributes, const OpInputs& inputs,
                int first, Problem& p) {
  const Axes axes(p);
  rule.Bind("poses", inputs.shape(first), axes.poses);
  BindOptional(rule, "activations", inputs.shape(first + 1), axes.children,
               &p.has_activations);
  const PartialTensorShape weights = inputs.shape(first + 2);
  rule.Bind("weights", weights, axes.weights);
  ResolveWindow(rule, attributes, "weights", weights, p);
  BindOptional(rule, "bias", inputs.shape(first + 3), axes.parents, &p.has_bias);
  BindOptional(rule, "linear", inputs.shape(first + 4), axes.moments, &p.has_linear);
  BindOptional(rule, "precision", inputs.shape(first + 5), axes.moments,
               &p.has_precision);
  BindOptional(rule, "center", inputs.shape(first + 6), axes.moments, &p.has_center);
  BindOptional(rule, "prior", inputs.shape(first + 7), axes.pairs, &p.has_prior);
  p.normalize = attributes.normalize == "parents" ? kParents
                : attributes.normalize == "all"   ? kAll
                                                  : kNone;
}

void SetOrder(ShapeRule& rule, int64_t order, Problem& p) {
  rule.Require(order <= 2,
               [&] { return absl::StrCat("order must be 0, 1 or 2, got ", order); });
  p.order = order;
}

// Binds a tensor that is only present if the order is at least `least`.
void BindForOrder(ShapeRule& rule, const char* name, const PartialTensorShape& shape,
                  const std::vector<Axis>& axes, const Problem& p, int64_t least) {
  if (p.order >= least) {
    rule.Bind(name, shape, axes);
    return;
  }
  rule.Require(shape.IsCompatibleWith(PartialTensorShape({0})), [&] {
    return absl::StrCat(name, " must have the shape [0] where order is ", p.order,
                        ", got ", shape.DebugString());
  });
}

// Adds a result that is present if `present` is 1, an empty vector if it is 0, and of
// unknown shape if it is -1.
absl::Status AddOptional(Call<Problem>& call, int64_t present,
                         const std::vector<Axis>& axes) {
  if (present == 0) return call.AddResult({0});
  if (present == 1) return call.AddResult(Sizes(axes));
  call.results.emplace_back();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Call<Problem>> ForwardOp::Resolve(const OpInputs& inputs) const {
  Problem p;
  ShapeRule rule(kName);
  SetOrder(rule, order, p);
  BindInputs(rule, attributes, inputs, 0, p);
  if (!rule.status().ok()) return rule.status();
  Call<Problem> call{p, {0, 1, 2, 3, 4, 5, 6, 7}};
  const Axes axes(p);
  TF_RETURN_IF_ERROR(AddOptional(call, 1, axes.parents));
  TF_RETURN_IF_ERROR(AddOptional(call, order >= 1, axes.moments));
  TF_RETURN_IF_ERROR(AddOptional(call, order == 2, axes.moments));
  return call;
}

absl::StatusOr<Call<Problem>> BackwardOp::Resolve(const OpInputs& inputs) const {
  Problem p;
  ShapeRule rule(kName);
  SetOrder(rule, order, p);
  BindInputs(rule, attributes, inputs, 3, p);
  const Axes axes(p);
  rule.Bind("grad_mass", inputs.shape(0), axes.parents);
  BindForOrder(rule, "grad_first", inputs.shape(1), axes.moments, p, 1);
  BindForOrder(rule, "grad_second", inputs.shape(2), axes.moments, p, 2);
  rule.Bind("mass", inputs.shape(11), axes.parents);
  BindForOrder(rule, "first", inputs.shape(12), axes.moments, p, 1);
  if (!rule.status().ok()) return rule.status();
  Call<Problem> call{p, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}};
  TF_RETURN_IF_ERROR(AddOptional(call, 1, axes.poses));
  TF_RETURN_IF_ERROR(AddOptional(call, p.has_activations, axes.children));
  TF_RETURN_IF_ERROR(AddOptional(call, 1, axes.weights));
  TF_RETURN_IF_ERROR(AddOptional(call, p.has_bias, axes.parents));
  TF_RETURN_IF_ERROR(AddOptional(call, p.has_linear, axes.moments));
  TF_RETURN_IF_ERROR(AddOptional(call, p.has_precision, axes.moments));
  TF_RETURN_IF_ERROR(AddOptional(call, p.has_center, axes.moments));
  TF_RETURN_IF_ERROR(AddOptional(call, p.has_prior, axes.pairs));
  return call;
}

absl::StatusOr<Call<Problem>> SharesOp::Resolve(const OpInputs& inputs) const {
  Problem p;
  ShapeRule rule(kName);
  BindInputs(rule, attributes, inputs, 0, p);
  return MakeCall(rule.status(), p, {0, 1, 2, 3, 4, 5, 6, 7},
                  {{p.batch, p.out_height, p.out_width, p.kernel_height, p.kernel_width,
                    p.in_channels, p.out_channels}});
}

}  // namespace capsops::capsule_moments
