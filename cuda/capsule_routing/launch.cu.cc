// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Routing by agreement reads little (input, weights) and computes much: every pass over
// the input capsules makes u_hat again, 2 in_dim FLOPs for each of its elements, in
// registers. Capsules of 8 and 16 elements, which is what capsule networks are made of,
// do so on tensor cores (mma); everything else, and double, in FMA (fma).
#include "cuda/capsule_routing/fma/launch.cuh"

#include "cc/launch/capsule_routing.h"
#include "cuda/capsule_routing/mma/launch.cuh"

namespace capsops::capsule_routing {

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  return Choose<ForwardPlan<GpuExec, T>>(
      kForwardName, {{"mma", [&] { return mma::PlanForward<T>(exec, p); }},
                     {"fma", [&] { return fma::PlanForward<T>(exec, p); }}});
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& p) {
  return Choose<BackwardPlan<GpuExec, T>>(
      kBackwardName, {{"mma", [&] { return mma::PlanBackward<T>(exec, p); }},
                      {"fma", [&] { return fma::PlanBackward<T>(exec, p); }}});
}

template <typename T>
CoefficientsPlan<GpuExec, T> PlanCoefficients(const GpuExec& exec, const Problem& p) {
  return Choose<CoefficientsPlan<GpuExec, T>>(
      kCoefficientsName, {{"mma", [&] { return mma::PlanCoefficients<T>(exec, p); }},
                          {"fma", [&] { return fma::PlanCoefficients<T>(exec, p); }}});
}

CAPSOPS_INSTANTIATE_PLANNER(PlanForward, ForwardPlan, GpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanBackward, BackwardPlan, GpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanCoefficients, CoefficientsPlan, GpuExec)

}  // namespace capsops::capsule_routing
