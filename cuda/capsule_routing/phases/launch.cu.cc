// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and launches of the `phases` kernels of capsule routing, for any sizes,
// including empty ones.
#include "cuda/common/launch.cuh"

#include <algorithm>
#include <type_traits>

#include "cc/launch/capsule_routing.h"
#include "cuda/capsule_routing/obstacles.cuh"
#include "cuda/capsule_routing/paths.h"
#include "cuda/capsule_routing/phases/tilings.cuh"
#include "cuda/capsule_routing/phases/vectors.cuh"

namespace capsops::capsule_routing::phases {

// Calls run(S{}, spills, in_dim) with the kernels' element type and compile-time
// parameters. in_dim is 0 if kernels are not specialized for it.
template <typename T, typename Run>
LaunchError WithKernel(const Sizes& z, bool spills, const Run& run) {
  using Any = std::integral_constant<int, 0>;
  const auto run_with = [&](auto element) {
    if (spills) return run(element, std::true_type(), Any());
    if (z.out_dim % kBlockD == 0 && z.in_dim == 8) {
      return run(element, std::false_type(), std::integral_constant<int, 8>());
    }
    return run(element, std::false_type(), Any());
  };
  if constexpr (!std::is_same_v<T, double>) {
    if (z.split) return run_with(Split<CudaType<T>>{});
  }
  return run_with(CudaType<T>{});
}

template <typename S, typename T>
const S* As(const T* tensor) {
  return reinterpret_cast<const S*>(tensor);
}
template <typename S, typename T>
S* As(T* tensor) {
  return reinterpret_cast<S*>(tensor);
}

template <Pass kPass, typename T, typename A = Accumulator<T>>
LaunchError RunPass(const GpuExec& exec, const char* name, const PassTiling<A>& tiling,
                    const T* input, const T* weights, const T* logits, const A* vectors,
                    A* partial, A* scratch, T* coefficients = nullptr,
                    Moments<A>* moments = nullptr) {
  const dim3 grid(tiling.groups, tiling.slices);
  return WithKernel<T>(
      tiling.z, tiling.spills, [&](auto element, auto spills, auto in_dim) {
        using S = decltype(element);
        constexpr auto kKernel = PassKernel<S, A, kPass, spills, in_dim>;
        const auto launch = [&](auto... arguments) {
          constexpr int kThreads = kPassWarps * kLanes;
          if constexpr (kPass == Pass::kFirst) {  // the first kernel of a call
            return Launch<kKernel>(name, grid, kThreads, tiling.shared(), exec,
                                   arguments...);
          } else {
            return LaunchDependent<kKernel>(name, grid, kThreads, tiling.shared(), exec,
                                            arguments...);
          }
        };
        return launch(tiling.z, tiling.cut, As<S>(input), As<S>(weights), As<S>(logits),
                      vectors, partial, As<S>(coefficients), moments, scratch,
                      tiling.elements);
      });
}

// Workspace: V, partial sums, and the blocks' scratch.
template <typename T, typename A = Accumulator<T>>
LaunchError Forward(const GpuExec& exec, const PassTiling<A>& tiling,
                    int64_t iterations, const T* input, const T* weights,
                    const T* logits, T* output, A* sums, void* workspace) {
  const Sizes& z = tiling.z;
  A* const v = static_cast<A*>(workspace);
  A* const partial = v + z.length;
  for (int64_t r = 0; r < iterations; ++r) {
    const auto run = r == 0 ? RunPass<Pass::kFirst, T> : RunPass<Pass::kSums, T>;
    CAPSOPS_RETURN_IF_ERROR(run(exec, kForwardName, tiling, input, weights, logits, v,
                                partial, partial + tiling.slices * z.length, nullptr,
                                nullptr));
    CAPSOPS_RETURN_IF_ERROR(LaunchDependent(kForwardName, FinishKernel<CudaType<T>, A>,
                                            tiling.cells(), kFinishWarps * kLanes, 0,
                                            exec, z, tiling.slices, partial, r == 0, v,
                                            sums + r * z.batch * z.out_caps * z.out_dim,
                                            r + 1 == iterations ? output : nullptr));
  }
  return {};
}

template <typename T, typename A = Accumulator<T>>
LaunchError RunGradients(const GpuExec& exec, const GradientsTiling<T, A>& tiling,
                         const T* input, const T* weights, const T* logits,
                         const A* vectors, const Moments<A>* moments, const Caps& caps,
                         T* grad_input, T* grad_weights, T* grad_logits, A* scratch) {
  const int64_t blocks =
      std::min(tiling.blocks, CeilDivide(caps.count, tiling.layout.tile_caps));
  return WithKernel<T>(
      tiling.z, tiling.spills, [&](auto element, auto spills, auto in_dim) {
        using S = decltype(element);
        return LaunchDependent<GradientsKernel<S, A, spills, in_dim>>(
            kBackwardName, blocks, tiling.kThreads, tiling.shared(), exec, tiling.z,
            tiling.layout, caps, As<S>(input), As<S>(weights), As<S>(logits), vectors,
            moments, As<S>(grad_input), As<S>(grad_weights), As<S>(grad_logits),
            scratch, scratch + (spills ? tiling.blocks * tiling.layout.size : 0));
      });
}

// Workspace: V and ds of each iteration, then moments of all softmaxes but the first,
// then the partial sums and scratch of the passes or the scratch of GradientsKernel. dv
// takes the place of the first V, which is zero and never read. If moments of all input
// capsules take too much memory, they are recomputed for some at a time.
template <typename T, typename A = Accumulator<T>>
LaunchError Backward(const GpuExec& exec, const PassTiling<A>& tiling,
                     const GradientsTiling<T, A>& last, const T* grad, const T* input,
                     const T* weights, const T* logits, const A* sums, T* grad_input,
                     T* grad_weights, T* grad_logits, void* workspace) {
  const Sizes& z = tiling.z;
  const int64_t length = z.length, iterations = last.layout.iterations;
  A* const vectors = static_cast<A*>(workspace);
  auto* const moments =
      reinterpret_cast<Moments<A>*>(vectors + 2 * iterations * length);
  A* const rest = reinterpret_cast<A*>(moments + last.held * last.moments());
  const auto pass = [&](const PassTiling<A>& of, int64_t r, bool keep) {
    const int64_t before = (r - 1) * z.tiles * kTileSamples * of.cut.caps.count;
    return RunPass<Pass::kGradient, T>(
        exec, kBackwardName, of, input, weights, logits, vectors + 2 * r * length, rest,
        rest + tiling.slices * length, nullptr, keep ? moments + before : nullptr);
  };
  const bool held = last.held == z.in_caps;
  CAPSOPS_RETURN_IF_ERROR(Launch(kBackwardName, PrepareKernel<CudaType<T>, A>,
                                 tiling.cells(), kFinishWarps * kLanes, 0, exec, z,
                                 iterations, sums, grad, vectors));
  for (int64_t r = iterations - 1; r > 0; --r) {
    CAPSOPS_RETURN_IF_ERROR(pass(tiling, r, held));
    CAPSOPS_RETURN_IF_ERROR(
        LaunchDependent(kBackwardName, FinishBackwardKernel<A>, tiling.cells(),
                        kFinishWarps * kLanes, 0, exec, z, tiling.slices, rest,
                        sums + (r - 1) * z.batch * z.out_caps * z.out_dim,
                        r + 1 == iterations, vectors, vectors + (2 * r - 1) * length));
  }
  PassTiling<A> some = tiling;
  for (int64_t i = 0; i < z.in_caps; i += last.held) {
    some.cut.caps = {i, std::min(last.held, z.in_caps - i)};
    some.slices = std::min(tiling.slices, some.cut.caps.count);
    for (int64_t r = iterations - 1; !held && r > 0; --r) {
      CAPSOPS_RETURN_IF_ERROR(pass(some, r, true));
    }
    CAPSOPS_RETURN_IF_ERROR(RunGradients<T>(exec, last, input, weights, logits, vectors,
                                            moments, some.cut.caps, grad_input,
                                            grad_weights, grad_logits, rest));
  }
  return {};
}

// Workspace: V and the blocks' scratch. Without `iterations`, V is zero.
template <typename T, typename A = Accumulator<T>>
LaunchError Coefficients(const GpuExec& exec, const PassTiling<A>& tiling,
                         int64_t iterations, const T* input, const T* weights,
                         const T* logits, const A* sums, T* coefficients,
                         void* workspace) {
  A* const v = static_cast<A*>(workspace);
  if (iterations > 0) {
    CAPSOPS_RETURN_IF_ERROR(Launch(kCoefficientsName, PrepareKernel<CudaType<T>, A>,
                                   tiling.cells(), kFinishWarps * kLanes, 0, exec,
                                   tiling.z, iterations, sums, nullptr, v));
  }
  const auto run = iterations == 0 ? RunPass<Pass::kFirst, T> : RunPass<Pass::kSums, T>;
  return run(exec, kCoefficientsName, tiling, input, weights, logits, v, nullptr,
             v + tiling.z.length, coefficients, nullptr);
}

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  using Plan = ForwardPlan<GpuExec, T>;
  using A = Accumulator<T>;
  if (Empty(p)) {
    const int64_t outputs = p.batch * p.out_caps * p.out_dim;
    return Plan::Make(
        0,
        [outputs, iterations = p.iterations](const GpuExec& exec, const T*, const T*,
                                             const T*, T* output, A* sums,
                                             void*) -> LaunchError {
          CAPSOPS_RETURN_IF_ERROR(Zero(exec, kForwardName, output, outputs));
          return Zero(exec, kForwardName, sums, iterations * outputs);
        });
  }
  CAPSOPS_REFUSE_IF(TooLarge(p));
  const PassTiling<A> tiling(exec.device, p, false, NeedsSplit<T>(exec, p));
  CAPSOPS_REFUSE_IF(tiling.Obstacle());
  return Plan::Make(
      ((tiling.slices + 1) * tiling.z.length + tiling.scratch()) * sizeof(A),
      [tiling, iterations = p.iterations](const GpuExec& exec, auto... pointers) {
        return Forward<T>(exec, tiling, iterations, pointers...);
      });
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& p) {
  using Plan = BackwardPlan<GpuExec, T>;
  using A = Accumulator<T>;
  if (Empty(p)) {
    const int64_t inputs = p.batch * p.in_caps * p.in_dim;
    const int64_t logits = p.in_caps * p.out_caps;
    const int64_t weights = logits * p.out_dim * p.in_dim;
    return Plan::Make(
        0,
        [=](const GpuExec& exec, const T*, const T*, const T*, const T*, const A*,
            T* grad_input, T* grad_weights, T* grad_logits, void*) -> LaunchError {
          CAPSOPS_RETURN_IF_ERROR(Zero(exec, kBackwardName, grad_input, inputs));
          CAPSOPS_RETURN_IF_ERROR(Zero(exec, kBackwardName, grad_weights, weights));
          return Zero(exec, kBackwardName, grad_logits, logits);
        });
  }
  CAPSOPS_REFUSE_IF(TooLarge(p));
  const PassTiling<A> tiling(exec.device, p, true, NeedsSplit<T>(exec, p));
  const GradientsTiling<T, A> last(exec.device, p, tiling.z.split);
  CAPSOPS_REFUSE_IF(tiling.Obstacle());
  CAPSOPS_REFUSE_IF(last.Obstacle());
  const int64_t pass = tiling.slices * tiling.z.length + tiling.scratch();
  const int64_t moments = kMomentNumbers * last.held * last.moments();
  return Plan::Make((2 * p.iterations * tiling.z.length + moments +
                     std::max(pass, last.blocks * last.block_scratch())) *
                        sizeof(A),
                    [tiling, last](const GpuExec& exec, auto... pointers) {
                      return Backward<T>(exec, tiling, last, pointers...);
                    });
}

