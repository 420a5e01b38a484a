// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/capsule_moments.h"

#include "cc/framework/register.h"

namespace capsops::capsule_moments {
namespace {

[[maybe_unused]] const bool kRegistered =
    RegisterOps<ForwardOp, BackwardOp, SharesOp>();

}  // namespace
}  // namespace capsops::capsule_moments
