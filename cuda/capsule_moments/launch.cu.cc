// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Chooses the kernel path of each plan. Capsule moments are compute-bound: a vote of
// 4x4 poses costs 64 FMAs, its logit and moments another 64, and votes are never
// stored.
//
// - `mma`: poses of 4x4, or 4x5 with coordinates, and up to 32 parents. Votes are
//   computed on tensor cores, and a thread keeps a parent's statistics and sums in
//   registers.
// - `general`: everything else. Shares are stored in the workspace.
#include "cc/launch/capsule_moments.h"
#include "cuda/capsule_moments/paths.h"

namespace capsops::capsule_moments {

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  return Choose<ForwardPlan<GpuExec, T>>(
      Forward::kName, {{"mma", [&] { return mma::PlanForward<T>(exec, p); }},
                       {"general", [&] { return general::PlanForward<T>(exec, p); }}});
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& p) {
  return Choose<BackwardPlan<GpuExec, T>>(
      Backward::kName,
      {{"mma", [&] { return mma::PlanBackward<T>(exec, p); }},
       {"general", [&] { return general::PlanBackward<T>(exec, p); }}});
}

template <typename T>
SharesPlan<GpuExec, T> PlanShares(const GpuExec& exec, const Problem& p) {
  return Choose<SharesPlan<GpuExec, T>>(
      Shares::kName, {{"general", [&] { return general::PlanShares<T>(exec, p); }}});
}

CAPSOPS_INSTANTIATE_PATH(GpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanShares, SharesPlan, GpuExec)

}  // namespace capsops::capsule_moments
