// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/capsule_routing.h"

#include "cc/framework/register.h"

namespace capsops::capsule_routing {
namespace {

[[maybe_unused]] const bool kRegistered =
    RegisterOps<ForwardOp, ForwardWithSumsOp, BackwardOp, CoefficientsOp>();

}  // namespace
}  // namespace capsops::capsule_routing
