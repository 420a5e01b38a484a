// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans by the FMA kernels of capsule routing, which do any sizes but empty ones: how
// the work is cut, and the launches.
#ifndef CAPSOPS_CUDA_CAPSULE_ROUTING_FMA_LAUNCH_CUH_
#define CAPSOPS_CUDA_CAPSULE_ROUTING_FMA_LAUNCH_CUH_

#include <algorithm>
#include <string>
#include <type_traits>

#include "cc/launch/capsule_routing.h"
#include "cuda/capsule_routing/fma/gradients.cuh"
#include "cuda/capsule_routing/fma/pass.cuh"
#include "cuda/capsule_routing/fma/vectors.cuh"
#include "cuda/capsule_routing/obstacles.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_routing::fma {

// Workspace that is spent to have more blocks, in bytes.
constexpr int64_t kBlocksBytes = int64_t{64} << 20;
// Input capsules of a chunk at least.
constexpr int64_t kChunkCaps = 4;

// Of dimensions that are not too large and not 0.
template <typename A>
Sizes SizesOf(const Problem& p) {
  Sizes z{};
  z.batch = p.batch;
  z.padded = RoundUp(p.batch, kSamples);
  z.in_caps = p.in_caps;
  z.out_caps = static_cast<int>(p.out_caps);
  z.out_dim = static_cast<int>(p.out_dim);
  z.in_dim = static_cast<int>(p.in_dim);
  z.depth = static_cast<int>(RoundUp(p.in_dim, kPack<A>));
  z.row_blocks = static_cast<int>(CeilDivide(p.out_dim, kBlockRows));
  z.epsilon = p.epsilon();
  z.matrix = p.out_dim * p.in_dim;
  z.matrices = p.out_caps * z.matrix;
  z.length = z.padded * p.out_caps * p.out_dim;
  return z;
}

// Warps of a block, such that few of them idle and multiprocessors have about
// kMaxWarps.
struct Teams {
  int warps = 1;
  int each;        // blocks that run at a time on a multiprocessor
  int64_t blocks;  // and on the device
  // Bytes that a block may take of shared memory, if all take half of it: the
  // first-level cache has work for the rest.
  int64_t shared;

  Teams(const GpuDevice& device, const Sizes& z) {
    double best = 0;
    const int items = std::max(1, z.items());
    for (int w = kMaxWarps; w >= std::min(4, items); --w) {
      const double busy = static_cast<double>(items) / RoundUp(items, w);
      const double score = busy * (kMaxWarps / w * w);
      if (score > best) {
        best = score;
        warps = w;
      }
    }
    each = kMaxWarps / warps;
    blocks = int64_t{each} * device.processors;
    shared = std::min(device.shared, device.processor_shared / 2 / each);
  }
};

// How a pass is cut into blocks.
template <typename A>
struct PassTiling {
  Sizes z;
  Teams teams;
  int tile;
  int64_t groups, chunks;
  int64_t elements;  // that a block works on
  bool spills;       // those lie in the workspace

  PassTiling(const GpuDevice& device, const Problem& p, bool gradient)
      : z(SizesOf<A>(p)), teams(device, z) {
    groups = z.padded / kSamples;
    const int64_t of_capsule =
        z.depth * kPitch<A> + int64_t{gradient ? 2 : 1} * z.out_caps * kSamples;
    const int64_t fits = teams.shared / (of_capsule * sizeof(A));
    spills = fits < 2;
    tile = spills ? 4 : static_cast<int>(std::min(fits, int64_t{16}));
    elements = tile * of_capsule;
    const int64_t block_bytes =
        (z.length / groups + (spills ? elements : 1)) * sizeof(A);
    chunks = std::max(int64_t{1}, std::min({teams.blocks / groups,
                                            kBlocksBytes / block_bytes / groups,
                                            CeilDivide(z.in_caps, kChunkCaps)}));
  }

  // Why the kernel cannot do this, or "".
  std::string Obstacle() const {
    return TooLarge({{"what a block works on, in numbers,", elements},
                     {"the blocks of a grid", blocks()}});
  }
  int64_t blocks() const { return groups * z.out_caps; }  // between passes
  int shared() const { return spills ? 0 : elements * sizeof(A); }
  int64_t scratch() const { return spills ? chunks * groups * elements : 0; }
};

// How the gradients' kernel is.
template <typename S, typename A>
struct GradientsTiling {
  Sizes z;
  Teams teams;
  GradientsLayout layout;
  bool spills;
  int64_t blocks;

  GradientsTiling(const GpuDevice& device, const Problem& p)
      : z(SizesOf<A>(p)), teams(device, z) {
    const int adders = std::min(teams.warps, z.items());
    const auto with = [&](int tile) {
      layout = GradientsLayout::Of<A>(z, tile, p.iterations, adders);
      layout.size = RoundUp(layout.size, kPack<A>);
      return layout.size * static_cast<int64_t>(sizeof(A)) <= teams.shared;
    };
    spills = !with(4) && !with(2) && !with(1);
    if (spills) with(2);
    blocks = CeilDivide(z.in_caps, layout.tile);
    if (block_scratch() > 0) {
      const int64_t affordable = kBlocksBytes / (block_scratch() * sizeof(A));
      blocks =
          std::min(blocks, std::max(int64_t{1}, std::min(affordable, teams.blocks)));
    }
  }

