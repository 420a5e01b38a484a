// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The only place where the shapes of capsule prediction are checked.
#pragma once

#include "absl/status/statusor.h"

#include "cc/framework/op_call.h"
#include "cc/launch/capsule_prediction.h"

namespace capsops::capsule_prediction {

struct ForwardOp : Forward, OpDefaults {
  static constexpr const char* kOp = kName;
  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const;
};

struct BackwardOp : Backward, OpDefaults {
  static constexpr const char* kOp = kName;
  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const;
};

}  // namespace capsops::capsule_prediction
