// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The shape function of an op that op_call.h describes.
#pragma once

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

#include "cc/framework/op_call.h"
#include "cc/framework/shape_rule.h"
#include "cc/framework/window.h"

namespace capsops {

class InferenceInputs final : public OpInputs {
 public:
  explicit InferenceInputs(tensorflow::shape_inference::InferenceContext* ctx)
      : ctx_(ctx) {}
  tensorflow::PartialTensorShape shape(int index) const override {
    return InputShape(ctx_, index);
  }
  absl::StatusOr<tensorflow::PartialTensorShape> ShapeIn(
      int index, const char* op, const char* name) const override {
    return ShapeInSizes(op, name, ctx_, index);
  }
  absl::StatusOr<int32_t> Value(int) const override { return 0; }

 private:
  tensorflow::shape_inference::InferenceContext* ctx_;
};

template <typename Op>
absl::Status InferShapes(tensorflow::shape_inference::InferenceContext* ctx) {
  Op op;
  TF_RETURN_IF_ERROR(op.Read(ctx));
  TF_ASSIGN_OR_RETURN(const auto call, op.Resolve(InferenceInputs(ctx)));
  if constexpr (Op::kSumType != nullptr) {
    using tensorflow::DataTypeString;
    tensorflow::DataType type, sum_type;
    TF_RETURN_IF_ERROR(ctx->GetAttr("T", &type));
    TF_RETURN_IF_ERROR(ctx->GetAttr(Op::kSumType, &sum_type));
    const auto required =
        type == tensorflow::DT_DOUBLE ? tensorflow::DT_DOUBLE : tensorflow::DT_FLOAT;
    // Only shape functions need this check: OpKernels are registered for no other type.
    ShapeRule rule(Op::kName);
    rule.Require(sum_type == required, [&] {
      return absl::StrCat(Op::kSumType, " (the type of sums) must be ",
                          DataTypeString(required), " where T is ",
                          DataTypeString(type), ", got ", DataTypeString(sum_type));
    });
    TF_RETURN_IF_ERROR(rule.status());
  }
  for (int i = 0; i < ctx->num_outputs(); ++i) {
    TF_RETURN_IF_ERROR(SetOutputShape(ctx, i, call.results[i]));
  }
  return absl::OkStatus();
}

}  // namespace capsops
