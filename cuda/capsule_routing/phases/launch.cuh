// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans by passes in three phases: how the work is cut, and the launches.
#ifndef CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_LAUNCH_CUH_
#define CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_LAUNCH_CUH_

#include <algorithm>
#include <string>
#include <type_traits>

#include "cc/launch/capsule_routing.h"
#include "cuda/capsule_routing/obstacles.cuh"
#include "cuda/capsule_routing/phases/finish.cuh"
#include "cuda/capsule_routing/phases/pass.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_routing::phases {

// Input capsules of a chunk at most: their sums are made one after the other.
constexpr int kMostCaps = 32;
// Partial sums, in bytes, that are spent to have more blocks.
constexpr int64_t kPartialBytes = int64_t{32} << 20;

// How the passes cut a problem.
template <typename P>
struct Tiling {
  Sizes z;
  Cut cut;
  int64_t columns, slices = 1;  // of blocks

  Tiling(const GpuDevice& device, const Sizes& sizes) : z(sizes) {
    Teams& teams = cut.teams;
    teams.groups = static_cast<int>(CeilDivide(z.caps, P::N));
    // Two sample blocks of two tiles use the same weights.
    teams.blocks = P::M == 2 && P::Blocks(z) > 1 ? 2 : 1;
    const int units = teams.units();
    teams.warps = static_cast<int>(CeilDivide(units, CeilDivide(units, kMostWarps)));
    columns = CeilDivide(P::Blocks(z), teams.blocks);
    // The slices that take the fewest steps, one an input capsule and some to begin.
    constexpr int64_t kBegin = 4;
    const int64_t most =
        std::max<int64_t>(1, std::min({2 * device.processors / columns, z.in_caps,
                                       kPartialBytes / vector_bytes()}));
    int64_t least = INT64_MAX;
    for (int64_t c = 1; c <= most; ++c) {
      const int64_t steps = CeilDivide(c * columns, device.processors) *
                            (CeilDivide(z.in_caps, c) + kBegin);
      if (steps < least) {
        least = steps;
        slices = c;
      }
    }
    cut.slice = CeilDivide(z.in_caps, slices);
    slices = CeilDivide(z.in_caps, cut.slice);
    const int64_t most_teams = units > kMostWarps ? 1 : kMostWarps / teams.warps;
    teams.count = static_cast<int>(std::min(most_teams, cut.slice));
    int64_t chunk = std::min<int64_t>(cut.slice, kMostCaps);
    for (cut.chunk = chunk; cut.chunk > 1 && shared() > device.shared;) --cut.chunk;
    chunk = CeilDivide(cut.slice, CeilDivide(cut.slice, cut.chunk));
    cut.chunk = static_cast<int>(chunk);
    while (teams.count > 1 && shared() > device.shared) --teams.count;
  }

  dim3 grid() const { return dim3(columns, slices); }
  int64_t finish_blocks() const { return P::Blocks(z) * z.out_caps * P::M; }
  int64_t shared() const { return PassMemory<P>::Bytes(z, cut); }
  int64_t vector_bytes() const { return P::VectorLength(z) * sizeof(float4); }

  // Why this cannot be launched, or "".
  std::string Obstacle(const GpuDevice& device) const {
    if (shared() > device.shared) {
      return "a pass needs " + std::to_string(shared()) +
             " bytes of shared memory and a block has " + std::to_string(device.shared);
    }
    return TooLarge({{"the blocks of a grid", finish_blocks()}});
  }
};

// The workspace: V, then partial sums.
template <typename P, typename T>
LaunchError Forward(const GpuExec& exec, const Tiling<P>& tiling, int64_t iterations,
                    const T* input, const T* weights, const T* logits, T* output,
                    float* sums, void* workspace) {
  constexpr auto pass = PassKernel<P>;
  LaunchError error = AllowShared<pass>(exec, kForwardName);
  const Sizes& z = tiling.z;
  float4* const v = static_cast<float4*>(workspace);
  float4* const partial = v + P::VectorLength(z);
  const int threads = tiling.cut.teams.threads();
  const int shared = static_cast<int>(tiling.shared());
  for (int64_t r = 0; r < iterations && error.empty(); ++r) {
    if (r == 0) {
      // What is before it may have made the operands.
      pass<<<tiling.grid(), threads, shared, exec.stream>>>(
          z, tiling.cut, Native(input), Native(weights), Native(logits), nullptr,
          partial);
      error = CheckLaunch(kForwardName);
    } else {
      error = LaunchOverlapped(kForwardName, pass, tiling.grid(), threads, shared, exec,
                               z, tiling.cut, Native(input), Native(weights),
                               Native(logits), v, partial);
    }
    if (!error.empty()) break;
    error = LaunchOverlapped(kForwardName, FinishKernel<CudaType<T>>,
                             tiling.finish_blocks(), kFinishWarps * kLanes, 0, exec, z,
                             tiling.slices, partial, r == 0, v,
                             sums + r * z.batch * z.out_caps * z.out_dim,
                             r + 1 == iterations ? Native(output) : nullptr);
  }
  return error;
}

