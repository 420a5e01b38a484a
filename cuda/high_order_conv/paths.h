// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Planners of the kernel paths. Each path is its own translation unit and its kernels
// are not visible here, so that editing one path recompiles only that path.
#pragma once

#include "cc/launch/high_order_conv.h"

namespace capsops::high_order_conv {

CAPSOPS_DECLARE_PATH(rows)
CAPSOPS_DECLARE_PATH(planes)
CAPSOPS_DECLARE_PATH(channels)
CAPSOPS_DECLARE_PATH(pixels)
CAPSOPS_DECLARE_PATH(general)

}  // namespace capsops::high_order_conv
