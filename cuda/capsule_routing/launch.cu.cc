// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Chooses the kernel path of each plan. Routing by agreement is compute-bound: `mma`
// and `phases` recompute u_hat in every pass over the input capsules, 2 in_dim FLOPs
// per element, on tensor cores. `mma` keeps a sample's predictions in registers, for
// the usual capsules of 8 and 16 elements; `phases` exchanges them through shared
// memory, for all other sizes and for double. `resident` is one kernel for batches so
// small that all predictions fit into the whole GPU's shared memory.
#include <type_traits>

#include "cc/launch/capsule_routing.h"
#include "cc/launch/round.h"
#include "cuda/capsule_routing/paths.h"

namespace capsops::capsule_routing {

// `phases` beats `mma` for enough samples and many output capsules of 16 elements,
// since `mma` needs a warp per four output capsules; backward, only for 8-element input
// capsules and not in exact float (docs/routing.md, "Which path runs").
static bool PhasesAreFaster(const Problem& p) {
  if (p.out_dim != 16 || p.out_caps <= 28 || p.batch <= 16) return false;
  const double tiles = static_cast<double>(p.batch) / 16;
  return tiles * p.in_caps * p.out_caps * p.out_caps >= 2e6;
}

// `resident` is faster for so few samples that the other kernels' tiles are nearly
// empty, up to the weights per block that were measured (docs/routing.md).
static bool ResidentIsFaster(const GpuExec& exec, const Problem& p, int64_t maximum) {
  if (p.batch > maximum) return false;
  const int64_t caps = CeilDivide(p.in_caps, exec.device.processors);
  const double weights = 1.0 * caps * p.out_caps * p.out_dim * p.in_dim;
  return weights <= 1 << 18;
}

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  const auto by_mma = [&] { return mma::PlanForward<T>(exec, p); };
  const auto by_phases = [&] { return phases::PlanForward<T>(exec, p); };
  const auto by_resident = [&] { return resident::PlanForward<T>(exec, p); };
  return Choose<ForwardPlan<GpuExec, T>>(
      kForwardName, {{"resident", by_resident, ResidentIsFaster(exec, p, 6)},
                     {"phases", by_phases, PhasesAreFaster(p)},
                     {"mma", by_mma},
                     {"phases", by_phases},
                     {"resident", by_resident}});
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& p) {
  const auto by_mma = [&] { return mma::PlanBackward<T>(exec, p); };
  const auto by_phases = [&] { return phases::PlanBackward<T>(exec, p); };
  const auto by_resident = [&] { return resident::PlanBackward<T>(exec, p); };
  const bool exact = std::is_same_v<T, float> && !exec.tf32;
  const bool phases_are_faster = PhasesAreFaster(p) && p.in_dim == 8 && !exact;
  return Choose<BackwardPlan<GpuExec, T>>(
      kBackwardName, {{"resident", by_resident, ResidentIsFaster(exec, p, 3)},
                      {"phases", by_phases, phases_are_faster},
                      {"mma", by_mma},
                      {"phases", by_phases},
                      {"resident", by_resident}});
}

template <typename T>
CoefficientsPlan<GpuExec, T> PlanCoefficients(const GpuExec& exec, const Problem& p) {
  return Choose<CoefficientsPlan<GpuExec, T>>(
      kCoefficientsName,
      {{"mma", [&] { return mma::PlanCoefficients<T>(exec, p); }},
       {"phases", [&] { return phases::PlanCoefficients<T>(exec, p); }}});
}

CAPSOPS_INSTANTIATE_PATH(GpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanCoefficients, CoefficientsPlan, GpuExec)

}  // namespace capsops::capsule_routing