// Calls then(Shape, Sizes) with what does the problem.
template <typename T, Tf32 kTf32, typename Then>
auto WithShape(const Problem& p, const Then& then) {
  using std::integral_constant;
  const auto with = [&](auto m, auto dt, auto steps) {
    using P = Shape<CudaType<T>, kTf32, decltype(m)::value, decltype(dt)::value,
                    decltype(steps)::value>;
    Sizes z{};
    z.batch = p.batch;
    z.in_caps = p.in_caps;
    z.out_caps = static_cast<int>(p.out_caps);
    z.out_dim = static_cast<int>(p.out_dim);
    z.in_dim = static_cast<int>(p.in_dim);
    z.parts = static_cast<int>(CeilDivide(p.out_dim, P::DT * kStep));
    z.caps = z.out_caps * z.parts;
    z.steps = static_cast<int>(CeilDivide(p.in_dim, kStep));
    z.tiles = P::M;
    z.part_steps = P::DT;
    z.epsilon = p.epsilon();
    return then(P(), z);
  };
  const auto with_tiles = [&](auto dt, auto steps) {
    // As many as registers hold.
    constexpr int kMost = kTf32 == Tf32::kRounded ? 4 : 2;
    if (p.batch <= 2 * kRows) return with(integral_constant<int, 2>(), dt, steps);
    return with(integral_constant<int, kMost>(), dt, steps);
  };
  const auto with_steps = [&](auto dt) {
    if (p.out_dim % (decltype(dt)::value * kStep) == 0) {
      if (p.in_dim == kStep) return with_tiles(dt, integral_constant<int, 1>());
      if (p.in_dim == 2 * kStep) return with_tiles(dt, integral_constant<int, 2>());
    }
    return with_tiles(dt, integral_constant<int, 0>());
  };
  if (p.out_dim <= kStep) return with_steps(integral_constant<int, 1>());
  if (p.out_dim <= 2 * kStep) return with_steps(integral_constant<int, 2>());
  return with_steps(integral_constant<int, 4>());
}

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  using Plan = ForwardPlan<GpuExec, T>;
  if constexpr (std::is_same_v<T, double>) {
    return Plan::Refuse("T is double");
  } else {
    if (std::min({p.batch, p.in_caps, p.out_caps, p.out_dim, p.in_dim}) == 0) {
      return Plan::Refuse("a dimension is 0");
    }
    const std::string obstacle =
        TooLarge({{"out_caps", p.out_caps},
                  {"out_dim", p.out_dim},
                  {"in_dim", p.in_dim},
                  {"out_caps x out_dim", p.out_caps * p.out_dim}});
    if (!obstacle.empty()) return Plan::Refuse(obstacle);
    return WithPrecision<T>(exec, [&](auto tf32) {
      return WithShape<T, decltype(tf32)::value>(p, [&](auto shape, const Sizes& z) {
        using P = decltype(shape);
        const Tiling<P> tiling(exec.device, z);
        const std::string obstacle = tiling.Obstacle(exec.device);
        if (!obstacle.empty()) return Plan::Refuse(obstacle);
        return Plan::Make(
            (tiling.slices + 1) * tiling.vector_bytes(),
            [tiling, iterations = p.iterations](const GpuExec& exec, auto... pointers) {
              return Forward<P, T>(exec, tiling, iterations, pointers...);
            });
      });
    });
  }
}

}  // namespace capsops::capsule_routing::phases

#endif  // CAPSOPS_CUDA_CAPSULE_ROUTING_PHASES_LAUNCH_CUH_
