// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/capsule_conv.h"

#include "cc/framework/register.h"

namespace capsops::capsule_conv {
namespace {

[[maybe_unused]] const bool kRegistered =
    RegisterOps<ForwardOp, ForwardBiasReluOp, BackpropInputOp, BackpropWeightsOp>();

}  // namespace
}  // namespace capsops::capsule_conv
