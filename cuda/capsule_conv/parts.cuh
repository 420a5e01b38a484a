// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Sums of which blocks make parts, in the workspace, and another kernel adds these up
// in an order that is always the same.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_PARTS_CUH_
#define CAPSOPS_CUDA_CAPSULE_CONV_PARTS_CUH_

#include <cstdint>

#include "cc/launch/capsule_conv.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"

namespace capsops::capsule_conv {

constexpr int kSumElements = 32;  // of a block

// Writes the sum of `parts` arrays of `elements` elements. S is T's CudaType, and A its
// Accumulator, of any type T.
template <typename S, typename A>
LaunchError SumParts(const GpuExec& exec, const char* op, int64_t elements, int parts,
                     const A* partial, S* out);

// The gradient of so many weights, of which the kernel of `plan` makes `parts` parts.
template <typename T, typename PlanOfParts>
ConvPlan<GpuExec, T> PlanByParts(const char* op, const PlanOfParts& plan,
                                 int64_t weights, int parts) {
  return ConvPlan<GpuExec, T>::Make(
      parts * weights * int64_t{sizeof(float)},
      [=](const GpuExec& exec, const T* input, const T* grad, T* grad_weights,
          void* workspace) {
        float* const sums = static_cast<float*>(workspace);
        const LaunchError error =
            plan.launch(exec, op, plan, Native(input), Native(grad), sums);
        if (!error.empty()) return error;
        return SumParts(exec, op, weights, parts, sums, Native(grad_weights));
      });
}

}  // namespace capsops::capsule_conv

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_PARTS_CUH_
