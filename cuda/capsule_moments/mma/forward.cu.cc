// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and launches the moments of 4x4 or 4x5 poses and up to 32 parents, by mma.
#include <type_traits>

#include "cuda/capsule_moments/mma/plan.cuh"
#include "cuda/capsule_moments/paths.h"

namespace capsops::capsule_moments::mma {

template <bool kSplit, typename T>
ForwardPlan<GpuExec, T> MakePlan(const Problem& p, const Workspace& at) {
  return PlanSlices<T>(
      p, at.samples, at.size,
      [at](const GpuExec& exec, const Problem& p, const Operands<T>& operands,
           const Moments<float>& to, void* workspace) {
        const char* const name = Forward::kName;
        Inputs in = MakeInputs<T>(p, operands);
        Division d = at.division;
        SetWindows(p, &d);
        CAPSOPS_RETURN_IF_ERROR(
            Merge<false, kSplit>(exec, name, &in, {}, at, workspace));
        Results out{};
        out.mass = to.mass, out.first = to.first, out.second = to.second;
        out.partial = Workspace::In<float>(workspace, at.partial);
        return LaunchPass<false, kSplit>(exec, name, in, d, {}, out);
      });
}

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  using Plan = ForwardPlan<GpuExec, T>;
  CAPSOPS_REFUSE_IF(Refusal<T, false>(p, exec));
  if constexpr (!std::is_same_v<T, double>) {
    const Workspace at = LayOut<false>(p, exec);
    return WithSplit<T>(exec, [&](auto split) { return MakePlan<split, T>(p, at); });
  }
  return {};
}

CAPSOPS_INSTANTIATE_PLANNER(PlanForward, ForwardPlan, GpuExec)

}  // namespace capsops::capsule_moments::mma