template <typename T>
CoefficientsPlan<GpuExec, T> PlanCoefficients(const GpuExec& exec,
                                              const Problem& problem) {
  Problem p = problem;
  using Plan = CoefficientsPlan<GpuExec, T>;
  using A = Accumulator<T>;
  if (p.batch == 0 || p.in_caps == 0 || p.out_caps == 0) {
    return Plan::Make(0, [](const GpuExec&, const T*, const T*, const T*, const A*, T*,
                            void*) { return LaunchError(); });
  }
  // Without predictions, V has no effect.
  const bool is_empty = p.out_dim == 0 || p.in_dim == 0;
  if (is_empty) p.out_dim = p.in_dim = 0;
  CAPSOPS_REFUSE_IF(TooLarge(p));
  const PassTiling<A> tiling(exec.device, p, false, NeedsSplit<T>(exec, p));
  CAPSOPS_REFUSE_IF(tiling.Obstacle());
  const int64_t iterations = is_empty ? 0 : p.iterations;
  return Plan::Make((tiling.z.length + tiling.scratch()) * sizeof(A),
                    [tiling, iterations](const GpuExec& exec, auto... pointers) {
                      return Coefficients<T>(exec, tiling, iterations, pointers...);
                    });
}

CAPSOPS_INSTANTIATE_PATH(GpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanCoefficients, CoefficientsPlan, GpuExec)

}  // namespace capsops::capsule_routing::phases
