// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Planners of the kernel paths. Each path is its own translation unit and its kernels
// are not visible here, so that editing one path recompiles only that path.
#ifndef CAPSOPS_CUDA_CAPSULE_MOMENTS_PATHS_H_
#define CAPSOPS_CUDA_CAPSULE_MOMENTS_PATHS_H_

#include "cc/launch/capsule_moments.h"

namespace capsops::capsule_moments {

namespace mma {
template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& problem);
template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& problem);
}  // namespace mma

namespace fma {
template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& problem);
template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& problem);
}  // namespace fma

namespace general {
template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& problem);
template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& problem);
template <typename T>
SharesPlan<GpuExec, T> PlanShares(const GpuExec& exec, const Problem& problem);
}  // namespace general

}  // namespace capsops::capsule_moments

#endif  // CAPSOPS_CUDA_CAPSULE_MOMENTS_PATHS_H_
