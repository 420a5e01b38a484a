// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Host side of capsule moments of 4x4 or 4x5 poses and up to 32 parents, by mma.
#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cuda/capsule_moments/mma/pass.cuh"
#include "cuda/capsule_moments/mma/weights.cuh"
#include "cuda/capsule_moments/paths.h"
#include "cuda/capsule_moments/plans.cuh"

namespace capsops::capsule_moments::mma {

// Size of shared memory of PassKernel in bytes.
inline int PassBytes(const Problem& p, const Division& d, bool gradient) {
  const auto size = [&](auto q) {
    return gradient ? SharedSize<true, q>(d) : SharedSize<false, q>(d);
  };
  const int floats = p.pose_inner == 5 ? size(std::integral_constant<int, 5>{})
                                       : size(std::integral_constant<int, 4>{});
  return floats * static_cast<int>(sizeof(float));
}

inline Division Divide(const Problem& p, const GpuExec& exec, bool gradient) {
  Division d;
  d.image = Image(p);
  d.outs = static_cast<int>(p.out_channels);
  // More lanes than parents mean fewer windows, for GPUs with little shared memory.
  for (d.lanes_log2 = 3;
       d.lanes() < d.outs ||
       (d.lanes() < kLanes && PassBytes(p, d, gradient) > exec.device.shared);) {
    ++d.lanes_log2;
  }
  d.positions = static_cast<int>(NumWindows(p));
  d.children = static_cast<int>(Children(p));
  d.groups = static_cast<int>(CeilDivide(d.positions, d.windows()));
  d.chunks = static_cast<int>(CeilDivide(d.children, kChunk));
  const int blocks_per_sm = gradient || p.has_linear ? 1 : 2;
  d.blocks = static_cast<int>(
      std::min<int64_t>(d.Units(), int64_t{blocks_per_sm} * exec.device.processors));
  return d;
}

// Calls run(second, logit, Q) with the kernels' compile-time parameters.
template <typename Run>
LaunchError WithVariant(const Problem& p, bool second, const Run& run) {
  const auto with_q = [&](auto second, auto logit) {
    if (p.pose_inner == 5) return run(second, logit, std::integral_constant<int, 5>{});
    return run(second, logit, std::integral_constant<int, 4>{});
  };
  const auto with_logit = [&](auto second) {
    if (p.has_linear || p.has_prior) {
      return with_q(second, std::integral_constant<int, 2>{});
    }
    if (HasLogits(p) || p.normalize == kNone) {
      return with_q(second, std::integral_constant<int, 1>{});
    }
    return with_q(second, std::integral_constant<int, 0>{});
  };
  return second ? with_logit(std::true_type{}) : with_logit(std::false_type{});
}

// Calls run(second, logit, Q, small) with the compile-time parameters of WeightKernel.
template <typename Run>
LaunchError WithTile(const Problem& p, const GpuExec& exec, const Run& run) {
  return WithVariant(p, p.order == 2, [&](auto second, auto logit, auto q) {
    const int bytes = Tile<second, logit, q, false>::Floats(Divide(p, exec, true)) * 4;
    if (bytes <= exec.device.shared) return run(second, logit, q, std::false_type{});
    return run(std::true_type{}, logit, q, std::true_type{});
  });
}

// Launches one pass, and the split-K reduction if blocks share groups.
template <bool kGradient, bool kSplit>
LaunchError LaunchPass(const GpuExec& exec, const char* name, const Inputs& in,
                       const Gradient& grad, const Results& out) {
  const Problem& p = in.p;
  const Division d = Divide(p, exec, kGradient);
  const auto run = [&](auto second, auto logit, auto q) -> LaunchError {
    constexpr auto kKernel = PassKernel<kGradient, second, logit, q, kSplit>;
    return LaunchDependent<kKernel>(name, d.blocks, kThreads,
                                    PassBytes(p, d, kGradient), exec, in, d, grad, out);
  };
  const bool sums = out.scales == nullptr;
  const LaunchError error = WithVariant(p, p.order == 2 && (kGradient || sums), run);
  const bool whole = d.Units() % (int64_t{d.blocks} * d.chunks) == 0;
  const bool finished = whole || (kGradient && !HasLogits(p) && p.normalize != kNone);
  if (!error.empty() || !sums || finished) return error;
  return LaunchDependent(name, FinishKernel, dim3(d.groups, kSize / 4), kThreads, 0,
                         exec, in, d, grad, out);
}

// Launches the kernels; tile.cuh explains kSplit.
template <bool kSplit>
struct Path {
  // Keeps the whole workspace under 32 MiB, above which TensorFlow may allocate 64.
  static constexpr int64_t kRowBytes = int64_t{19} << 20;

  static std::string Obstacle(const Problem& p, const GpuExec& exec, bool backward) {
    const Division d = Divide(p, exec, backward);
    int bytes = PassBytes(p, d, backward);
    const auto count = [&](auto second, auto logit, auto q, auto small) -> LaunchError {
      using TileOf = Tile<second, logit, q, small>;
      bytes = std::max<int>(bytes, TileOf::Floats(d) * sizeof(float));
      return {};
    };
    if (backward) WithTile(p, exec, count);
    return bytes > exec.device.shared ? "a block has too little shared memory" : "";
  }

  static int Slots(const Problem& p, const GpuExec& exec, bool backward) {
    return Divide(p, exec, backward).Slots();
  }
  static int Parts(const Problem& p, const GpuExec& exec) {
    const Division d = Divide(p, exec, true);
    int64_t groups = 1;
    WithTile(p, exec, [&](auto second, auto logit, auto q, auto small) -> LaunchError {
      groups = CeilDivide(d.children, Tile<second, logit, q, small>::Children(d));
      return {};
    });
    return static_cast<int>(std::clamp<int64_t>(exec.device.processors / groups, 1,
                                                CeilDivide(d.positions, kFour)));
  }

  static LaunchError Pass(const GpuExec& exec, const char* name, const Inputs& in,
                          const Gradient& grad, const Results& out) {
    const auto launch =
        out.gradients ? LaunchPass<true, kSplit> : LaunchPass<false, kSplit>;
    return launch(exec, name, in, grad, out);
  }

  static LaunchError Weights(const GpuExec& exec, const char* name, const Inputs& in,
                             const Gradient& grad, const WeightSums& sums, int parts) {
    const Division d = Divide(in.p, exec, true);
    const auto run = [&](auto second, auto logit, auto q, auto small) -> LaunchError {
      using TileOf = Tile<second, logit, q, small>;
      const dim3 grid(CeilDivide(d.children, TileOf::Children(d)), parts);
      constexpr auto kKernel = WeightKernel<second, logit, q, small, kSplit>;
      const int shared = TileOf::Floats(d) * sizeof(float);
      return LaunchDependent<kKernel>(name, grid, TileOf::kThreads, shared, exec, in, d,
                                      grad, sums);
    };
    return WithTile(in.p, exec, run);
  }
};

// Calls plan() with the path of T. Operands are split if float32 must not be rounded.
template <typename T, typename Plan>
auto WithPath(const GpuExec& exec, const Plan& plan) {
  if constexpr (std::is_same_v<T, float>) {
    if (!exec.tf32) return plan(Path<true>());
  }
  return plan(Path<false>());
}

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  return WithPath<T>(exec, [&](auto path) { return PlanForwardBy<T>(path, exec, p); });
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& p) {
  return WithPath<T>(exec, [&](auto path) { return PlanBackwardBy<T>(path, exec, p); });
}

CAPSOPS_INSTANTIATE_PATH(GpuExec)

}  // namespace capsops::capsule_moments::mma
