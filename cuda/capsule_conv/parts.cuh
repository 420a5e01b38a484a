// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Split-K: blocks write partial sums, which a second kernel adds in a fixed order.
#pragma once

#include <cstdint>

#include "cc/launch/capsule_conv.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"

namespace capsops::capsule_conv {

constexpr int kReduceElements = 32;  // elements per block

// Writes the sum of `parts` arrays of `elements` elements to `out`. S is CudaType<T>
// and A is Accumulator<T> of some T.
template <typename S, typename A>
LaunchError ReduceSplits(const GpuExec& exec, const char* op, int64_t elements,
                         int parts, const A* partial, S* out);

// Plans a weight gradient of `weights` elements by split-K: the kernel of `plan` writes
// `parts` partial sums of it.
template <typename T, typename PartialPlan>
ConvPlan<GpuExec, T> PlanSplitK(const char* op, const PartialPlan& plan,
                                int64_t weights, int parts) {
  return ConvPlan<GpuExec, T>::Make(
      parts * weights * int64_t{sizeof(float)},
      [=](const GpuExec& exec, const T* input, const T* grad, T* grad_weights,
          void* workspace) {
        float* const sums = static_cast<float*>(workspace);
        CAPSOPS_RETURN_IF_ERROR(
            plan.launch(exec, op, plan, Native(input), Native(grad), sums));
        return ReduceSplits(exec, op, weights, parts, sums, Native(grad_weights));
      });
}

}  // namespace capsops::capsule_conv
