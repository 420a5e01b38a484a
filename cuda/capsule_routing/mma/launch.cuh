// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Launchers of the tensor-core kernels of capsule routing, for the sizes that
// WithPlan() knows.
#ifndef CAPSOPS_CUDA_CAPSULE_ROUTING_MMA_LAUNCH_CUH_
#define CAPSOPS_CUDA_CAPSULE_ROUTING_MMA_LAUNCH_CUH_

#include <algorithm>
#include <type_traits>

#include "cc/launch/capsule_routing.h"
#include "cuda/capsule_routing/mma/gradients.cuh"
#include "cuda/capsule_routing/mma/pass.cuh"
#include "cuda/capsule_routing/mma/vectors.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_routing::tiled {

constexpr const char* kForwardName = "CapsuleRouting";
constexpr const char* kBackwardName = "CapsuleRoutingGrad";

// How the kernels run a problem whose vectors have kD and kK elements.
template <typename T, int kD, int kK>
struct Plan {
  static constexpr int D = kD, K = kK;
  using S = CudaType<T>;
  using Layout = GradientsShared<S, D, K>;
  static constexpr int kPassVectors = 2;  // that a pass keeps at most

  Sizes z;
  Teams teams;          // of a block of a pass
  int64_t tile_blocks;  // such blocks side by side,
  int64_t chunks = 1;   // and how many share the input capsules

  explicit Plan(const Problem& p) {
    z.batch = p.batch;
    z.in_caps = p.in_caps;
    z.tiles = CeilDivide(p.batch, kTileSamples);
    z.out_caps = static_cast<int>(p.out_caps);
    z.groups = static_cast<int>(CeilDivide(p.out_caps, kGroupCaps));
    z.epsilon = p.epsilon;
    const int team_count = kPassWarps / z.groups;
    teams.tiles = z.tiles > 1 && team_count > 1 ? 2 : 1;
    teams.parts = team_count / teams.tiles;
    while (pass_shared(kPassVectors) > CurrentDevice().shared && teams.count() > 1) {
      --(teams.parts > 1 ? teams.parts : teams.tiles);
    }
    tile_blocks = CeilDivide(z.tiles, teams.tiles);
    // The chunks that take the fewest steps, one an input capsule and some to begin.
    constexpr int64_t kBegin = 4;
    const int64_t processors = CurrentDevice().processors;
    const int64_t most = std::min(std::max<int64_t>(2 * processors / tile_blocks, 1),
                                  CeilDivide(p.in_caps, teams.parts));
    int64_t least = INT64_MAX;
    for (int64_t c = 1; c <= most; ++c) {
      const int64_t steps = CeilDivide(c * tile_blocks, processors) *
                            (CeilDivide(p.in_caps, c * teams.parts) + kBegin);
      if (steps < least) {
        least = steps;
        chunks = c;
      }
    }
    teams.caps = CeilDivide(p.in_caps, chunks * teams.parts);
  }

  dim3 pass_grid() const { return dim3(tile_blocks, chunks); }
  int pass_threads() const { return teams.count() * z.groups * kLanes; }
  // Bytes of shared memory of a pass that keeps that many vectors.
  int pass_shared(int vectors) const {
    using Belt = Conveyor<S, D, K>;
    const int vector = teams.tiles * z.groups * (D / 2) * kLanes;
    const int shares = 2 * teams.count() * kTileSamples * z.groups;
    const int belt = teams.parts * Belt::kStages *
                     Belt::StageLength(z.out_caps, z.groups, teams.tiles) *
                     static_cast<int>(sizeof(S));
    const int rest = (teams.parts - 1) * vector * static_cast<int>(sizeof(float4));
    const int kept = vectors == 0 ? 0 : vectors * vector + shares;
    return kept * static_cast<int>(sizeof(float4)) + std::max(belt, rest);
  }

  int64_t vector_length() const { return VectorFloats<D>(z) / 4; }
  int64_t vector_bytes() const { return vector_length() * sizeof(float4); }

  // Teams and stages of the gradients: two stages if they fit, even if that takes some
  // teams; no teams where nothing fits.
  int gradients_shared(const Layout& layout, int stages) const {
    return stages * layout.stage() + layout.teams * layout.team();
  }
  Layout GradientsLayout(int vectors, int* stages) const {
    const int limit = CurrentDevice().shared;
    const int most = std::min(kGradientTeams, kGradientWarps / z.groups);
    Layout layout{z.groups, 0, vectors};
    for (*stages = 2; *stages > 0; --*stages) {
      const int least = *stages == 2 ? (most + 1) / 2 : 1;
      for (layout.teams = most; layout.teams >= least; --layout.teams) {
        if (gradients_shared(layout, *stages) <= limit) return layout;
      }
    }
    layout.teams = 0;
    return layout;
  }

  bool Fits() const {
    int stages;
    return pass_shared(kPassVectors) <= CurrentDevice().shared &&
           GradientsLayout(2 * kIterations, &stages).teams > 0;
  }
};

