// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The planners of the kernel paths, each of which is a translation unit of its own, or
// two. No kernels are seen from here, so that an edit of one path recompiles that path
// alone.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_PATHS_H_
#define CAPSOPS_CUDA_CAPSULE_CONV_PATHS_H_

#include "cc/launch/capsule_conv.h"

namespace capsops::capsule_conv {

// PlanImage plans the forward convolution, or the gradient of the input where
// `gradient`; `op` is the name that launches report.

namespace tma {
template <typename T>
ConvPlan<GpuExec, T> PlanImage(const char* op, const GpuExec& exec,
                               const Problem& problem, bool gradient);
template <typename T>
ConvPlan<GpuExec, T> PlanWeights(const GpuExec& exec, const Problem& problem);
}  // namespace tma

namespace gather {
// `Plan` is a ConvPlan or a BiasReluPlan.
template <typename Plan, typename T>
Plan PlanImage(const char* op, const GpuExec& exec, const Problem& problem,
               bool gradient);
template <typename T>
ConvPlan<GpuExec, T> PlanWeights(const GpuExec& exec, const Problem& problem);
}  // namespace gather

namespace wgmma {
template <typename T>
ConvPlan<GpuExec, T> PlanImage(const char* op, const GpuExec& exec,
                               const Problem& problem, bool gradient);
template <typename T>
ConvPlan<GpuExec, T> PlanWeights(const GpuExec& exec, const Problem& problem);
// Whether tiles of the weights' gradient are full enough, and many enough, to take less
// time than those of `mma`.
bool FillsBlocks(const Problem& problem);
}  // namespace wgmma

namespace mma {
template <typename T>
ConvPlan<GpuExec, T> PlanImage(const char* op, const GpuExec& exec,
                               const Problem& problem, bool gradient);
template <typename T>
ConvPlan<GpuExec, T> PlanWeights(const GpuExec& exec, const Problem& problem);
}  // namespace mma

namespace fma {
template <typename T>
ConvPlan<GpuExec, T> PlanImage(const char* op, const GpuExec& exec,
                               const Problem& problem, bool gradient);
template <typename T>
ConvPlan<GpuExec, T> PlanWeights(const GpuExec& exec, const Problem& problem);
}  // namespace fma

// Adds bias and relu to a convolution, in a pass of its own.
template <typename T>
BiasReluPlan<GpuExec, T> AddBiasRelu(const char* op, const Problem& problem,
                                     const ConvPlan<GpuExec, T>& conv);

}  // namespace capsops::capsule_conv

// Instantiates PlanImage of a path, within its namespace.
#define CAPSOPS_INSTANTIATE_PLAN_IMAGE(T)                                 \
  template ConvPlan<GpuExec, T> PlanImage<T>(const char*, const GpuExec&, \
                                             const Problem&, bool);

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_PATHS_H_
