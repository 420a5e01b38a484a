// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Shared by the studies' ops: names from TensorFlow, the refusal of unsupported
// problems, and the tensors of a gradient op.
#ifndef CAPSOPS_CC_STUDIES_STUDY_H_
#define CAPSOPS_CC_STUDIES_STUDY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/errors.h"

#include "cc/framework/device.h"
#include "cc/framework/shape_rule.h"

namespace capsops::studies {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using tensorflow::shape_inference::InferenceContext;

// Returns `resolved`, or an error of the op if there is a `reason`.
template <typename Resolved>
absl::StatusOr<Resolved> ErrorIf(const std::string& reason, const char* op,
                                 absl::StatusOr<Resolved> resolved) {
  const absl::Status status = ShapeRule(op).Require(reason.empty(), reason).status();
  if (!status.ok()) return status;
  return resolved;
}

// The tensors of a gradient op; its results are shaped like its second and third input.
struct Gradients {
  const Tensor& grad;
  const Tensor& input;
  const Tensor& weights;
  Tensor* grad_input = nullptr;
  Tensor* grad_weights = nullptr;

  explicit Gradients(OpKernelContext* ctx)
      : grad(ctx->input(0)), input(ctx->input(1)), weights(ctx->input(2)) {}

  absl::Status Allocate(OpKernelContext* ctx) {
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, input.shape(), &grad_input));
    return ctx->allocate_output(1, weights.shape(), &grad_weights);
  }
};

}  // namespace capsops::studies

#endif  // CAPSOPS_CC_STUDIES_STUDY_H_
