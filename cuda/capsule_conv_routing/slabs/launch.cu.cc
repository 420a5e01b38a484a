// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans convolution with routing by slabs on a GPU.
#include "cuda/common/launch.cuh"

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cc/launch/capsule_conv_slabs_plan.h"
#include "cc/launch/round.h"
#include "cuda/capsule_conv_routing/paths.h"
#include "cuda/capsule_conv_routing/slabs/copies.h"
#include "cuda/capsule_conv_routing/slabs/pixels.h"
#include "cuda/capsule_conv_routing/slabs/products.h"

namespace capsops::capsule_conv_routing::slabs {

// Returns why no kernel can route such pixels, or "".
std::string Refusal(const Problem& p) {
  const int64_t largest = std::max({p.types, p.parents, p.out_dim});
  if (largest <= kMostSize || IsEmpty(p)) return "";
  return "a dimension of " + std::to_string(largest) + " is too large, at most " +
         std::to_string(kMostSize) + " are possible";
}

// Returns the smallest power of two that is at least `least` or at least `most`.
int PowerOfTwo(int64_t least, int64_t most) {
  int power = 1;
  while (power < least && power < most) power *= 2;
  return power;
}

// Sets the offsets of arrays, which begin at multiples of 16 bytes.
void Arrange(bool gradient, Tiling* z) {
  const int64_t columns = int64_t{z->parents} * z->dim;
  const int64_t pairs = int64_t{z->types} * z->parents;
  const int64_t kept = gradient ? z->iterations : 1;
  z->pixel = 0;
  const auto take = [&](int64_t count) {
    const int64_t at = z->pixel;
    z->pixel += RoundUp(count, 4);
    return at;
  };
  z->votes = take(z->shared ? z->types * columns : 0);
  z->sums = take(kept * columns);
  z->totals = take(kept * columns);
  z->shares = take(kept * pairs);
  z->share_grads = take(gradient ? kept * pairs : 0);
  z->output_grads = take(gradient ? columns : 0);
  z->bias_sums = take(gradient ? columns : 0);
  z->logits_sums = take(gradient ? pairs : 0);
  z->first_shares = z->pixels * z->pixel;
  z->block = z->first_shares + RoundUp(pairs, 4);
}

// Plans votes in registers, with `quads` quads per lane and type. Returns whether the
// lanes of all parents fit in a warp, a lane's votes in its registers, and the results
// that a block keeps in shared memory; otherwise `z` is undefined.
bool TryLanes(const GpuDevice& device, bool gradient, int quads, Tiling* z) {
  constexpr int kWarps = kLaneThreads / 32, kMostQuads = 16;
  const int lanes = z->dim / (4 * quads);
  if (lanes * 4 * quads != z->dim || PowerOfTwo(lanes, 32) != lanes ||
      int64_t{z->parents} * lanes > 32) {
    return false;
  }
  z->quads = quads;
  z->lanes = lanes;
  z->group = PowerOfTwo(z->parents * lanes, 32);
  z->divided = z->types * quads > kMostQuads;
  const int64_t types = z->divided ? CeilDivide(z->types, kWarps) : z->types;
  z->lane_types = std::max(PowerOfTwo(types, kMostQuads), quads == 4 ? 2 : 4);
  z->pixels = (z->divided ? 32 : kLaneThreads) / z->group;
  const int64_t shared = z->ExchangedBytes() + (gradient ? z->KeptBytes() : 0);
  if (types * quads > kMostQuads || shared > device.shared) return false;
  // CUDA reserves 1 KB of shared memory per block.
  const int64_t resident = std::min<int64_t>(LaneBlocks(z->lane_types, quads, gradient),
                                             device.processor_shared / (shared + 1024));
  z->blocks = static_cast<int>(std::max<int64_t>(resident, 1) * device.processors);
  return true;
}

// Plans votes in registers. Lanes with eight quads of votes are the fastest, as long as
// a multiprocessor has three blocks: the more votes a lane has, the fewer lanes repeat
// all steps but the products. If that is not possible, takes the fewest quads that are,
// and so the most lanes per parent; or leaves z->quads at 0.
void PlanLanes(const GpuDevice& device, bool gradient, Tiling* z) {
  constexpr int kGoodQuads = 8;
  for (const int quads : {4, 2, 1}) {
    if (TryLanes(device, gradient, quads, z) && !z->divided &&
        z->lane_types * quads <= kGoodQuads && z->blocks >= 3 * device.processors) {
      return;
    }
  }
  for (const int quads : {1, 2, 4}) {
    if (TryLanes(device, gradient, quads, z)) return;
  }
  z->quads = 0;
}

// Plans the routing, or its gradient, with sums of type A.
template <typename A>
Tiling PlanTiling(const GpuDevice& device, const Problem& p, bool gradient) {
  constexpr int kVector = 16 / sizeof(A), kThreads = 128;
  constexpr int64_t kFewBytes = 32 << 10;  // limit of a block with several pixels
  constexpr int64_t kSpaceBytes = 16 << 20, kPartBytes = 8 << 20;
  Tiling z{};
  z.types = static_cast<int>(p.types);
  z.parents = static_cast<int>(p.parents);
  z.dim = static_cast<int>(p.out_dim);
  z.iterations = static_cast<int>(p.iterations);
  z.leaky = p.leaky != 0;
  z.epsilon = p.epsilon();
  if (std::is_same_v<A, float>) PlanLanes(device, gradient, &z);
  if (z.quads > 0) return z;
  z.vector = z.dim % kVector == 0 ? kVector : 1;
  z.lanes = PowerOfTwo(CeilDivide(z.dim, z.vector), 32);
  z.row_lanes = PowerOfTwo(z.parents, 32);
  const auto bytes = [&] { return z.block * static_cast<int64_t>(sizeof(A)); };
  z.shared = true;
  for (z.pixels = kMostPixels; z.pixels >= 1; z.pixels /= 2) {
    Arrange(gradient, &z);
    if (int64_t{z.pixels} * z.parents * z.lanes <= kThreads && bytes() <= kFewBytes) {
      break;
    }
  }
  if (z.pixels == 0) {
    z.pixels = 1;
    Arrange(gradient, &z);
  }
  z.shared = bytes() + kPlaceBytes <= device.shared;
  if (!z.shared) Arrange(gradient, &z);
  const int64_t threads = int64_t{z.pixels} * z.parents * z.lanes;
  z.threads = static_cast<int>(std::min<int64_t>(RoundUp(threads, 32), kMostThreads));
  // As many blocks as fit on the multiprocessors, which hold 2048 threads each, or
  // fewer if they need much memory.
  int64_t blocks = 2048 / z.threads;
  if (z.shared) {
    blocks = std::min<int64_t>(
        blocks, device.processor_shared / (bytes() + kPlaceBytes + 1024));
  }
  blocks = std::max<int64_t>(blocks, 1) * device.processors;
  if (!z.shared) blocks = std::min(blocks, kSpaceBytes / bytes());
  if (gradient) {
    const int64_t part = (int64_t{z.types} + z.dim) * z.parents * sizeof(A);
    blocks = std::min(blocks, kPartBytes / part);
  }
  z.blocks = static_cast<int>(std::max<int64_t>(blocks, 1));
  return z;
}

// The `Steps` of a GPU, as capsule_conv_slabs_plan.h describes them.
template <typename T>
struct GpuSteps : Copies<T> {
  using Exec = GpuExec;
  using Own = std::conditional_t<std::is_same_v<T, double>, NoProducts, OwnProducts<T>>;

