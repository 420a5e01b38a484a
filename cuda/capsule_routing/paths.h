// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Planners of the kernel paths. Each path is its own translation unit and its kernels
// are not visible here, so that editing one path recompiles only that path.
#pragma once

#include "cc/launch/capsule_routing.h"

namespace capsops::capsule_routing {

CAPSOPS_DECLARE_PATH(mma)
namespace mma {
CAPSOPS_DECLARE_PLANNER(PlanCoefficients, CoefficientsPlan, GpuExec)
}  // namespace mma

CAPSOPS_DECLARE_PATH(phases)
namespace phases {
CAPSOPS_DECLARE_PLANNER(PlanCoefficients, CoefficientsPlan, GpuExec)
}  // namespace phases

CAPSOPS_DECLARE_PATH(resident)

}  // namespace capsops::capsule_routing
