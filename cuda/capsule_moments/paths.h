// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Planners of the kernel paths. Each path is its own translation unit and its kernels
// are not visible here, so that editing one path recompiles only that path.
#pragma once

#include "cc/launch/capsule_moments.h"

namespace capsops::capsule_moments {

CAPSOPS_DECLARE_PATH(mma)
CAPSOPS_DECLARE_PATH(general)
namespace general {
CAPSOPS_DECLARE_PLANNER(PlanShares, SharesPlan, GpuExec)
}  // namespace general

}  // namespace capsops::capsule_moments
