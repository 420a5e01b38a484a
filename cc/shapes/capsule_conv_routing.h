// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The only place where the shapes and attributes of convolution with routing are
// checked.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "cc/framework/op_call.h"
#include "cc/framework/window.h"
#include "cc/launch/capsule_conv_routing.h"

namespace capsops::capsule_conv_routing {

struct Attributes : WindowAttributes {
  int64_t iterations = 0;
  float epsilon = 0;
  bool transposed = false, leaky = false;
};

template <typename Context>
absl::Status GetAttributes(Context* ctx, Attributes* attributes) {
  WindowAttributes* const window = attributes;
  absl::Status status = capsops::GetAttributes(ctx, window);
  if (status.ok()) status = ctx->GetAttr("iterations", &attributes->iterations);
  if (status.ok()) status = ctx->GetAttr("epsilon", &attributes->epsilon);
  if (status.ok()) status = ctx->GetAttr("transposed", &attributes->transposed);
  if (status.ok()) status = ctx->GetAttr("leaky", &attributes->leaky);
  return status;
}

struct ForwardOp : Forward, OpWith<Attributes> {
  static constexpr const char* kOp = kName;
  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const;
};

// Takes the gradient of the output before the inputs of ForwardOp.
struct BackwardOp : Backward, OpWith<Attributes> {
  static constexpr const char* kOp = kName;
  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const;
};

}  // namespace capsops::capsule_conv_routing
