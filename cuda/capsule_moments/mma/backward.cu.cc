// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and launches the gradients of the moments of 4x4 or 4x5 poses and up to 32
// parents, by mma. A slice of the batch takes three kernels:
//   1. PassKernel: gradients of statistics, and of each row's pose and activation.
//   2. WeightKernel: partial gradients of weights and prior.
//   3. CapsuleKernel: sums of the rows' gradients for each capsule.
// If softmaxes span several windows, Merge() computes them first. ReduceSplits adds the
// partial gradients after the last slice.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cuda/capsule_moments/mma/plan.cuh"
#include "cuda/capsule_moments/mma/weights.cuh"
#include "cuda/capsule_moments/paths.h"
#include "cuda/product/split_k.cuh"

namespace capsops::capsule_moments::mma {

// Calls run(second, logit, Q, small) with the compile-time parameters of WeightKernel.
template <typename Run>
LaunchError WithTile(const Problem& p, const GpuExec& exec, const Run& run) {
  return WithVariant(p, p.order == 2, [&](auto second, auto logit, auto q) {
    const int bytes = Tile<second, logit, q, false>::Floats(Divide<true>(p, exec)) * 4;
    if (bytes <= exec.device.shared) return run(second, logit, q, std::false_type{});
    return run(std::true_type{}, logit, q, std::true_type{});
  });
}

// Size of a WeightKernel block: its shared memory in bytes, and its children.
struct TileSize {
  int bytes, children;

  TileSize(const Problem& p, const GpuExec& exec) {
    const Division d = Divide<true>(p, exec);
    WithTile(p, exec, [&](auto second, auto logit, auto q, auto small) -> LaunchError {
      using TileOf = Tile<second, logit, q, small>;
      bytes = TileOf::Floats(d) * sizeof(float);
      children = TileOf::Children(d);
      return {};
    });
  }
};

// Returns how many blocks share the windows of a tile of children. Each block writes
// partial sums.
inline int CountParts(const Problem& p, const GpuExec& exec) {
  const int64_t tiles = CeilDivide(Children(p), TileSize(p, exec).children);
  return static_cast<int>(std::clamp<int64_t>(exec.device.processors / tiles, 1,
                                              CeilDivide(NumWindows(p), kFour)));
}

template <bool kSplit>
LaunchError LaunchWeights(const GpuExec& exec, const Inputs& in, const Gradient& grad,
                          const WeightSums& sums, int parts) {
  const Division d = Divide<true>(in.p, exec);
  const auto run = [&](auto second, auto logit, auto q, auto small) -> LaunchError {
    using TileOf = Tile<second, logit, q, small>;
    const dim3 grid(CeilDivide(d.children, TileOf::Children(d)), parts);
    constexpr auto kKernel = WeightKernel<second, logit, q, small, kSplit>;
    const int shared = TileOf::Floats(d) * sizeof(float);
    return LaunchDependent<kKernel>(Backward::kName, grid, TileOf::kThreads, shared,
                                    exec, in, d, grad, sums);
  };
  return WithTile(in.p, exec, run);
}

// Computes the gradients of one slice; those of weights and prior as partial sums.
template <bool kSplit, typename T>
LaunchError Differentiate(const GpuExec& exec, Inputs in, const Gradient& grad,
                          const Moments<const float>& moments, const Gradients<T>& to,
                          const Workspace& at, bool overwrite, void* workspace) {
  const char* const name = Backward::kName;
  CAPSOPS_RETURN_IF_ERROR(Merge<true, kSplit>(exec, name, &in, grad, at, workspace));
  const auto buffer = [&](int64_t at) { return Workspace::In<float>(workspace, at); };
  Results out{};
  out.gradients = true;
  out.bias = to.statistics.bias, out.linear = to.statistics.linear;
  out.precision = to.statistics.precision, out.center = to.statistics.center;
  out.given_mass = moments.mass, out.given_first = moments.first;
  out.state = Workspace::In<RowState>(workspace, at.state);
  out.activations = to.activations != nullptr ? buffer(at.activations) : nullptr;
  out.poses = buffer(at.poses), out.partial = buffer(at.partial);
  CAPSOPS_RETURN_IF_ERROR(LaunchPass<true, kSplit>(exec, name, in, grad, out));
  const WeightSums sums{out.state, buffer(at.weights), buffer(at.prior), overwrite};
  CAPSOPS_RETURN_IF_ERROR(LaunchWeights<kSplit>(exec, in, grad, sums, at.parts));
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
      [at, matrices = Children(p) * p.out_channels, size = p.pose_inner * kSide](
          const GpuExec& exec, const Gradients<T>& to, void* workspace) -> LaunchError {
        const auto sum = [&](int64_t elements, int64_t from, auto* gradient) {
          return ReduceSplits(exec, Backward::kName, elements, at.parts,
                              Workspace::In<const float>(workspace, from), gradient);
        };
        CAPSOPS_RETURN_IF_ERROR(sum(matrices * size, at.weights, to.weights));
        if (to.prior == nullptr) return {};
        return sum(matrices, at.prior, to.prior);
      });
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& p) {
  using Plan = BackwardPlan<GpuExec, T>;
  CAPSOPS_REFUSE_IF(Refusal<T, true>(p, exec));
  if (TileSize(p, exec).bytes > exec.device.shared) {
    return Plan::Refuse(kTooLittleShared);
  }
  if constexpr (!std::is_same_v<T, double>) {
    const Workspace at = LayOut<true>(
        p, exec, [&](const Problem& slice) { return CountParts(slice, exec); });
    return WithSplit<T>(exec, [&](auto split) { return MakePlan<split, T>(p, at); });
  }
  return {};
}

CAPSOPS_INSTANTIATE_PLANNER(PlanBackward, BackwardPlan, GpuExec)

}  // namespace capsops::capsule_moments::mma
