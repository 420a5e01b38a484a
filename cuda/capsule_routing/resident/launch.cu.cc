// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and launches of the `resident` kernels of capsule routing, for few samples.
#include "cuda/common/launch.cuh"

#include <algorithm>
#include <cstdint>
#include <string>

#include "cc/launch/capsule_routing.h"
#include "cuda/capsule_routing/obstacles.cuh"
#include "cuda/capsule_routing/paths.h"
#include "cuda/capsule_routing/resident/kernels.cuh"

namespace capsops::capsule_routing::resident {

// Limit of a block's input capsules. A thread adds these sequentially, and longer sums
// would be less accurate.
constexpr int64_t kMaxCaps = 64;

// Returns into how many parts, one per warp, the last pass splits an input capsule's
// rows of weights. Minimizes the estimated time: a part costs one step per load, and
// about two for its sums over lanes.
inline int Parts(const Sizes& z) {
  const int loads = CeilDivide(z.columns(), kLanes / z.sharing);
  int best = 1, least = INT32_MAX;
  for (int parts = 1; parts <= std::min(loads, kWarps); ++parts) {
    const int time =
        CeilDivide(z.caps * parts, kWarps) * (CeilDivide(loads, parts) + 2);
    if (time < least) {
      least = time;
      best = parts;
    }
  }
  return best;
}

// The kernels' sizes and a block's bytes of shared memory, or why they refuse.
template <typename A>
struct Fit {
  std::string obstacle;
  Sizes z{};
  bool quads = false;  // whether threads load kQuad elements at once, or one
  int shared = 0;

  Fit(const GpuDevice& device, const Problem& p, bool backward) {
    if (Empty(p)) {
      obstacle = "a dimension is 0";
      return;
    }
    obstacle = TooLarge(p);
    if (!obstacle.empty()) return;
    const int64_t caps = CeilDivide(p.in_caps, int64_t{device.processors});
    if (caps > kMaxCaps) {
      obstacle = "a processor has over " + std::to_string(kMaxCaps) + " input capsules";
      return;
    }
    const int64_t blocks = CeilDivide(p.in_caps, caps);
    // Checks in double, since int may overflow for larger problems.
    const double predictions = 1.0 * p.batch * caps * p.out_caps * p.out_dim;
    if (predictions * sizeof(A) <= device.shared &&
        1.0 * p.batch * caps * p.in_dim * sizeof(A) <= device.shared) {
      z = {static_cast<int>(p.batch),
           static_cast<int>(p.in_caps),
           static_cast<int>(p.out_caps),
           static_cast<int>(p.out_dim),
           static_cast<int>(p.in_dim),
           static_cast<int>(p.iterations),
           p.epsilon(),
           static_cast<int>(blocks),
           static_cast<int>(caps),
           1,
           1};
      quads = p.in_dim % kQuad == 0;
      const int runs = z.in_dim / (quads ? kQuad : 1);
      while (z.sharing < kLanes && z.sharing < runs) z.sharing *= 2;
      if (backward) z.parts = Parts(z);
      Arrays<A> arrays;  // the host needs only their size
      A base;
      for (;; z.parts /= 2) {  // fewer parts need less memory
        const int64_t bytes =
            Divide(z, backward, &base, &arrays) * static_cast<int64_t>(sizeof(A));
        if (bytes <= device.shared) {
          shared = static_cast<int>(bytes);
          return;
        }
        if (z.parts == 1) break;
      }
    }
    obstacle = "what a block keeps does not fit into its shared memory";
  }
};

// Plans the kernel kOfQuads if in_dim is a multiple of kQuad, else kOfAny.
template <typename Plan, typename A, auto kOfQuads, auto kOfAny>
Plan PlanKernel(const char* name, const GpuExec& exec, const Problem& p,
                bool backward) {
  const Fit<A> fit(exec.device, p, backward);
  CAPSOPS_REFUSE_IF(fit.obstacle);
  return Plan::Make(
      int64_t{fit.z.blocks + 1} * fit.z.vector() * sizeof(Message<A>),
      [name, z = fit.z, quads = fit.quads, shared = fit.shared](const GpuExec& exec,
                                                                auto... pointers) {
        return quads ? LaunchCooperative<kOfQuads>(name, z.blocks, kThreads, shared,
                                                   exec, z, pointers...)
                     : LaunchCooperative<kOfAny>(name, z.blocks, kThreads, shared, exec,
                                                 z, pointers...);
      });
}

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  using S = CudaType<T>;
  using A = Accumulator<T>;
  return PlanKernel<ForwardPlan<GpuExec, T>, A, ForwardKernel<S, A, kQuad>,
                    ForwardKernel<S, A, 1>>(kForwardName, exec, p, false);
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& p) {
  using S = CudaType<T>;
  using A = Accumulator<T>;
  return PlanKernel<BackwardPlan<GpuExec, T>, A, BackwardKernel<S, A, kQuad>,
                    BackwardKernel<S, A, 1>>(kBackwardName, exec, p, true);
}

CAPSOPS_INSTANTIATE_PATH(GpuExec)

}  // namespace capsops::capsule_routing::resident
