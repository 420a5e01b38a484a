// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The planners of the kernel paths. Each path has one or two translation units, and
// this header includes no kernels, so editing a path recompiles only that path.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_PATHS_H_
#define CAPSOPS_CUDA_CAPSULE_CONV_PATHS_H_

#include "cc/launch/capsule_conv.h"

namespace capsops::capsule_conv {

// PlanImage plans the forward convolution, or the input gradient if `gradient`. `op` is
// the name used in error messages.

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
// Whether the tiles of the weight gradient are full and numerous enough to beat `mma`.
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

// Adds bias and ReLU to a convolution in a separate pass.
template <typename T>
BiasReluPlan<GpuExec, T> AddBiasRelu(const char* op, const Problem& problem,
                                     const ConvPlan<GpuExec, T>& conv);

}  // namespace capsops::capsule_conv

// Instantiates a path's PlanImage; use within its namespace.
#define CAPSOPS_INSTANTIATE_PLAN_IMAGE(T)                                 \
  template ConvPlan<GpuExec, T> PlanImage<T>(const char*, const GpuExec&, \
                                             const Problem&, bool);

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_PATHS_H_
