// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans weight gradients by split-K: blocks write partial sums to the workspace, and a
// second kernel adds them.
#pragma once

#include <cstdint>

#include "cc/launch/capsule_conv.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"
#include "cuda/product/split_k.cuh"

namespace capsops::capsule_conv {

// A plan of a kernel whose blocks share work by a tiling; without blocks if it does not
// fit.
template <typename TilingOf, typename... Pointers>
struct BlocksPlan {
  using Launch = LaunchError (*)(const GpuExec& exec, const char* op,
                                 const BlocksPlan& plan, Pointers... pointers);

  TilingOf tiling{};
  int64_t blocks = 0;
  int shared = 0;
  double cost = 0;  // estimate in cycles
  Launch launch = nullptr;
};

// Limit on the partial sums in the workspace, in bytes.
constexpr int64_t kMaxPartBytes = int64_t{64} << 20;

// Plans a gradient of `weights` elements, of which the kernel of `plan` writes `parts`
// partial sums.
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
