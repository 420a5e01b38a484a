// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and launches of the tensor-core kernels of capsule routing:
//   forward       FirstPassKernel, then PassKernel in each further iteration, and
//                 FinishKernel after each of these;
//   backward      PrepareKernel; from the last iteration to the second, PassKernel and
//                 FinishBackwardKernel; then GradientsKernel for three iterations each;
//   coefficients  PrepareKernel and PassKernel.
#include "cuda/common/launch.cuh"

#include <algorithm>
#include <string>
#include <type_traits>

#include "cc/launch/capsule_routing.h"
#include "cuda/capsule_routing/mma/gradients.cuh"
#include "cuda/capsule_routing/mma/pass.cuh"
#include "cuda/capsule_routing/mma/vectors.cuh"
#include "cuda/capsule_routing/obstacles.cuh"
#include "cuda/capsule_routing/paths.h"

namespace capsops::capsule_routing::mma {

// Work split of the passes, for output and input capsules of kD and kK elements.
template <typename T, int kD, int kK>
struct Tiling {
  static constexpr int D = kD, K = kK;
  using S = CudaType<T>;
  static constexpr int kPassVectors = 2;  // most vectors per pass

  Sizes z;
  Teams teams;          // split of a block's work in a pass
  int64_t tile_blocks;  // blocks along the samples
  int64_t chunks = 1;   // blocks along the input capsules

  Tiling(const GpuDevice& device, const Problem& p) {
    z.batch = p.batch;
    z.in_caps = p.in_caps;
    z.tiles = CeilDivide(p.batch, kTileSamples);
    z.out_caps = static_cast<int>(p.out_caps);
    z.groups = CeilDivideInt(p.out_caps, kGroupCaps);
    z.epsilon = p.epsilon();
    const int team_count = kPassWarps / z.groups;
    int64_t least = INT64_MAX;
    for (int tiles = 1; tiles <= std::min<int64_t>(team_count, z.tiles); tiles *= 2) {
      Cut(device, p, tiles, team_count / tiles, &least);
    }
  }

  dim3 pass_grid() const { return dim3(tile_blocks, chunks); }
  int pass_threads() const { return teams.count() * z.groups * kLanes; }
  int64_t vector_blocks() const { return VectorThread<D>::Blocks(z); }
  int64_t vector_length() const { return VectorFloats<D>(z) / 4; }
  int64_t vector_bytes() const { return vector_length() * sizeof(float4); }

  // Returns the bytes of shared memory of a pass that computes the inner products of
  // predictions with `vectors` vectors.
  int Shared(const Teams& of, int vectors) const {
    using Pipe = Pipeline<S, D, K, Tf32::kExact>;
    constexpr int kFloat4 = sizeof(float4);
    const int pipeline = of.parts * Pipe::kStages *
                         Pipe::StageLength(z.out_caps, z.groups, of.tiles, of.stage) *
                         static_cast<int>(sizeof(S));
    const int rest = (of.parts - 1) * of.tiles * z.groups * (D / 2) * kLanes * kFloat4;
    const int rows = vectors * of.count() * Rows(z.groups, of.stage).length() * kFloat4;
    return std::max(rows + pipeline, rest);
  }

  // Chooses teams of this many tiles and parts if their blocks take at most `least`
  // steps, and then lowers `least`. A step is one input capsule; kBegin steps account
  // for a block's start.
  void Cut(const GpuDevice& device, const Problem& p, int tiles, int parts,
           int64_t* least) {
    constexpr int64_t kBegin = 4;
    Teams of{tiles, parts, 0, 0};
    const int64_t blocks = CeilDivide(z.tiles, tiles);
    const int64_t maximum =
        std::min(std::max<int64_t>(2 * device.processors / blocks, 1),
                 CeilDivide(p.in_caps, parts));
    int64_t best = INT64_MAX, best_chunks = 1;
    for (int64_t c = 1; c <= maximum; ++c) {
      const int64_t steps = CeilDivide(c * blocks, device.processors) *
                            (CeilDivide(p.in_caps, c * parts) + kBegin);
      if (steps < best) {
        best = steps;
        best_chunks = c;
      }
    }
    if (best > *least) return;
    of.caps = CeilDivide(p.in_caps, best_chunks * parts);
    // A stage has about one row per thread, and no more input capsules than needed.
    const int stage = static_cast<int>(
        std::min<int64_t>(std::clamp(2 * z.groups, 4, kMaxStage), of.caps));
    for (of.stage = stage; of.stage > 1; --of.stage) {
      if (Shared(of, kPassVectors) <= device.shared) break;
    }
    if (Shared(of, kPassVectors) > device.shared && parts > 1) {
      return Cut(device, p, tiles, parts - 1, least);
    }
    of.stage = CeilDivideInt(of.caps, CeilDivide(of.caps, of.stage));
    if (tiles > 1 && Shared(of, kPassVectors) > device.shared) return;
    *least = best;
    teams = of;
    tile_blocks = blocks;
    chunks = best_chunks;
  }

