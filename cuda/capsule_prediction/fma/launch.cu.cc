// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and launches the kernels of fma/forward.cuh and fma/backward.cuh.
#include "cuda/common/launch.cuh"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "cc/launch/capsule_prediction.h"
#include "cuda/capsule_prediction/fma/backward.cuh"
#include "cuda/capsule_prediction/fma/forward.cuh"
#include "cuda/capsule_prediction/paths.h"
#include "cuda/common/types.cuh"

namespace capsops::capsule_prediction::fma {
namespace {

template <typename T, int K, int V>
LaunchError LaunchForward(const GpuExec& exec, const Sizes& z, int64_t blocks,
                          const T* input, const T* weights, T* output) {
  const int64_t tiles = CeilDivide(z.columns, kLanes * V);
  return Launch(Forward::kName, ForwardKernel<CudaType<T>, Accumulator<T>, K, V>,
                blocks, kForwardWarps * kLanes, 0, exec, z, tiles, input, weights,
                output);
}

// Whether rows of `length` elements from these pointers on are whole 16-byte words.
template <typename T>
bool Words(int64_t length, std::initializer_list<const T*> pointers) {
  return length * sizeof(T) % 16 == 0 &&
         std::all_of(pointers.begin(), pointers.end(), Aligned16);
}

// Returns the division for V columns per lane; `groups` is 0 if a block has too few
// warps.
Division Divide(const Problem& p, int v) {
  const auto tiles = [](int64_t count) {
    // Rounds up to a power of two, which divides the warps. More than kMaxBackwardWarps
    // tiles are refused.
    int64_t power = 1;
    while (power < count && power <= kMaxBackwardWarps) power *= 2;
    return static_cast<int>(power);
  };
  Division d{tiles(CeilDivide(p.out_caps * p.out_dim, kLanes * v)),
             tiles(CeilDivide(p.in_dim, kBackwardK)), 0};
  const int side_by_side = d.column_tiles * d.k_tiles;
  d.groups = (side_by_side > kBackwardWarps ? kMaxBackwardWarps : kBackwardWarps) /
             side_by_side;
  return d;
}

template <typename T, int V, bool kWords, int kWarps>
LaunchError LaunchBackward(const GpuExec& exec, const Sizes& z, const Division& d,
                           const T* grad, const T* input, const T* weights,
                           T* grad_input, T* grad_weights) {
  using A = Accumulator<T>;
  constexpr int kRings =
      kWarps * kRing * kPerStep * (kLanes * V + kBackwardK) * sizeof(T);
  constexpr int kFold = kWarps / 2 * V * kBackwardK * kLanes * sizeof(A);
  constexpr int kPartial = kRing * kPerStep * kWarps * kBackwardK * sizeof(A);
  constexpr int kShared = std::max(kRings, kFold);
  static_assert(kShared + kPartial <= 48 << 10, "needs cudaFuncSetAttribute");
  return Launch(Backward::kName, BackwardKernel<CudaType<T>, A, V, kWords, kWarps>,
                z.in_caps, kWarps * kLanes, kShared, exec, z, d, grad, input, weights,
                grad_input, grad_weights);
}

// Returns the largest V up to `max_v` among those that waste the fewest lanes.
int ChooseV(int64_t columns, int max_v) {
  int best = 1;
  for (int v : {2, 4, 5}) {
    const auto padded = [&](int u) { return RoundUp(columns, kLanes * u); };
    if (v <= max_v && padded(v) <= padded(best)) best = v;
  }
  return best;
}

// The largest V whose V K weights take at most 320 (forward) or 160 bytes of a lane's
// registers.
template <typename T>
constexpr int kForwardMaxV(int k) {
  return 320 / sizeof(Accumulator<T>) / k;
}
template <typename T>
constexpr int kBackwardMaxV = 160 / int{sizeof(Accumulator<T>)} / kBackwardK;

Sizes MakeSizes(const Problem& p) {
  return {p.batch, p.in_caps, p.out_caps * p.out_dim, static_cast<int>(p.in_dim),
          false};
}

// The largest in_dim of the forward kernel.
constexpr int64_t kMaxForwardK = 32;

}  // namespace

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec&, const Problem& p) {
  using Plan = ForwardPlan<GpuExec, T>;
  if (p.in_dim > kMaxForwardK) {
    return Plan::Refuse("in_dim is over " + std::to_string(kMaxForwardK));
  }
  const auto with_k = [z = MakeSizes(p)](auto k) {
    constexpr int kDepth = k, kMax = kForwardMaxV<T>(kDepth);
    const int best_v = ChooseV(z.columns, kMax);
    const int64_t blocks = z.in_caps * CeilDivide(z.columns, kLanes * best_v) *
                           CeilDivide(z.batch, kForwardSamples);
    CAPSOPS_REFUSE_IF(GridRefusal(blocks));
    return Plan::Make(0,
                      [=](const GpuExec& exec, const T* input, const T* weights,
                          T* output, void*) -> LaunchError {
                        if (blocks == 0) return {};
                        Sizes sizes = z;
                        sizes.vector = z.in_dim == kDepth && Words(z.in_dim, {weights});
                        return WithConstant<1, 2, 4, 5>(best_v, [&](auto v) {
                          constexpr int kV = std::min<int>(v, kMax);
                          return LaunchForward<T, kDepth, kV>(exec, sizes, blocks,
                                                              input, weights, output);
                        });
                      });
  };
  return WithConstant<8, 16, kMaxForwardK>(p.in_dim, with_k);
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec&, const Problem& p) {
  using Plan = BackwardPlan<GpuExec, T>;
  const Sizes z = MakeSizes(p);
  const int best_v = ChooseV(z.columns, kBackwardMaxV<T>);
  const Division d = Divide(p, best_v);
  if (z.columns == 0) return Plan::Refuse("there are no output elements");
  if (d.groups == 0) return Plan::Refuse("a block has too few warps for the columns");
  CAPSOPS_REFUSE_IF(GridRefusal(z.in_caps));
  return Plan::Make(
      0,
      [p, z, d, best_v](const GpuExec& exec, const T* grad, const T* input,
                        const T* weights, T* grad_input, T* grad_weights,
                        void*) -> LaunchError {
        if (z.in_caps == 0) return {};
        Sizes sizes = z;
        sizes.vector = p.in_dim % kBackwardK == 0 &&
                       Words(p.in_dim, {input, weights}) && Aligned16(grad_weights);
        const bool words = sizes.vector && Words(z.columns, {grad});
        return WithConstant<1, 2, 4, 5>(best_v, [&](auto any_v) {
          constexpr int v = std::min<int>(any_v, kBackwardMaxV<T>);
          constexpr int kFew = kBackwardWarps, kMany = kMaxBackwardWarps;
          const bool few = d.column_tiles * d.k_tiles <= kFew;
          const auto launch = words ? few ? LaunchBackward<T, v, true, kFew>
                                          : LaunchBackward<T, v, true, kMany>
                              : few ? LaunchBackward<T, v, false, kFew>
                                    : LaunchBackward<T, v, false, kMany>;
          return launch(exec, sizes, d, grad, input, weights, grad_input, grad_weights);
        });
      });
}

CAPSOPS_INSTANTIATE_PATH(GpuExec)

}  // namespace capsops::capsule_prediction::fma
