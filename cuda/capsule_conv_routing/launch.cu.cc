// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cc/launch/capsule_conv_routing.h"
namespace capsops::capsule_conv_routing {
template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec&, const Problem&) {
  return ForwardPlan<GpuExec, T>::Refuse("stub");
}
template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec&, const Problem&) {
  return BackwardPlan<GpuExec, T>::Refuse("stub");
}
CAPSOPS_INSTANTIATE_PLANNER(PlanForward, ForwardPlan, GpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanBackward, BackwardPlan, GpuExec)
}  // namespace capsops::capsule_conv_routing