  // Returns why a pass with `vectors` vectors cannot be launched, or "".
  std::string PassObstacle(const GpuDevice& device, int vectors) const {
    const int shared = Shared(teams, vectors);
    if (shared > device.shared) {
      return "a pass needs " + std::to_string(shared) +
             " bytes of shared memory and a block has " + std::to_string(device.shared);
    }
    // The kernels between the passes have the most blocks.
    return TooLarge({{"the blocks of a grid", vector_blocks()}});
  }
};

// Work split of GradientsKernel. `layout.teams` is 0 if not even one team fits.
template <typename T, int D, int K, bool kAdd>
struct GradientsTiling {
  using Layout = GradientsShared<CudaType<T>, D, K>;

  Layout layout;
  int stages;
  int64_t blocks = 0;

  GradientsTiling(const GpuDevice& device, const Sizes& z)
      : layout{z.groups, 0, 2 * kIterations - (kAdd ? 0 : 1)}, stages(0) {
    // Minimizes the estimated time. A wave of blocks takes one step per team and two
    // more, and 1.5 times as long without double buffering.
    const int maximum = std::min(kGradientTeams, kGradientWarps / z.groups);
    GradientsTiling best = *this;
    int64_t least = INT64_MAX;
    for (layout.teams = maximum; layout.teams > 0; --layout.teams) {
      blocks = CeilDivide(z.in_caps, layout.teams * Layout::kCaps);
      for (stages = 2; stages > 0; --stages) {
        const int64_t steps = CeilDivide(blocks, device.processors) *
                              (layout.teams + 2) * (stages == 2 ? 2 : 3);
        if (shared() > device.shared || steps >= least) continue;
        least = steps;
        best = *this;
      }
    }
    *this = best;
  }

  int shared() const { return stages * layout.stage() + layout.teams * layout.team(); }