  static capsule_conv::Problem Convolution(const Problem& p, const Slab& slab) {
    return ConvOf(p, slab);
  }

  // A slab's votes should stay in the L2 cache, which is larger in newer GPUs.
  static int64_t SlabBytes(const GpuExec& exec) {
    return exec.device.capability >= 90 ? 32 << 20 : 16 << 20;
  }

  static LaunchError Zero(const GpuExec& exec, const char* op, void* data,
                          int64_t bytes) {
    return capsops::Zero(exec, op, static_cast<char*>(data), bytes);
  }

  static int64_t Space(const GpuExec& exec, const Problem& p, bool gradient) {
    const Tiling z = PlanTiling<Accumulator<T>>(exec.device, p, gradient);
    return z.shared || z.quads > 0 ? 0 : z.blocks * z.block;
  }
  static bool RouteMakesVotes(const Problem&) { return false; }

  static LaunchError Route(const GpuExec& exec, const char* op, const Problem& p,
                           const Places& places, const T*, const T*, const T* votes,
                           const T* bias, const T* logits, T* output,
                           Accumulator<T>* space) {
    const Tiling z = PlanTiling<Accumulator<T>>(exec.device, p, false);
    if constexpr (!std::is_same_v<T, double>) {
      if (z.quads > 0) {
        return RouteLanes(exec, op, z, places, votes, bias, logits, output);
      }
    }
    return slabs::Route(exec, op, z, places, votes, bias, logits, output, space);
  }

  // A part holds the gradients of bias and logits.
  static int64_t Parts(const GpuExec& exec, const Problem& p) {
    return PlanTiling<Accumulator<T>>(exec.device, p, true).blocks *
           (Columns(p) + p.types * p.parents);
  }
  static LaunchError RouteBackward(const GpuExec& exec, const char* op,
                                   const Problem& p, const Places& places, const T*,
                                   const T*, const T* grad, const T* bias,
                                   const T* logits, T* votes, Accumulator<T>* parts,
                                   Accumulator<T>* space) {
    const Tiling z = PlanTiling<Accumulator<T>>(exec.device, p, true);
    if constexpr (!std::is_same_v<T, double>) {
      if (z.quads > 0) {
        return RouteLanesBackward(exec, op, z, places, grad, bias, logits, votes,
                                  parts);
      }
    }
    return slabs::RouteBackward(exec, op, z, places, grad, bias, logits, votes, parts,
                                space);
  }
  static LaunchError AddParts(const GpuExec& exec, const char* op, const Problem& p,
                              const Accumulator<T>* parts, T* grad_bias,
                              T* grad_logits) {
    return Copies<T>::AddParts(
        exec, op, PlanTiling<Accumulator<T>>(exec.device, p, true).blocks, Columns(p),
        p.types * p.parents, parts, grad_bias, grad_logits);
  }
};

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  const std::string refusal = Refusal(p);
  if (!refusal.empty()) return ForwardPlan<GpuExec, T>::Refuse(refusal);
  return PlanForwardBySlabs<GpuSteps<T>, T>(exec, p);
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& p) {
  const std::string refusal = Refusal(p);
  if (!refusal.empty()) return BackwardPlan<GpuExec, T>::Refuse(refusal);
  return PlanBackwardBySlabs<GpuSteps<T>, T>(exec, p);
}

CAPSOPS_INSTANTIATE_PLANNER(PlanForward, ForwardPlan, GpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanBackward, BackwardPlan, GpuExec)

}  // namespace capsops::capsule_conv_routing::slabs