// Calls run(plan) with the plan that has p's dimensions, or otherwise(). Before the
// first iteration shares depend on logits alone, and predictions, which may be
// infinite, must not be multiplied by zeros.
template <typename T, typename Run, typename Otherwise>
auto WithPlan(const Problem& p, const Run& run, const Otherwise& otherwise) {
  if constexpr (!std::is_same_v<T, double>) {
    const auto fits = [&](const auto& plan) { return plan.Fits(); };
    if (p.batch > 0 && p.in_caps > 0 && p.out_caps > 0 && p.iterations > 0 &&
        p.out_caps <= kPassWarps * kGroupCaps) {
      if (p.out_dim == 16 && p.in_dim == 8) {
        if (const Plan<T, 16, 8> plan(p); fits(plan)) return run(plan);
      }
      if (p.out_dim == 16 && p.in_dim == 16) {
        if (const Plan<T, 16, 16> plan(p); fits(plan)) return run(plan);
      }
      if (p.out_dim == 8 && p.in_dim == 8) {
        if (const Plan<T, 8, 8> plan(p); fits(plan)) return run(plan);
      }
    }
  }
  return otherwise();
}

// The same for the gradients, which more iterations than one launch takes would add up
// in T: in 16 bits that is too little.
template <typename T, typename Run, typename Otherwise>
auto WithGradientsPlan(const Problem& p, const Run& run, const Otherwise& otherwise) {
  if (sizeof(T) < sizeof(float) && p.iterations > kIterations) return otherwise();
  return WithPlan<T>(p, run, otherwise);
}

// Calls run(precision) with what products of T are to have.
template <typename T, typename Run>
LaunchError WithTf32(const GpuExec& exec, const Run& run) {
  if constexpr (std::is_same_v<T, float>) {
    if (exec.tf32) return run(std::integral_constant<Tf32, Tf32::kRounded>{});
    return run(std::integral_constant<Tf32, Tf32::kSplit>{});
  } else {
    return run(std::integral_constant<Tf32, Tf32::kExact>{});
  }
}

template <Tf32 kTf32, Pass kPass, typename T, typename Plan>
LaunchError RunPass(const GpuExec& exec, const char* name, const Plan& plan,
                    const T* input, const T* weights, const T* logits, const float4* v,
                    const float4* ds, float4* partial, T* coefficients) {
  constexpr auto kernel = PassKernel<CudaType<T>, Plan::D, Plan::K, kTf32, kPass>;
  const int shared =
      plan.pass_shared(kPass == Pass::kGradient ? Plan::kPassVectors : 1);
  const LaunchError error = AllowShared<kernel>(name);
  if (!error.empty()) return error;
  return LaunchOverlapped(name, kernel, plan.pass_grid(), plan.pass_threads(), shared,
                          exec, plan.z, plan.teams, Native(input), Native(weights),
                          Native(logits), v, ds, partial, Native(coefficients));
}

template <Tf32 kTf32, bool kMore, typename T, typename Plan>
LaunchError RunGradients(const GpuExec& exec, const Plan& plan, int64_t iterations,
                         const T* input, const T* weights, const T* logits,
                         const float4* vectors, T* grad_input, T* grad_weights,
                         T* grad_logits) {
  constexpr auto kernel = GradientsKernel<CudaType<T>, Plan::D, Plan::K, kTf32, kMore>;
  int stages;
  const auto layout = plan.GradientsLayout(2 * kIterations - (kMore ? 0 : 1), &stages);
  const int shared = plan.gradients_shared(layout, stages);
  const LaunchError error = AllowShared<kernel>(kBackwardName);
  if (!error.empty()) return error;
  return LaunchOverlapped(
      kBackwardName, kernel,
      CeilDivide(plan.z.in_caps, layout.teams * Plan::Layout::kCaps),
      layout.teams * plan.z.groups * kLanes, shared, exec, plan.z, layout.teams, stages,
      static_cast<int>(std::min<int64_t>(iterations, kIterations)), Native(input),
      Native(weights), Native(logits), vectors, Native(grad_input),
      Native(grad_weights), Native(grad_logits));
}

template <typename Plan>
int64_t ForwardWorkspace(const Plan& plan) {
  return (plan.chunks + 2) * plan.vector_bytes();
}