  // Returns why this kernel cannot be launched, or "".
  std::string Obstacle(const GpuDevice& device) const {
    if (layout.teams > 0) return TooLarge({{"the blocks of a grid", blocks}});
    return "the vectors of " + std::to_string(kIterations) +
           " iterations do not fit into the " + std::to_string(device.shared) +
           " bytes of shared memory that a block has";
  }
};

// Returns make(tiling) with the tiling of p's dimensions, or a refusal. Refuses zero
// iterations, where shares depend on logits alone: V would be zero, and its product
// with an infinite prediction NaN.
template <typename Plan, typename T, typename Make>
Plan WithTiling(const GpuExec& exec, const Problem& p, const Make& make) {
  if constexpr (std::is_same_v<T, double>) {
    return Plan::Refuse("T is double");
  } else {
    if (std::min({p.batch, p.in_caps, p.out_caps}) == 0) {
      return Plan::Refuse("a dimension is 0");
    }
    if (p.iterations == 0) return Plan::Refuse("iterations is 0");
    constexpr int kMaxCaps = kPassWarps * kGroupCaps;
    if (p.out_caps > kMaxCaps) {
      return Plan::Refuse("out_caps is over " + std::to_string(kMaxCaps));
    }
    if (p.out_dim == 16 && p.in_dim == 8) return make(Tiling<T, 16, 8>(exec.device, p));
    if (p.out_dim == 16 && p.in_dim == 16) {
      return make(Tiling<T, 16, 16>(exec.device, p));
    }
    if (p.out_dim == 8 && p.in_dim == 8) return make(Tiling<T, 8, 8>(exec.device, p));
    return Plan::Refuse("out_dim x in_dim is none of 16 x 8, 16 x 16 and 8 x 8");
  }
}

template <Tf32 kTf32, Pass kPass, typename T, typename Tiling>
LaunchError RunPass(const GpuExec& exec, const char* name, const Tiling& tiling,
                    const T* input, const T* weights, const T* logits, const float4* v,
                    const float4* ds, float4* partial, T* coefficients) {
  constexpr auto kernel = PassKernel<CudaType<T>, Tiling::D, Tiling::K, kTf32, kPass>;
  const int shared =
      tiling.Shared(tiling.teams, kPass == Pass::kGradient ? Tiling::kPassVectors : 1);
  return LaunchDependent<kernel>(name, tiling.pass_grid(), tiling.pass_threads(),
                                 shared, exec, tiling.z, tiling.teams, input, weights,
                                 logits, v, ds, partial, coefficients);
}

template <Tf32 kTf32, typename T, int D, int K, bool kAdd>
LaunchError RunGradients(const GpuExec& exec, const Sizes& z,
                         const GradientsTiling<T, D, K, kAdd>& tiling,
                         int64_t iterations, const T* input, const T* weights,
                         const T* logits, const float4* vectors, T* grad_input,
                         T* grad_weights, T* grad_logits) {
  constexpr auto kernel = GradientsKernel<CudaType<T>, D, K, kTf32, kAdd>;
  return LaunchDependent<kernel>(
      kBackwardName, tiling.blocks, tiling.layout.teams * z.groups * kLanes,
      tiling.shared(), exec, z, tiling.layout.teams, tiling.stages,
      static_cast<int>(std::min<int64_t>(iterations, kIterations)), input, weights,
      logits, vectors, grad_input, grad_weights, grad_logits);
}

// Workspace: V, then partial sums.
template <typename T, typename Tiling>
LaunchError Forward(const GpuExec& exec, const Tiling& tiling, int64_t iterations,
                    const T* input, const T* weights, const T* logits, T* output,
                    float* sums, void* workspace) {
  constexpr int D = Tiling::D, K = Tiling::K;
  const Sizes& z = tiling.z;
  float4* const v = static_cast<float4*>(workspace);
  float4* const partial = v + tiling.vector_length();
  return WithPrecision<T>(exec, [&](auto tf32) -> LaunchError {
    constexpr auto first = FirstPassKernel<CudaType<T>, D, K, tf32>;
    CAPSOPS_RETURN_IF_ERROR(
        LaunchDependent<first>(kForwardName, tiling.pass_grid(), tiling.pass_threads(),
                               tiling.Shared(tiling.teams, 0), exec, z, tiling.teams,
                               input, weights, logits, partial));
    for (int64_t r = 0; r < iterations; ++r) {
      if (r > 0) {
        CAPSOPS_RETURN_IF_ERROR(RunPass<tf32, Pass::kSums>(
            exec, kForwardName, tiling, input, weights, logits, v, nullptr, partial,
            static_cast<T*>(nullptr)));
      }
      CAPSOPS_RETURN_IF_ERROR(LaunchDependent(
          kForwardName, FinishKernel<CudaType<T>, D>, tiling.vector_blocks(),
          kSlices * VectorThread<D>::kThreads, 0, exec, z, tiling.chunks, partial,
          r == 0, v, sums + r * z.batch * z.out_caps * D,
          r + 1 == iterations ? output : nullptr));
    }
    return {};
  });
}

// Whether gradients of more than kIterations iterations can be accumulated in T.
template <typename T>
constexpr bool kAddsGradients = sizeof(T) >= sizeof(float);

// Workspace: V and ds of each iteration up to `padded`, then partial sums. dv takes the
// place of the first V, which is zero and never read.
template <typename T, int D, int K>
LaunchError Backward(const GpuExec& exec, const Tiling<T, D, K>& tiling,
                     const GradientsTiling<T, D, K, false>& gradients,
                     const GradientsTiling<T, D, K, true>& more, int64_t iterations,
                     int64_t padded, const T* grad, const T* input, const T* weights,
                     const T* logits, const float* sums, T* grad_input, T* grad_weights,
                     T* grad_logits, void* workspace) {
  const Sizes& z = tiling.z;
  const int64_t length = tiling.vector_length(), blocks = tiling.vector_blocks();
  float4* const vectors = static_cast<float4*>(workspace);
  float4* const partial = vectors + 2 * padded * length;
  CAPSOPS_RETURN_IF_ERROR(LaunchDependent(kBackwardName, PrepareKernel<CudaType<T>, D>,
                                          blocks, VectorThread<D>::kThreads, 0, exec, z,
                                          iterations, padded, sums, grad, vectors));
  return WithPrecision<T>(exec, [&](auto tf32) -> LaunchError {
    for (int64_t r = iterations - 1; r > 0; --r) {
      CAPSOPS_RETURN_IF_ERROR(RunPass<tf32, Pass::kGradient>(
          exec, kBackwardName, tiling, input, weights, logits, vectors + 2 * r * length,
          vectors + (2 * r + 1) * length, partial, static_cast<T*>(nullptr)));
      CAPSOPS_RETURN_IF_ERROR(LaunchDependent(
          kBackwardName, FinishBackwardKernel<D>, blocks,
          kSlices * VectorThread<D>::kThreads, 0, exec, z, tiling.chunks, partial,
          sums + (r - 1) * z.batch * z.out_caps * D, vectors,
          vectors + (2 * r - 1) * length));
    }
    CAPSOPS_RETURN_IF_ERROR(RunGradients<tf32>(exec, z, gradients, iterations, input,
                                               weights, logits, vectors, grad_input,
                                               grad_weights, grad_logits));
    if constexpr (kAddsGradients<T>) {
      for (int64_t r = kIterations; r < padded; r += kIterations) {
        CAPSOPS_RETURN_IF_ERROR(RunGradients<tf32>(
            exec, z, more, iterations - r, input, weights, logits,
            vectors + 2 * r * length, grad_input, grad_weights, grad_logits));
      }
    }
    return {};
  });
}

template <typename T, typename Tiling>
LaunchError Coefficients(const GpuExec& exec, const Tiling& tiling, int64_t iterations,
                         const T* input, const T* weights, const T* logits,
                         const float* sums, T* coefficients, void* workspace) {
  float4* const v = static_cast<float4*>(workspace);
  CAPSOPS_RETURN_IF_ERROR(
      Launch(kCoefficientsName, PrepareKernel<CudaType<T>, Tiling::D>,
             tiling.vector_blocks(), VectorThread<Tiling::D>::kThreads, 0, exec,
             tiling.z, iterations, 0, sums, nullptr, v));
  return WithPrecision<T>(exec, [&](auto tf32) {
    return RunPass<tf32, Pass::kCoefficients>(exec, kCoefficientsName, tiling, input,
                                              weights, logits, v, nullptr, nullptr,
                                              coefficients);
  });
}

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  using Plan = ForwardPlan<GpuExec, T>;
  return WithTiling<Plan, T>(exec, p, [&](const auto& tiling) {
    CAPSOPS_REFUSE_IF(tiling.PassObstacle(exec.device, 1));
    return Plan::Make(
        (tiling.chunks + 1) * tiling.vector_bytes(),
        [tiling, iterations = p.iterations](const GpuExec& exec, auto... pointers) {
          return Forward<T>(exec, tiling, iterations, pointers...);
        });
  });
}

