// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/framework/shape_rule.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace capsops {

using tensorflow::PartialTensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

std::vector<Axis> Joined(std::vector<Axis> first, absl::Span<const Axis> more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

std::vector<int64_t> Sizes(absl::Span<const Axis> axes) {
  std::vector<int64_t> sizes;
  for (const Axis& axis : axes) sizes.push_back(*axis.dim);
  return sizes;
}

std::string Listed(absl::Span<const Axis> axes) {
  const auto name = [](std::string* out, const Axis& axis) { *out += axis.name; };
  return absl::StrCat(axes.size(), " [", absl::StrJoin(axes, ", ", name), "]");
}

ShapeRule& ShapeRule::Bind(const char* tensor, const PartialTensorShape& shape,
                           absl::Span<const Axis> axes) {
  if (!status_.ok() || shape.unknown_rank()) return *this;
  const bool any_rank = RuleDropped(op_, tensor, "rank");
  if (shape.dims() != static_cast<int>(axes.size())) {
    if (any_rank) return *this;
    Fail(absl::StrCat(tensor, " must have rank ", Listed(axes), ", got ",
                      shape.DebugString()));
    return *this;
  }
  int index = 0;
  for (const Axis& axis : axes) {
    const int64_t size = shape.dim_size(index);
    if (*axis.dim >= 0 && size >= 0 && !RuleDropped(op_, tensor, axis.name) &&
        *axis.dim != size) {
      Fail(absl::StrCat(tensor, " dim ", index, " (", axis.name, ") must be ",
                        *axis.dim, ", got ", shape.DebugString()));
      return *this;
    }
    if (*axis.dim < 0) *axis.dim = size;
    ++index;
  }
  return *this;
}

void ShapeRule::Fail(absl::string_view text) {
  status_ = absl::InvalidArgumentError(absl::StrCat(op_, ": ", text));
}

void CheckEpsilon(ShapeRule& rule, float epsilon) {
  rule.Require(epsilon > 0, [&] {
    return absl::StrCat("epsilon must be positive, got ", epsilon, " in float32");
  });
  // Kernels run with subnormals flushed to zero; shape functions do not, so for them a
  // subnormal is positive.
  rule.Require(epsilon >= std::numeric_limits<float>::min(), [&] {
    return absl::StrCat("epsilon must be at least 2^-126, got ", epsilon,
                        " in float32");
  });
  rule.Require(std::isfinite(epsilon), [&] {
    return absl::StrCat("epsilon must be finite, got ", epsilon, " in float32");
  });
}

PartialTensorShape InputShape(InferenceContext* ctx, int index) {
  return PartialTensorShape(ctx->ShapeHandleToProto(ctx->input(index)));
}

absl::Status SetOutputShape(InferenceContext* ctx, int index,
                            const PartialTensorShape& shape) {
  ShapeHandle handle;
  const absl::Status status = ctx->MakeShapeFromPartialTensorShape(shape, &handle);
  if (!status.ok()) return status;
  ctx->set_output(index, handle);
  return absl::OkStatus();
}

}  // namespace capsops
