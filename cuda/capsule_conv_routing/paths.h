// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The planners of the kernel path of convolution with routing.
#pragma once

#include "cc/launch/capsule_conv_routing.h"

namespace capsops::capsule_conv_routing {

CAPSOPS_DECLARE_PATH(slabs)

}  // namespace capsops::capsule_conv_routing
