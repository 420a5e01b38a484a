// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Shared by the studies: ops with other papers' kernels, for benchmarks. They are
// classes as in cc/framework/op_call.h.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/errors.h"

#include "cc/framework/infer_shapes.h"
#include "cc/framework/planned_op.h"
#include "cc/framework/shape_rule.h"

namespace capsops::studies {

using tensorflow::PartialTensorShape;

// Returns `resolved`, or an error of the op if there is a `reason`.
template <typename Resolved>
absl::StatusOr<Resolved> ErrorIf(const std::string& reason, const char* op,
                                 absl::StatusOr<Resolved> resolved) {
  const absl::Status status = ShapeRule(op).Require(reason.empty(), reason).status();
  if (!status.ok()) return status;
  return resolved;
}

}  // namespace capsops::studies
