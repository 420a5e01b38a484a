// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and launches the gradients of the moments of 4x4 or 4x5 poses and up to 32
// parents, by mma. A slice of the batch takes three kernels:
//   1. PassKernel: gradients of each row's pose and activation, and partial sums of
//      those of statistics, weights and prior.
//   2. FinishKernel: gradients of statistics.
//   3. CapsuleKernel: sums of the rows' gradients for each capsule.
// If softmaxes span several windows, Merge() computes them first. WeightKernel adds the
// partial sums of weights and prior after the last slice.
#include <cstdint>
#include <type_traits>

#include "cuda/capsule_moments/mma/plan.cuh"
#include "cuda/capsule_moments/paths.h"

namespace capsops::capsule_moments::mma {

// Computes the gradients of one slice; those of weights and prior as partial sums.
template <bool kSplit, typename T>
LaunchError Differentiate(const GpuExec& exec, Inputs in, const Gradient& grad,
                          const Moments<const float>& moments, const Gradients<T>& to,
                          const Workspace& at, bool first, void* workspace) {
  const char* const name = Backward::kName;
  Division d = at.division;
  SetWindows(in.p, &d);
  CAPSOPS_RETURN_IF_ERROR(Merge<true, kSplit>(exec, name, &in, grad, at, workspace));
  const auto buffer = [&](int64_t at) { return Workspace::In<float>(workspace, at); };
  Results out{};
  out.gradients = true;
  out.bias = to.statistics.bias, out.linear = to.statistics.linear;
  out.precision = to.statistics.precision, out.center = to.statistics.center;
  out.given_mass = moments.mass, out.given_first = moments.first;
  out.activations = to.activations != nullptr ? buffer(at.activations) : nullptr;
  out.poses = buffer(at.poses), out.partial = buffer(at.partial);
  out.weights = buffer(at.weights), out.overwrite = first;
  out.added = Workspace::In<int>(workspace, at.added);
  if (first && d.ordered) {
    CAPSOPS_RETURN_IF_ERROR(
        CheckLaunch(name, cudaMemsetAsync(out.added, 0, FlagBytes(d), exec.stream)));
  }
  CAPSOPS_RETURN_IF_ERROR(LaunchPass<true, kSplit>(exec, name, in, d, grad, out));
  return SumRows(exec, name, in.p, out.poses, out.activations, to.poses,
                 to.activations);
}

template <bool kSplit, typename T>
BackwardPlan<GpuExec, T> MakePlan(const Problem& p, const Workspace& at) {
  return PlanGradientSlices<T>(
      p, at.samples, at.size,
      [at](const GpuExec& exec, const Problem& p, bool first, bool,
           const Operands<T>& operands, const Moments<const float>& grad,
           const Moments<const float>& moments, const Gradients<T>& to,
           void* workspace) {
        return Differentiate<kSplit, T>(exec, MakeInputs<T>(p, operands),
                                        {grad.mass, grad.first, grad.second}, moments,
                                        to, at, first, workspace);
      },
      [at, p](const GpuExec& exec, const Gradients<T>& to, void* workspace) {
        return SumWeights(exec, Backward::kName, p, at.division,
                          Workspace::In<const float>(workspace, at.weights), to.weights,
                          to.prior);
      });
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& p) {
  using Plan = BackwardPlan<GpuExec, T>;
  CAPSOPS_REFUSE_IF(Refusal<T, true>(p, exec));
  if constexpr (!std::is_same_v<T, double>) {
    const Workspace at = LayOut<true>(p, exec);
    return WithSplit<T>(exec, [&](auto split) { return MakePlan<split, T>(p, at); });
  }
  return {};
}

CAPSOPS_INSTANTIATE_PLANNER(PlanBackward, BackwardPlan, GpuExec)

}  // namespace capsops::capsule_moments::mma
