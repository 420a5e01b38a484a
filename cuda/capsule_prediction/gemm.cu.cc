// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule prediction of any size by matrix products, one per input capsule.
#include <algorithm>
#include <cstdint>
#include <string>

#include "cc/launch/capsule_prediction.h"
#include "cuda/capsule_prediction/paths.h"
#include "cuda/common/batched_gemm.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"

namespace capsops::capsule_prediction::gemm {

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec&, const Problem& p) {
  using Plan = ForwardPlan<GpuExec, T>;
  const int64_t i = p.in_caps, n = p.out_caps * p.out_dim;
  CAPSOPS_REFUSE_IF(GridRefusal(GemmBlocks(i, p.batch, n)));
  return Plan::Make(
      0, [i, n, batch = p.batch, k = p.in_dim](const GpuExec& exec, const T* input,
                                               const T* weights, T* output, void*) {
        return BatchedGemm<T>(
            exec, Forward::kName, i, batch, n, k, {Native(input), k, i * k, 1},
            {Native(weights), n * k, 1, k}, {Native(output), n, i * n, 1});
      });
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec&, const Problem& p) {
  using Plan = BackwardPlan<GpuExec, T>;
  const int64_t i = p.in_caps, n = p.out_caps * p.out_dim;
  CAPSOPS_REFUSE_IF(GridRefusal(
      std::max(GemmBlocks(i, p.batch, p.in_dim), GemmBlocks(i, n, p.in_dim))));
  return Plan::Make(
      0,
      [i, n, batch = p.batch, k = p.in_dim](
          const GpuExec& exec, const T* grad, const T* input, const T* weights,
          T* grad_input, T* grad_weights, void*) -> LaunchError {
        CAPSOPS_RETURN_IF_ERROR(BatchedGemm<T>(
            exec, Backward::kName, i, batch, k, n, {Native(grad), n, i * n, 1},
            {Native(weights), n * k, k, 1}, {Native(grad_input), k, i * k, 1}));
        return BatchedGemm<T>(exec, Backward::kName, i, n, k, batch,
                              {Native(grad), n, 1, i * n}, {Native(input), k, i * k, 1},
                              {Native(grad_weights), n * k, k, 1});
      });
}

CAPSOPS_INSTANTIATE_PATH(GpuExec)

}  // namespace capsops::capsule_prediction::gemm
