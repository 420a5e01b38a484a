// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Chooses the kernel path of each plan. Capsule prediction is bound by the traffic of
// output (forward) and grad (backward), batch x in_caps x out_caps x out_dim. At in_dim
// 8, each float costs 8 FMAs forward and 16 backward, a third and two thirds of what an
// H200 can compute while it transfers the float. So FMA is fast enough, and exact, and
// the kernels access each of these tensors once, in whole lines.
//
// out_caps and out_dim are one axis, "columns". A warp has one input capsule and 32 V
// columns, V per lane, and keeps the lane's weights [V][K] in registers while it loops
// over samples. The backward kernel also accumulates grad_weights [V][K] in registers
// and reduces grad_input over its lanes, while it copies the grad of the next samples
// asynchronously. So one pass over grad yields both gradients if in_dim is at most 8.
// Every 8 more elements of in_dim take another warp that reads the same grad. If that
// takes more warps than a block has, two plain matrix products read grad twice (gemm).
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

CAPSOPS_INSTANTIATE_PATH(GpuExec)

}  // namespace capsops::capsule_prediction