template <typename T, int D, int K>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& p,
                                      const Tiling<T, D, K>& tiling) {
  using Plan = BackwardPlan<GpuExec, T>;
  const GradientsTiling<T, D, K, false> gradients(exec.device, tiling.z);
  const GradientsTiling<T, D, K, true> more(exec.device, tiling.z);
  CAPSOPS_REFUSE_IF(gradients.Obstacle(exec.device));
  if (p.iterations > kIterations) {
    CAPSOPS_REFUSE_IF(
        kAddsGradients<T>
            ? more.Obstacle(exec.device)
            : "iterations is over " + std::to_string(kIterations) +
                  ", and 16 bits are too little to add up the gradients in");
  }
  CAPSOPS_REFUSE_IF(tiling.PassObstacle(exec.device, Tiling<T, D, K>::kPassVectors));
  const int64_t padded = RoundUp(p.iterations, kIterations);
  return Plan::Make((2 * padded + tiling.chunks) * tiling.vector_bytes(),
                    [tiling, gradients, more, iterations = p.iterations, padded](
                        const GpuExec& exec, auto... pointers) {
                      return Backward(exec, tiling, gradients, more, iterations, padded,
                                      pointers...);
                    });
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& p) {
  return WithTiling<BackwardPlan<GpuExec, T>, T>(
      exec, p, [&](const auto& tiling) { return PlanBackward(exec, p, tiling); });
}

template <typename T>
CoefficientsPlan<GpuExec, T> PlanCoefficients(const GpuExec& exec, const Problem& p) {
  using Plan = CoefficientsPlan<GpuExec, T>;
  return WithTiling<Plan, T>(exec, p, [&](const auto& tiling) {
    CAPSOPS_REFUSE_IF(tiling.PassObstacle(exec.device, 1));
    return Plan::Make(
        tiling.vector_bytes(),
        [tiling, iterations = p.iterations](const GpuExec& exec, auto... pointers) {
          return Coefficients<T>(exec, tiling, iterations, pointers...);
        });
  });
}

CAPSOPS_INSTANTIATE_PATH(GpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanCoefficients, CoefficientsPlan, GpuExec)

}  // namespace capsops::capsule_routing::mma
