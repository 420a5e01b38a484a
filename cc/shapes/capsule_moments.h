// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The only place where the shapes and attributes of the moments of votes are checked.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "cc/framework/op_call.h"
#include "cc/framework/window.h"
#include "cc/launch/capsule_moments.h"

namespace capsops::capsule_moments {

struct Attributes : WindowAttributes {
  std::string normalize;  // parents, all or none; the op's registration checks it
};

// Reads the attributes of a kernel under construction or of a shape function.
template <typename Context>
absl::Status GetAttributes(Context* ctx, Attributes* attributes) {
  absl::Status status = capsops::GetAttributes(ctx, attributes);
  if (status.ok()) status = ctx->GetAttr("normalize", &attributes->normalize);
  return status;
}

struct WithStatistics : OpWith<Attributes> {
  static constexpr const char* kSumType = "S";
};

struct WithOrder : WithStatistics {
  template <typename Context>
  absl::Status Read(Context* ctx) {
    const absl::Status status = WithStatistics::Read(ctx);
    return status.ok() ? ctx->GetAttr("order", &order) : status;
  }
  int64_t order = 0;
};

struct ForwardOp : Forward, WithOrder {
  static constexpr const char* kOp = kName;
  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const;
};

struct BackwardOp : Backward, WithOrder {
  static constexpr const char* kOp = kName;
  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const;
};

struct SharesOp : Shares, WithStatistics {
  static constexpr const char* kOp = kName;
  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const;
};

}  // namespace capsops::capsule_moments
