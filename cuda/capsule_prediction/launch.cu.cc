// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule prediction is bound by the traffic of output (forward) and grad
// (backward), batch x in_caps x out_caps x out_dim: at in_dim 8 a float of it costs
// 8 FMAs forward and 16 backward, a third and two thirds of what an H200 can do in
// the time that the memory takes. So each is touched once, by whole lines, and FMA
// is enough (and exact).
//
// out_caps and out_dim are one axis, "columns". A warp owns one input capsule and
// 32 V columns, V of them a lane, and keeps the lane's weights [V][K] in registers
// while it walks over the samples. Backward it adds up grad_weights[V][K] beside
// them and reduces grad_input over its lanes, while asynchronous copies bring the
// grad of its next samples: one pass over grad serves both gradients. That holds for
// in_dim up to 8. Another warp reads the same grad for each 8 beyond, and where a block
// has too few warps, two plain matrix products read grad twice.
#include "cc/launch/capsule_prediction.h"
#include "cuda/capsule_prediction/paths.h"

namespace capsops::capsule_prediction {

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  return Choose<ForwardPlan<GpuExec, T>>(
      Forward::kName, {{"fma", [&] { return fma::PlanForward<T>(exec, p); }},
                       {"gemm", [&] { return gemm::PlanForward<T>(exec, p); }}});
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& p) {
  return Choose<BackwardPlan<GpuExec, T>>(
      Backward::kName, {{"fma", [&] { return fma::PlanBackward<T>(exec, p); }},
                        {"gemm", [&] { return gemm::PlanBackward<T>(exec, p); }}});
}

CAPSOPS_INSTANTIATE_PLANNER(PlanForward, ForwardPlan, GpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanBackward, BackwardPlan, GpuExec)

}  // namespace capsops::capsule_prediction
