// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The only place where the shapes and attributes of InqDecode are checked.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "cc/framework/op_call.h"
#include "cc/launch/inq_decode.h"

namespace capsops::inq_decode {

struct Attributes {
  int32_t bits = 0;
};

// Reads the attributes of a kernel under construction or of a shape function.
template <typename Context>
absl::Status GetAttributes(Context* ctx, Attributes* attributes) {
  return ctx->GetAttr("bits", &attributes->bits);
}

struct DecodeOp : Decode, OpWith<Attributes> {
  static constexpr const char* kOp = kName;
  // Waking another thread takes longer than decoding most kernels, and the op divides
  // large ones among threads itself.
  static constexpr bool kExpensive = false;
  absl::StatusOr<Call<Problem>> Resolve(const OpInputs& inputs) const;
};

}  // namespace capsops::inq_decode
