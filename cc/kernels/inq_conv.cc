// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/inq_conv.h"

#include "cc/framework/register.h"

namespace capsops::inq_conv {
namespace {

[[maybe_unused]] const bool kRegistered = RegisterOps<ForwardOp, BackpropInputOp>();

}  // namespace
}  // namespace capsops::inq_conv
