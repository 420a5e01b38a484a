// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans convolution with routing. The only kernel path is "slabs", which handles a slab
// of output pixels at a time (cc/launch/capsule_conv_slabs.h). Its convolutions choose
// among the paths of capsule convolution.
#include "cc/launch/capsule_conv_routing.h"
#include "cuda/capsule_conv_routing/paths.h"

namespace capsops::capsule_conv_routing {

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  return Choose<ForwardPlan<GpuExec, T>>(
      Forward::kName, {{"slabs", [&] { return slabs::PlanForward<T>(exec, p); }}});
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& p) {
  return Choose<BackwardPlan<GpuExec, T>>(
      Backward::kName, {{"slabs", [&] { return slabs::PlanBackward<T>(exec, p); }}});
}

CAPSOPS_INSTANTIATE_PLANNER(PlanForward, ForwardPlan, GpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanBackward, BackwardPlan, GpuExec)

}  // namespace capsops::capsule_conv_routing