  // Why the kernel cannot do this, or "".
  std::string Obstacle() const {
    return TooLarge({{"what a block works on, in numbers,", layout.size},
                     {"the blocks of a grid", blocks}});
  }
  int64_t weights_scratch() const {
    return std::is_same_v<S, A> ? 0 : layout.tile * z.matrices;
  }
  int64_t block_scratch() const {
    return (spills ? layout.size : 0) + weights_scratch();
  }
  int shared() const { return spills ? 0 : layout.size * sizeof(A); }
};

// Refuses all types but float32, which other kernels compute as exactly or faster;
// returns make() for that.
template <typename Plan, typename T, typename Make>
Plan OfFloat(const Make& make) {
  if constexpr (std::is_same_v<T, float>) {
    return make();
  } else {
    return Plan::Refuse("T is not float32");
  }
}

template <typename A, typename T>
bool VectorWeights(const Sizes& z, const T* weights) {
  return z.in_dim % kPack<A> == 0 && Aligned16(weights);
}

template <typename T, bool kGradient, typename A = Accumulator<T>>
LaunchError RunPass(const GpuExec& exec, const char* name, const PassTiling<A>& tiling,
                    const T* input, const T* weights, const T* logits, const A* vectors,
                    A* partial, T* coefficients, A* scratch) {
  constexpr auto kernel = PassKernel<CudaType<T>, A, kGradient>;
  const LaunchError error = AllowShared<kernel>(exec, name);
  if (!error.empty()) return error;
  const dim3 grid(tiling.groups, tiling.chunks);
  kernel<<<grid, tiling.teams.warps * kLanes, tiling.shared(), exec.stream>>>(
      tiling.z, tiling.tile, Native(input), Native(weights), Native(logits), vectors,
      partial, Native(coefficients), tiling.spills ? scratch : nullptr,
      tiling.elements);
  return CheckLaunch(name);
}

// The workspace: V, partial sums, and what blocks work on.
template <typename T, typename A = Accumulator<T>>
LaunchError Forward(const GpuExec& exec, PassTiling<A> tiling, int64_t iterations,
                    const T* input, const T* weights, const T* logits, T* output,
                    A* sums, void* workspace) {
  tiling.z.vector = VectorWeights<A>(tiling.z, weights);
  const Sizes& z = tiling.z;
  A* const v = static_cast<A*>(workspace);
  A* const partial = v + z.length;
  LaunchError error;
  for (int64_t r = 0; r < iterations && error.empty(); ++r) {
    error = RunPass<T, false>(exec, kForwardName, tiling, input, weights, logits,
                              r > 0 ? v : nullptr, partial, static_cast<T*>(nullptr),
                              partial + tiling.chunks * z.length);
    if (!error.empty()) break;
    FinishKernel<<<tiling.blocks(), kFinishWarps * kLanes, 0, exec.stream>>>(
        z, tiling.chunks, partial, r == 0, v,
        sums + r * z.batch * z.out_caps * z.out_dim,
        r + 1 == iterations ? Native(output) : nullptr);
    error = CheckLaunch(kForwardName);
  }
  return error;
}

// The workspace: V and ds of each iteration, of which V of the first, which is zero and
// not read, has dv; then partial sums and what blocks work on, or what those of the
// gradients do.
template <typename T, typename A = Accumulator<T>>
LaunchError Backward(const GpuExec& exec, PassTiling<A> tiling,
                     const GradientsTiling<T, A>& last, const T* grad, const T* input,
                     const T* weights, const T* logits, const A* sums, T* grad_input,
                     T* grad_weights, T* grad_logits, void* workspace) {
  tiling.z.vector = VectorWeights<A>(tiling.z, weights);
  const Sizes& z = tiling.z;
  const int64_t length = z.length, iterations = last.layout.iterations;
  A* const vectors = static_cast<A*>(workspace);
  A* const rest = vectors + 2 * iterations * length;
  PrepareKernel<<<tiling.blocks(), kFinishWarps * kLanes, 0, exec.stream>>>(
      z, iterations, sums, Native(grad), vectors);
  LaunchError error = CheckLaunch(kBackwardName);
  for (int64_t r = iterations - 1; r > 0 && error.empty(); --r) {
    error = RunPass<T, true>(exec, kBackwardName, tiling, input, weights, logits,
                             vectors + 2 * r * length, rest, static_cast<T*>(nullptr),
                             rest + tiling.chunks * length);
    if (!error.empty()) break;
    FinishBackwardKernel<<<tiling.blocks(), kFinishWarps * kLanes, 0, exec.stream>>>(
        z, tiling.chunks, rest, sums + (r - 1) * z.batch * z.out_caps * z.out_dim,
        r + 1 == iterations, vectors, vectors + (2 * r - 1) * length);
    error = CheckLaunch(kBackwardName);
  }
  constexpr auto kernel = GradientsKernel<CudaType<T>, A>;
  if (error.empty()) error = AllowShared<kernel>(exec, kBackwardName);
  if (!error.empty()) return error;
  kernel<<<last.blocks, last.teams.warps * kLanes, last.shared(), exec.stream>>>(
      z, last.layout, Native(input), Native(weights), Native(logits), vectors,
      Native(grad_input), Native(grad_weights), Native(grad_logits),
      last.spills ? rest : nullptr,
      rest + (last.spills ? last.blocks * last.layout.size : 0));
  return CheckLaunch(kBackwardName);
}

