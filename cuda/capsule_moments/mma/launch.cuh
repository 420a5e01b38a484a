// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule moments of 4 x 4 poses, or 4 x 5 with coordinates, and up to 32 parents: the
// launches.
#ifndef CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_LAUNCH_CUH_
#define CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_LAUNCH_CUH_

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cuda/capsule_moments/mma/pass.cuh"
#include "cuda/capsule_moments/mma/weights.cuh"
#include "cuda/capsule_moments/plans.cuh"

namespace capsops::capsule_moments::mma {

inline Division Divide(const Problem& p, const GpuExec& exec, int blocks_each) {
  Division d;
  d.outs = static_cast<int>(p.out_channels);
  for (d.lanes_log2 = 3; d.lanes() < d.outs;) ++d.lanes_log2;
  d.positions = static_cast<int>(Positions(p));
  d.children = static_cast<int>(Children(p));
  d.groups = static_cast<int>(CeilDivide(d.positions, d.windows()));
  d.chunks = static_cast<int>(CeilDivide(d.children, kChunk));
  d.blocks = static_cast<int>(
      std::min<int64_t>(d.Units(), int64_t{blocks_each} * exec.device.processors));
  return d;
}

// Calls run(second, logit, Q), what kernels are made for, as constants.
template <typename Run>
LaunchError WithVariant(const Problem& p, bool second, const Run& run) {
  const auto with_q = [&](auto second, auto logit) {
    if (p.pose_inner == 5) return run(second, logit, std::integral_constant<int, 5>{});
    return run(second, logit, std::integral_constant<int, 4>{});
  };
  const auto with_logit = [&](auto second) {
    if (p.has_linear) return with_q(second, std::integral_constant<int, 2>{});
    if (p.has_precision) return with_q(second, std::integral_constant<int, 1>{});
    return with_q(second, std::integral_constant<int, 0>{});
  };
  return second ? with_logit(std::true_type{}) : with_logit(std::false_type{});
}

// Makes one pass, and adds up what its blocks leave.
template <bool kGradient>
LaunchError Pass(const GpuExec& exec, const char* name, const Inputs& in,
                 const Gradient& grad, Results out) {
  const Problem& p = in.p;
  const Division d = Divide(p, exec, kGradient || p.has_linear ? 1 : 2);
  out.gradients = kGradient;
  const auto run = [&](auto second, auto logit, auto q) -> LaunchError {
    constexpr auto kKernel = PassKernel<kGradient, second, logit, q>;
    const LaunchError error = AllowShared<kKernel>(exec, name);
    if (!error.empty()) return error;
    const int shared = SharedSize<kGradient, q>(d) * sizeof(float);
    kKernel<<<d.blocks, kThreads, shared, exec.stream>>>(in, d, grad, out);
    return CheckLaunch(name);
  };
  const bool sums = out.scales == nullptr && out.dots == nullptr;
  const LaunchError error = WithVariant(p, p.order == 2 && (kGradient || sums), run);
  const bool whole = d.Units() % (int64_t{d.blocks} * d.chunks) == 0;
  if (!error.empty() || !sums || whole) return error;
  FinishKernel<<<dim3(d.groups, kSize / 4), kThreads, 0, exec.stream>>>(in, d, grad,
                                                                        out);
  return CheckLaunch(name);
}

struct Path {
  // The whole workspace stays under 32 MiB, beyond which TensorFlow may allocate 64.
  static constexpr int64_t kRowBytes = int64_t{19} << 20;

  template <typename T>
  static std::string Obstacle(const Problem& p, const GpuExec& exec) {
    if (std::is_same_v<T, float> && !exec.tf32) return "TF32 is not allowed";
    const Division d = Divide(p, exec, 1);
    const int floats = p.pose_inner == 5
                           ? std::max(SharedSize<true, 5>(d), Tile<5, 5>::Floats(d))
                           : std::max(SharedSize<true, 4>(d), Tile<4, 5>::Floats(d));
    if (floats * static_cast<int>(sizeof(float)) > exec.device.shared) {
      return "a block has too little shared memory";
    }
    return "";
  }

  static int Blocks(const Problem& p, const GpuExec& exec, bool backward) {
    return Divide(p, exec, backward ? 1 : 2).blocks;
  }
  static int Parts(const Problem& p, const GpuExec& exec) {
    const Division d = Divide(p, exec, 1);
    const int64_t groups = CeilDivide(d.children, BlockChildren(d));
    return static_cast<int>(std::clamp<int64_t>(exec.device.processors / groups, 1,
                                                CeilDivide(d.positions, kFour)));
  }

  static LaunchError Scales(const GpuExec& exec, const char* name, const Inputs& in,
                            float2* scales) {
    Results out{};
    out.scales = scales;
    return Pass<false>(exec, name, in, {}, out);
  }
  static LaunchError Dots(const GpuExec& exec, const char* name, const Inputs& in,
                          const Gradient& grad, float* dots) {
    Results out{};
    out.dots = dots;
    return Pass<true>(exec, name, in, grad, out);
  }

  static LaunchError Sum(const GpuExec& exec, const char* name, const Inputs& in,
                         const Moments<float>& to, float* partial) {
    Results out{};
    out.mass = to.mass, out.first = to.first, out.second = to.second;
    out.partial = partial;
    return Pass<false>(exec, name, in, {}, out);
  }

  static LaunchError Differentiate(const GpuExec& exec, const char* name,
                                   const Inputs& in, const Gradient& grad,
                                   const Moments<const float>& moments,
                                   const StatisticGradients<float>& to,
                                   const Rows& rows, int parts, float* partial) {
    Results out{};
    out.bias = to.bias, out.linear = to.linear;
    out.precision = to.precision, out.center = to.center;
    out.given_mass = moments.mass, out.given_first = moments.first;
    out.facts = rows.facts, out.activations = rows.activations, out.poses = rows.poses;
    out.partial = partial;
    const LaunchError error = Pass<true>(exec, name, in, grad, out);
    if (!error.empty()) return error;
    const WeightSums sums{rows.facts, rows.weights, rows.prior, rows.begins};
    const Division d = Divide(in.p, exec, 1);
    const dim3 grid(CeilDivide(d.children, BlockChildren(d)), parts);
    const auto run = [&](auto second, auto logit, auto q) -> LaunchError {
      constexpr auto kKernel = WeightKernel<second, logit, q>;
      const LaunchError denied = AllowShared<kKernel>(exec, name);
      if (!denied.empty()) return denied;
      const int shared = Tile<q, kTensors(second, logit)>::Floats(d) * sizeof(float);
      kKernel<<<grid, kThreads, shared, exec.stream>>>(in, d, grad, sums);
      return CheckLaunch(name);
    };
    return WithVariant(in.p, in.p.order == 2, run);
  }
};

}  // namespace capsops::capsule_moments::mma

#endif  // CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_LAUNCH_CUH_
