// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Host side of capsule moments of 4x4 or 4x5 poses and up to 32 parents, by FMA.
#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cuda/capsule_moments/fma/pass.cuh"
#include "cuda/capsule_moments/fma/votes.cuh"
#include "cuda/capsule_moments/paths.h"
#include "cuda/capsule_moments/plans.cuh"

namespace capsops::capsule_moments::fma {

// Blocks per multiprocessor that the kernels' launch bounds allow.
inline int BlocksPerSm(Kind kind, const Problem& p) {
  return kIsGradient(kind) || p.has_linear ? 1 : 2;
}

inline Division Divide(const Problem& p, const GpuExec& exec, int blocks_per_sm) {
  Division d;
  d.outs = static_cast<int>(p.out_channels);
  d.lanes = d.outs <= kLanes / 2 ? kLanes / 2 : kLanes;
  d.windows = kThreads / d.lanes;
  d.positions = static_cast<int>(NumWindows(p));
  d.children = static_cast<int>(Children(p));
  d.groups = static_cast<int>(CeilDivide(d.positions, d.windows));
  d.chunks = static_cast<int>(CeilDivide(d.children, kChunk));
  d.blocks = static_cast<int>(
      std::min<int64_t>(d.Units(), int64_t{blocks_per_sm} * exec.device.processors));
  return d;
}

template <Kind kKind, bool kLinear, bool kPrecision, int Q>
LaunchError LaunchPass(const GpuExec& exec, const char* name, const Inputs& in,
                       const Division& d, const Gradient& grad, const Results& out) {
  constexpr auto kKernel = PassKernel<kKind, kLinear, kPrecision, Q>;
  const int shared = 2 * StageSize<Q>(d) * sizeof(float);
  return Launch<kKernel>(name, d.blocks, kThreads, shared, exec, in, d, grad, out);
}

// Launches one pass, and the split-K reduction if blocks share groups.
template <Kind kKind, int Q>
LaunchError PassOfKind(const GpuExec& exec, const char* name, const Inputs& in,
                       const Gradient& grad, const Results& out) {
  const Problem& p = in.p;
  const Division d = Divide(p, exec, BlocksPerSm(kKind, p));
  constexpr bool kSums = kKind != Kind::kScales && kKind != Kind::kDots;
  LaunchError error;
  if (p.has_linear || kKind == Kind::kDots) {
    error = LaunchPass<kKind, true, true, Q>(exec, name, in, d, grad, out);
  } else if (p.has_precision || !kSums) {
    if constexpr (kKind != Kind::kDots) {
      error = LaunchPass<kKind, false, true, Q>(exec, name, in, d, grad, out);
    }
  } else if constexpr (kSums) {
    error = LaunchPass<kKind, false, false, Q>(exec, name, in, d, grad, out);
  }
  const bool whole = d.Units() % (int64_t{d.blocks} * d.chunks) == 0;
  if (!error.empty() || !kSums || whole) return error;
  return Launch(name, FinishKernel, dim3(d.groups, kSize / 4), kThreads, 0, exec, in, d,
                grad, out);
}

// Calls run(Q) with a compile-time Q.
template <typename Run>
LaunchError WithQ(const Problem& p, const Run& run) {
  if (p.pose_inner == 5) return run(std::integral_constant<int, 5>{});
  return run(std::integral_constant<int, 4>{});
}

struct Path {
  static constexpr bool kDotsWithScales = false;
  static constexpr int64_t kRowBytes = int64_t{16} << 20;

  template <typename T>
  static std::string Obstacle(const Problem& p, const GpuExec& exec) {
    const Division d = Divide(p, exec, 1);
    const int floats = std::max(StageSize<5>(d), WindowStageSize<true, 5>(d));
    if (2 * floats * static_cast<int>(sizeof(float)) > exec.device.shared) {
      return "a block has too little shared memory";
    }
    return "";
  }

  static int Slots(const Problem& p, const GpuExec& exec, bool backward) {
    return 2 * Divide(p, exec, backward ? 1 : 2).blocks;
  }
  static int Parts(const Problem& p, const GpuExec& exec) {
    const Division d = Divide(p, exec, 2);
    const int64_t groups = CeilDivide(d.children, d.windows);
    return static_cast<int>(std::clamp<int64_t>(2 * exec.device.processors / groups, 1,
                                                CeilDivide(d.positions, kPerStep)));
  }

  static LaunchError Pass(const GpuExec& exec, const char* name, const Inputs& in,
                          const Gradient& grad, const Results& out) {
    return WithQ(in.p, [&](auto q) {
      const auto launch = out.scales != nullptr ? PassOfKind<Kind::kScales, q>
                          : out.dots != nullptr ? PassOfKind<Kind::kDots, q>
                          : out.gradients       ? PassOfKind<Kind::kStatistics, q>
                          : in.p.order == 2     ? PassOfKind<Kind::kSecond, q>
                                                : PassOfKind<Kind::kFirst, q>;
      return launch(exec, name, in, grad, out);
    });
  }

  static LaunchError Votes(const GpuExec& exec, const char* name, const Inputs& in,
                           const Gradient& grad, const VoteSums& sums, int parts) {
    const Division d = Divide(in.p, exec, 1);
    const dim3 grid(CeilDivide(d.children, d.windows), parts);
    return WithQ(in.p, [&](auto q) {
      const auto launch = [&](auto linear) {
        constexpr auto kKernel = VoteKernel<linear, q>;
        const int shared = 2 * WindowStageSize<linear, q>(d) * sizeof(float);
        return Launch<kKernel>(name, grid, kThreads, shared, exec, in, d, grad, sums);
      };
      return in.p.has_linear ? launch(std::true_type{}) : launch(std::false_type{});
    });
  }
};

CAPSOPS_DEFINE_PLANNERS

}  // namespace capsops::capsule_moments::fma