// The workspace: V and what blocks work on. Without `iterations`, V is zero.
template <typename T, typename A = Accumulator<T>>
LaunchError Coefficients(const GpuExec& exec, PassTiling<A> tiling, int64_t iterations,
                         const T* input, const T* weights, const T* logits,
                         const A* sums, T* coefficients, void* workspace) {
  tiling.z.vector = VectorWeights<A>(tiling.z, weights);
  A* const v = static_cast<A*>(workspace);
  if (iterations > 0) {
    PrepareKernel<CudaType<T>>
        <<<tiling.blocks(), kFinishWarps * kLanes, 0, exec.stream>>>(
            tiling.z, iterations, sums, nullptr, v);
    const LaunchError error = CheckLaunch(kCoefficientsName);
    if (!error.empty()) return error;
  }
  return RunPass<T, false>(exec, kCoefficientsName, tiling, input, weights, logits,
                           iterations > 0 ? v : nullptr, static_cast<A*>(nullptr),
                           coefficients, v + tiling.z.length);
}

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  using Plan = ForwardPlan<GpuExec, T>;
  return OfFloat<Plan, T>([&]() {
    using A = Accumulator<T>;
    std::string obstacle = Empty(p) ? "a dimension is 0" : TooLarge(p);
    if (!obstacle.empty()) return Plan::Refuse(obstacle);
    const PassTiling<A> tiling(exec.device, p, false);
    obstacle = tiling.Obstacle();
    if (!obstacle.empty()) return Plan::Refuse(obstacle);
    return Plan::Make(
        ((tiling.chunks + 1) * tiling.z.length + tiling.scratch()) * sizeof(A),
        [tiling, iterations = p.iterations](const GpuExec& exec, auto... pointers) {
          return Forward<T>(exec, tiling, iterations, pointers...);
        });
  });
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& p) {
  using Plan = BackwardPlan<GpuExec, T>;
  return OfFloat<Plan, T>([&]() {
    using A = Accumulator<T>;
    std::string obstacle = Empty(p) ? "a dimension is 0" : TooLarge(p);
    if (!obstacle.empty()) return Plan::Refuse(obstacle);
    const PassTiling<A> tiling(exec.device, p, true);
    const GradientsTiling<T, A> last(exec.device, p);
    obstacle = tiling.Obstacle();
    if (obstacle.empty()) obstacle = last.Obstacle();
    if (!obstacle.empty()) return Plan::Refuse(obstacle);
    const int64_t pass = tiling.chunks * tiling.z.length + tiling.scratch();
    return Plan::Make((2 * p.iterations * tiling.z.length +
                       std::max(pass, last.blocks * last.block_scratch())) *
                          sizeof(A),
                      [tiling, last](const GpuExec& exec, auto... pointers) {
                        return Backward<T>(exec, tiling, last, pointers...);
                      });
  });
}

template <typename T>
CoefficientsPlan<GpuExec, T> PlanCoefficients(const GpuExec& exec, const Problem& p) {
  using Plan = CoefficientsPlan<GpuExec, T>;
  return OfFloat<Plan, T>([&]() {
    using A = Accumulator<T>;
    if (std::min({p.batch, p.in_caps, p.out_caps}) == 0) {
      return Plan::Refuse("a dimension is 0");
    }
    std::string obstacle = TooLarge(p);
    if (!obstacle.empty()) return Plan::Refuse(obstacle);
    const PassTiling<A> tiling(exec.device, p, false);
    obstacle = tiling.Obstacle();
    if (!obstacle.empty()) return Plan::Refuse(obstacle);
    // Without a prediction, V says nothing.
    const int64_t iterations = p.out_dim > 0 && p.in_dim > 0 ? p.iterations : 0;
    return Plan::Make((tiling.z.length + tiling.scratch()) * sizeof(A),
                      [tiling, iterations](const GpuExec& exec, auto... pointers) {
                        return Coefficients<T>(exec, tiling, iterations, pointers...);
                      });
  });
}

}  // namespace capsops::capsule_routing::fma

#endif  // CAPSOPS_CUDA_CAPSULE_ROUTING_FMA_LAUNCH_CUH_
