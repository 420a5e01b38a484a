// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The only place where the shapes and attributes of routing by agreement are checked.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "cc/framework/op_call.h"
#include "cc/launch/capsule_routing.h"
#include "cc/launch/inq_capsule_routing.h"

namespace capsops::capsule_routing {

struct WithEpsilon : OpDefaults {
  static constexpr const char* kSumType = "U";
  template <typename Context>
  absl::Status Read(Context* ctx) {
    return ctx->GetAttr("epsilon", &epsilon);
  }
  float epsilon = 0;
};

struct WithIterations : WithEpsilon {
  template <typename Context>
  absl::Status Read(Context* ctx) {
    const absl::Status status = WithEpsilon::Read(ctx);
    return status.ok() ? ctx->GetAttr("iterations", &iterations) : status;
  }
  int64_t iterations = 0;
};

struct ForwardWithSumsOp : Forward, WithIterations {
  static constexpr const char* kOp = "CapsuleRoutingWithSums";
  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const;
};

// ForwardWithSumsOp without the sums.
struct ForwardOp : ForwardWithSumsOp {
  static constexpr const char* kOp = kName;
  static constexpr const char* kSumType = nullptr;
};

// The first dimension of the sums gives the number of iterations.
struct BackwardOp : Backward, WithEpsilon {
  static constexpr const char* kOp = kName;
  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const;
};

// As in BackwardOp, the sums give the number of iterations, which may be 0 here.
struct CoefficientsOp : Coefficients, WithEpsilon {
  static constexpr const char* kOp = kName;
  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const;
};

}  // namespace capsops::capsule_routing

namespace capsops::inq_capsule_routing {

struct ForwardOp : Forward, capsule_routing::WithIterations {
  static constexpr const char* kOp = kName;
  template <typename Context>
  absl::Status Read(Context* ctx) {
    const absl::Status status = WithIterations::Read(ctx);
    return status.ok() ? ctx->GetAttr("bits", &bits) : status;
  }
  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const;
  int32_t bits = 0;
};

}  // namespace capsops::inq_capsule_routing
