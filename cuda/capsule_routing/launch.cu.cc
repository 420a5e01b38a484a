// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Routing by agreement reads little (input, weights) and computes much: every pass over
// the input capsules makes u_hat again, 2 in_dim FLOPs for each of its elements.
// Capsules of 8 and 16 elements, which is what capsule networks are made of, do so on
// tensor cores, with u_hat in registers (mma); everything else, and double, in FMA
// (fma). Large problems of any sizes do so forward on tensor cores in three phases,
// with the logits in shared memory (phases).
#include "cuda/capsule_routing/fma/launch.cuh"

#include <type_traits>
#include <vector>

#include "cc/launch/capsule_routing.h"
#include "cuda/capsule_routing/mma/launch.cuh"
#include "cuda/capsule_routing/phases/launch.cuh"

namespace capsops::capsule_routing {

// Where phases come among the paths that can do a problem: 0 is before mma, 1 before
// fma, and 2 after it. Measured on an H200.
template <typename T>
int PlaceOfPhases(const GpuExec& exec, const Problem& p) {
  const double products = 1.0 * p.batch * p.in_caps * p.out_caps * p.out_dim * p.in_dim;
  if (products < 0x1p25) return 2;
  const bool rounded = std::is_same_v<T, float> && exec.tf32;
  return p.batch > 16 && (rounded || p.out_caps > 24) ? 0 : 1;
}

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  using Plan = ForwardPlan<GpuExec, T>;
  std::vector<Candidate<Plan>> candidates = {
      {"mma", [&] { return mma::PlanForward<T>(exec, p); }},
      {"fma", [&] { return fma::PlanForward<T>(exec, p); }}};
  const Candidate<Plan> in_phases = {"phases",
                                     [&] { return phases::PlanForward<T>(exec, p); }};
  candidates.insert(candidates.begin() + PlaceOfPhases<T>(exec, p), in_phases);
  return Choose<Plan>(kForwardName, candidates);
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
