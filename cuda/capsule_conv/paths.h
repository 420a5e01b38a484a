// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The planners of the kernel paths. Each path has one or two translation units, and
// this header includes no kernels, so editing a path recompiles only that path.
#pragma once

#include "cc/launch/capsule_conv.h"

namespace capsops::capsule_conv {

// PlanImage plans the forward convolution, or the input gradient if `gradient`.
// PlanWeights plans the gradient of weights. `op` is the name used in error messages.
#define CAPSOPS_DECLARE_PLAN_WEIGHTS                                    \
  template <typename T>                                                 \
  ConvPlan<GpuExec, T> PlanWeights(const char* op, const GpuExec& exec, \
                                   const Problem& problem);
#define CAPSOPS_DECLARE_CONV_PATH(path)                                  \
  namespace path {                                                       \
  template <typename T>                                                  \
  ConvPlan<GpuExec, T> PlanImage(const char* op, const GpuExec& exec,    \
                                 const Problem& problem, bool gradient); \
  CAPSOPS_DECLARE_PLAN_WEIGHTS                                           \
  }
CAPSOPS_DECLARE_CONV_PATH(tma)
CAPSOPS_DECLARE_CONV_PATH(wgmma)
CAPSOPS_DECLARE_CONV_PATH(mma)
CAPSOPS_DECLARE_CONV_PATH(fma)
#undef CAPSOPS_DECLARE_CONV_PATH

namespace gather {
// `Plan` is a ConvPlan or a BiasReluPlan.
template <typename Plan, typename T>
Plan PlanImage(const char* op, const GpuExec& exec, const Problem& problem,
               bool gradient);
CAPSOPS_DECLARE_PLAN_WEIGHTS
}  // namespace gather
#undef CAPSOPS_DECLARE_PLAN_WEIGHTS

namespace wgmma {
// Whether the tiles of the weight gradient are full enough, and the problem is large
// enough, to beat `mma`.
bool FillsBlocks(const Problem& problem);
}  // namespace wgmma

// Adds bias and ReLU to a convolution in a separate pass.
template <typename T>
BiasReluPlan<GpuExec, T> AddBiasRelu(const char* op, const Problem& problem,
                                     const ConvPlan<GpuExec, T>& conv);

}  // namespace capsops::capsule_conv

// Instantiate a path's planners; use within its namespace.
#define CAPSOPS_INSTANTIATE_PLAN_IMAGE(T)                                 \
  template ConvPlan<GpuExec, T> PlanImage<T>(const char*, const GpuExec&, \
                                             const Problem&, bool);
#define CAPSOPS_INSTANTIATE_PLAN_WEIGHTS(T)                                 \
  template ConvPlan<GpuExec, T> PlanWeights<T>(const char*, const GpuExec&, \
                                               const Problem&);
