// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Planners of the kernel paths. Each path is its own translation unit and its kernels
// are not visible here, so that editing one path recompiles only that path.
#ifndef CAPSOPS_CUDA_HIGH_ORDER_CONV_PATHS_H_
#define CAPSOPS_CUDA_HIGH_ORDER_CONV_PATHS_H_

#include "cc/launch/high_order_conv.h"

namespace capsops::high_order_conv {

namespace rows {
template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& problem);
template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& problem);
}  // namespace rows

namespace planes {
template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& problem);
template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& problem);
}  // namespace planes

namespace channels {
template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& problem);
template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& problem);
}  // namespace channels

namespace pixels {
template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& problem);
template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& problem);
}  // namespace pixels

namespace general {
template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& problem);
template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& problem);
}  // namespace general

}  // namespace capsops::high_order_conv

#endif  // CAPSOPS_CUDA_HIGH_ORDER_CONV_PATHS_H_
