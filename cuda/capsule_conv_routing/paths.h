// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The planners of the kernel path of convolution with routing.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_ROUTING_PATHS_H_
#define CAPSOPS_CUDA_CAPSULE_CONV_ROUTING_PATHS_H_

#include "cc/launch/capsule_conv_routing.h"

namespace capsops::capsule_conv_routing::slabs {

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& problem);
template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& problem);

}  // namespace capsops::capsule_conv_routing::slabs

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_ROUTING_PATHS_H_