template <typename T, typename Plan>
LaunchError Forward(const GpuExec& exec, const Problem& p, const Plan& plan,
                    const T* input, const T* weights, const T* logits, T* output,
                    float* sums, void* workspace) {
  constexpr int D = Plan::D, K = Plan::K;
  float4* const v[2] = {static_cast<float4*>(workspace),
                        static_cast<float4*>(workspace) + plan.vector_length()};
  float4* const partial = v[1] + plan.vector_length();
  return WithTf32<T>(exec, [&](auto tf32) -> LaunchError {
    constexpr auto first = FirstPassKernel<CudaType<T>, D, K, tf32>;
    const int shared = plan.pass_shared(0);
    LaunchError error = AllowShared<first>(kForwardName);
    if (!error.empty()) return error;
    first<<<plan.pass_grid(), plan.pass_threads(), shared, exec.stream>>>(
        plan.z, plan.teams, Native(input), Native(weights), Native(logits), partial);
    error = CheckLaunch(kForwardName);
    for (int64_t r = 0; r < p.iterations && error.empty(); ++r) {
      const float4* const now = r > 0 ? v[r % 2] : nullptr;
      if (r > 0) {
        error =
            RunPass<tf32, Pass::kSums>(exec, kForwardName, plan, input, weights, logits,
                                       now, nullptr, partial, static_cast<T*>(nullptr));
        if (!error.empty()) break;
      }
      error = LaunchOverlapped(
          kForwardName, FinishKernel<CudaType<T>, D>, VectorThread<D>::Blocks(plan.z),
          kSlices * VectorThread<D>::kThreads, 0, exec, plan.z, plan.chunks, partial,
          now, v[(r + 1) % 2], sums + r * p.batch * p.out_caps * D,
          r + 1 == p.iterations ? Native(output) : nullptr);
    }
    return error;
  });
}

template <typename Plan>
int64_t BackwardWorkspace(const Problem& p, const Plan& plan) {
  const int64_t padded = CeilDivide(p.iterations, kIterations) * kIterations;
  return (2 * padded + 1 + plan.chunks) * plan.vector_bytes();
}

template <typename T, typename Plan>
LaunchError Backward(const GpuExec& exec, const Problem& p, const Plan& plan,
                     const T* grad, const T* input, const T* weights, const T* logits,
                     const float* sums, T* grad_input, T* grad_weights, T* grad_logits,
                     void* workspace) {
  constexpr int D = Plan::D;
  const int64_t padded = CeilDivide(p.iterations, kIterations) * kIterations;
  const int64_t length = plan.vector_length();
  const int64_t blocks = VectorThread<D>::Blocks(plan.z);
  float4* const vectors = static_cast<float4*>(workspace);
  float4* const dv = vectors + 2 * padded * length;
  float4* const partial = dv + length;
  PrepareKernel<CudaType<T>, D><<<blocks, VectorThread<D>::kThreads, 0, exec.stream>>>(
      plan.z, p.iterations, padded, sums, Native(grad), vectors, dv);
  LaunchError error = CheckLaunch(kBackwardName);
  if (!error.empty()) return error;
  return WithTf32<T>(exec, [&](auto tf32) -> LaunchError {
    for (int64_t r = p.iterations - 1; r > 0; --r) {
      error = RunPass<tf32, Pass::kGradient>(
          exec, kBackwardName, plan, input, weights, logits, vectors + 2 * r * length,
          vectors + (2 * r + 1) * length, partial, static_cast<T*>(nullptr));
      if (!error.empty()) return error;
      error = LaunchOverlapped(kBackwardName, FinishBackwardKernel<D>, blocks,
                               kSlices * VectorThread<D>::kThreads, 0, exec, plan.z,
                               plan.chunks, partial,
                               sums + (r - 1) * p.batch * p.out_caps * D, dv,
                               vectors + (2 * r - 1) * length);
      if (!error.empty()) return error;
    }
    error = RunGradients<tf32, false>(exec, plan, p.iterations, input, weights, logits,
                                      vectors, grad_input, grad_weights, grad_logits);
    for (int64_t r = kIterations; r < padded && error.empty(); r += kIterations) {
      error = RunGradients<tf32, true>(exec, plan, p.iterations - r, input, weights,
                                       logits, vectors + 2 * r * length, grad_input,
                                       grad_weights, grad_logits);
    }
    return error;
  });
}

template <typename T, typename Plan>
LaunchError Coefficients(const GpuExec& exec, const Problem& p, const Plan& plan,
                         const T* input, const T* weights, const T* logits,
                         const float* sums, T* coefficients, void* workspace) {
  constexpr int D = Plan::D;
  float4* const v = static_cast<float4*>(workspace);
  PrepareKernel<CudaType<T>, D>
      <<<VectorThread<D>::Blocks(plan.z), VectorThread<D>::kThreads, 0, exec.stream>>>(
          plan.z, p.iterations, 0, sums, nullptr, v, nullptr);
  const LaunchError error = CheckLaunch("CapsuleRoutingCoefficients");
  if (!error.empty()) return error;
  return WithTf32<T>(exec, [&](auto tf32) {
    return RunPass<tf32, Pass::kCoefficients>(exec, "CapsuleRoutingCoefficients", plan,
                                              input, weights, logits, v, nullptr,
                                              nullptr, coefficients);
  });
}

}  // namespace capsops::capsule_routing::tiled

#endif  // CAPSOPS_CUDA_CAPSULE_ROUTING_MMA_LAUNCH_CUH_
