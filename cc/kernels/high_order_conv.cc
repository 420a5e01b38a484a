// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/high_order_conv.h"

#include "cc/framework/register.h"

namespace capsops::high_order_conv {
namespace {

[[maybe_unused]] const bool kRegistered = RegisterOps<ForwardOp, BackwardOp>();

}  // namespace
}  // namespace capsops::high_order_conv
