// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The planners of the kernel paths. Each path is a translation unit of its own, and
// this header includes no kernels, so editing a path recompiles only that path.
#pragma once

#include <cstdint>

#include "cc/launch/capsule_conv.h"
#include "cc/launch/inq_conv.h"
#include "cc/launch/inq_conv_int8.h"
#include "cuda/capsule_conv/tasks.cuh"

namespace capsops::inq_conv {

// InqConv, or its input gradient if `backward`.
struct Convolution {
  const char* op;
  bool backward;
  int levels;                     // powers of two in the code book
  int64_t codes, source, target;  // numbers of elements
  capsule_conv::Tasks tasks;      // for tensor cores; filters index the codes
  capsule_conv::Problem poses;    // for FMA: a pose has all channels of a pixel

  Convolution(const Problem& problem, bool backward);
};

namespace wgmma {
template <typename T>
InqPlan<GpuExec, T> PlanConvolution(const GpuExec& exec, const Convolution& conv);
}  // namespace wgmma

namespace mma {
template <typename T>
InqPlan<GpuExec, T> PlanConvolution(const GpuExec& exec, const Convolution& conv);
}  // namespace mma

namespace fma {
// T is float or double.
template <typename T>
InqPlan<GpuExec, T> PlanConvolution(const GpuExec& exec, const Convolution& conv);
}  // namespace fma

namespace widened {
// Wraps a float plan into a plan of a 16-bit type.
template <typename T>
InqPlan<GpuExec, T> PlanConvolution(const Convolution& conv,
                                    const InqPlan<GpuExec, float>& plan);
}  // namespace widened

}  // namespace capsops::inq_conv

namespace capsops::inq_conv_int8::int8 {
CAPSOPS_DECLARE_PLANNER(PlanForward, Int8Plan, GpuExec)
}  // namespace capsops::inq_conv_int8::int8
