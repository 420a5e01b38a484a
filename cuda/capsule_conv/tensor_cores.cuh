// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and launches capsule convolution and its input gradient on tensor cores, of
// every pose: float in TF32 or split TF32, float16 and bfloat16.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_TENSOR_CORES_CUH_
#define CAPSOPS_CUDA_CAPSULE_CONV_TENSOR_CORES_CUH_

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "cuda/capsule_conv/mma/product.cuh"
#include "cuda/capsule_conv/tasks.cuh"
#include "cuda/capsule_conv/wgmma/pack.cuh"
#include "cuda/capsule_conv/wgmma/launch.cuh"
#include "cuda/common/memory.cuh"

namespace capsops::capsule_conv::tiled {

// The shape of a kernel without warpgroups: kTiles x kWarps tiles of 16 rows, kColumns
// columns; kBlocks blocks that a multiprocessor should have at once.
template <int kTilesOf, int kColumnsOf, int kWarpsOf, int kBlocksOf>
struct Warps {
  static constexpr int kTiles = kTilesOf, kColumns = kColumnsOf, kWarps = kWarpsOf;
  static constexpr int kBlocks = kBlocksOf, kThreads = kWarps * kLanes;
  static constexpr int kCarriers = kThreads;
  static constexpr int kStages = 3;
  static constexpr int kStageWords = 4096;
  static constexpr int kRate = 360;  // products in a cycle, as measured
};
using Narrow8 = Warps<2, 8, 8, 2>;
using Narrow16 = Warps<2, 16, 8, 2>;
using Narrow32 = Warps<4, 32, 4, 3>;
using Wide = Warps<4, 64, 4, 2>;

// How many blocks a multiprocessor has shared memory for.
inline int Resident(const Plan& plan) {
  return (CurrentDevice().shared + 1024) / (plan.shared + 1024);
}

// Products on tensor cores for one.
template <Tf32 kTf32>
constexpr int kProductsOf = kParts<kRowTf32<kTf32>> + kParts<kFilterTf32<kTf32>> - 1;

// Bytes of shared memory.
template <typename S, Tf32 kTf32, typename C>
int64_t SharedBytes(const Product& p) {
  const int64_t words = int64_t{p.buffers} * p.order.planes * p.patch.plane +
                        C::kStages * p.stage_steps * StepWords<kTf32>(C::kColumns) +
                        TableQuads<S>(p.order) + p.patch.pixels;
  return words * 4;
}

// Fills in how to do `task` by tiles of y x x lattice points, in chunks of at most
// `planes` planes.
template <typename S, Tf32 kTf32, typename C>
Plan PlanTile(const Task& task, int y, int x, int planes) {
  Plan plan;
  Product& p = plan.product;
  p = TiledProduct(task, y, x, C::kColumns);
  const int all = p.source.planes(), rows = p.source.rows;
  const int taps = p.vertical.taps * p.horizontal.taps;
  // Where no tap reads the source, there is nothing to bring, and zeros to write.
  p.order.chunks = taps > 0 ? static_cast<int>(CeilDivide(all, planes)) : 1;
  p.order.planes = taps > 0 ? static_cast<int>(CeilDivide(all, p.order.chunks)) : 1;
  p.order.steps = static_cast<int>(CeilDivide(taps * p.order.planes, kStepQuads<S>));
  p.patch =
      MakePatch<S>(p.vertical, p.horizontal, rows, std::max(p.vertical.taps, 1),
                   std::max(p.horizontal.taps, 1), std::is_same_v<S, float> ? 16 : 8);
  p.buffers = p.order.chunks > 1 ? 2 : 1;
  p.by_row_tiles = Divisor(static_cast<int>(CeilDivide(x * rows, kTileRows)));
  p.stage_steps = std::max(
      1, std::min(p.order.steps, C::kStageWords / StepWords<kTf32>(C::kColumns)));
  const int64_t shared = SharedBytes<S, kTf32, C>(p);
  const int most = CurrentDevice().shared;
  const int64_t blocks = CountTiles(p);
  if (shared > most || p.order.planes * rows > C::kCarriers || blocks > INT32_MAX) {
    return plan;
  }
  plan.shared = static_cast<int>(shared);
  plan.blocks = blocks;
  // What a multiprocessor does in a cycle: kRate multiplications of TF32 or twice those
  // of a 16-bit type; 32 bytes copied. Two thirds where it has fewer blocks than it
  // should.
  const int tiles = y * static_cast<int>(CeilDivide(x * rows, kTileRows));
  const double products = kTileRows * kQuad * 1.0 * taps * all * C::kColumns *
                          kProductsOf<kTf32> /
                          ((std::is_same_v<S, float> ? 1 : 2) * C::kRate);
  const double copied = 1.0 * p.patch.pixels * rows * all * kQuad * sizeof(S) / 32;
  const double alone = Resident(plan) >= C::kBlocks ? 1 : 1.5;
  plan.cost = (tiles * products * alone + copied + 3000) *
              CeilDivide(plan.blocks, CurrentDevice().processors);
  return plan;
}

// The cheapest tile of all worth a look.
template <typename S, Tf32 kTf32, typename C>
Plan FindPlan(const Task& task) {
  constexpr int kMost = C::kTiles * C::kWarps;
  const int rows = task.source.rows, height = task.vertical.points;
  Plan best;
  int before = 0;
  for (int row_tiles = 1; row_tiles <= kMost; ++row_tiles) {
    const int x = std::min(row_tiles * kTileRows / rows, task.horizontal.points);
    if (x == before) continue;
    before = x;
    const int most = kMost / static_cast<int>(CeilDivide(x * rows, kTileRows));
    for (int bands = (height - 1) / most + 1; bands <= height; bands *= 2) {
      const int y = (height - 1) / bands + 1;
      Plan plan;
      for (const int planes : {8, 4, 2, 1}) {
        plan = PlanTile<S, kTf32, C>(task, y, x, planes);
        if (plan.blocks > 0 && Resident(plan) >= C::kBlocks) break;
      }
      if (plan.blocks > 0 && (best.blocks == 0 || plan.cost < best.cost)) best = plan;
      if (plan.blocks > 16 * CurrentDevice().processors) break;
    }
  }
  return best;
}

// The same, remembered: networks ask for the same few again and again.
template <typename S, Tf32 kTf32, typename C>
Plan PlanTask(const Task& task) {
  static Memory<Task, Plan> memory;
  return memory.Recall(task, [&] { return FindPlan<S, kTf32, C>(task); });
}

// Calls `then` with the kernel's shape and the plan for a task: plans of no blocks do
// not fit.
template <typename S, Tf32 kTf32, typename Then>
auto WithPlan(const Task& task, const Then& then) {
  const int columns = task.target.channels * task.target.columns;
  if (columns <= 8) return then(Narrow8(), PlanTask<S, kTf32, Narrow8>(task));
  if (columns <= 16) return then(Narrow16(), PlanTask<S, kTf32, Narrow16>(task));
  if constexpr (kTf32 != Tf32::kSplit) {
    if (HasWarpgroups() && task.source.columns % kQuad == 0) {
      if (const auto choice = PlanWarpgroups<S, kTf32>(task); choice.plan.blocks > 0) {
        return WithWarpgroups<S, kTf32>(
            choice.number, [&](auto config) { return then(config, choice.plan); });
      }
    }
  }
  if (columns <= 32 || (columns > 64 && columns <= 96)) {
    return then(Narrow32(), PlanTask<S, kTf32, Narrow32>(task));
  }
  return then(Wide(), PlanTask<S, kTf32, Wide>(task));
}

// Bytes of a task's packed filter, -1 where the task does not fit.
template <typename S, Tf32 kTf32>
int64_t PackedBytes(const Task& task) {
  return WithPlan<S, kTf32>(task, [&](auto config, const Plan& plan) -> int64_t {
    if (plan.blocks == 0) return -1;
    constexpr int kWords = kByWarpgroups<decltype(config)>
                               ? UnitStepWords(config.kColumns)
                               : StepWords<kTf32>(config.kColumns);
    return PackedSteps(task.filter, plan.product.order) * kWords * 4;
  });
}

template <typename S, Tf32 kTf32, typename Weights>
LaunchError PackTask(const GpuExec& exec, const Task& task, const Weights& weights,
                     uint32_t* packed) {
  return WithPlan<S, kTf32>(task, [&](auto config, const Plan& plan) -> LaunchError {
    const Product& p = plan.product;
    if (p.order.steps == 0) return {};
    if constexpr (kByWarpgroups<decltype(config)>) {
      return PackUnits<typename decltype(config)::O>(exec, task.filter, p,
                                                     config.kColumns, weights, packed);
    } else {
      return PackFilter<S, kTf32>(exec, task.filter, p.order, p.vertical, p.horizontal,
                                  config.kColumns, weights, packed);
    }
  });
}

// Follows PackTask on the stream. Results are multiplied by `scale`.
template <typename S, Tf32 kTf32>
LaunchError MultiplyPacked(const GpuExec& exec, const Task& task, const S* source,
                           const uint32_t* packed, S* target, const Scale& scale = {}) {
  return WithPlan<S, kTf32>(task, [&](auto config, const Plan& plan) -> LaunchError {
    using C = decltype(config);
    Product product = plan.product;
    product.scale = scale;
    if constexpr (kByWarpgroups<C>) {
      return LaunchWarpgroups<S, C>(exec, plan, product, source, packed, target);
    } else {
      constexpr auto kKernel =
          ProductKernel<S, kTf32, C::kTiles, C::kColumns, C::kWarps, C::kBlocks>;
      if (const auto error = CheckGrid("CapsuleConv", plan.blocks); !error.empty()) {
        return error;
      }
      if (const auto error = AllowShared<kKernel>("CapsuleConv"); !error.empty()) {
        return error;
      }
      return LaunchOverlapped("CapsuleConv", kKernel, dim3(plan.blocks), C::kThreads,
                              plan.shared, exec, product, source, packed, target);
    }
  });
}

// The products that other convolutions share: `extern template` in their sources.
#define CAPSOPS_SHARED_PRODUCT(KEYWORDS, S, TF32)     \
  KEYWORDS LaunchError MultiplyPacked<S, Tf32::TF32>( \
      const GpuExec&, const Task&, const S*, const uint32_t*, S*, const Scale&);
#define CAPSOPS_SHARED_PRODUCTS(KEYWORDS)           \
  CAPSOPS_SHARED_PRODUCT(KEYWORDS, float, kRounded) \
  CAPSOPS_SHARED_PRODUCT(KEYWORDS, __half, kExact)  \
  CAPSOPS_SHARED_PRODUCT(KEYWORDS, __nv_bfloat16, kExact)

// Calls `then` with the precision that products of T have; `kFull` is that of float
// where TF32 is not allowed.
template <typename T, Tf32 kFull = Tf32::kSplit, typename Then>
auto WithPrecision(const GpuExec& exec, const Then& then) {
  if constexpr (!std::is_same_v<T, float>) {
    return then(std::integral_constant<Tf32, Tf32::kExact>());
  } else if (exec.tf32) {
    return then(std::integral_constant<Tf32, Tf32::kRounded>());
  } else {
    return then(std::integral_constant<Tf32, kFull>());
  }
}

// Bytes of workspace that `tasks`, done one after the other, need; -1 where they do not
// fit, as those of double never do.
template <typename T, Tf32 kFull = Tf32::kSplit>
int64_t Workspace(const GpuExec& exec, const std::vector<Task>& tasks) {
  if constexpr (std::is_same_v<T, double>) {
    return -1;
  } else {
    return WithPrecision<T, kFull>(exec, [&](auto precision) {
      int64_t most = tasks.empty() ? -1 : 0;
      for (const Task& task : tasks) {
        const int64_t bytes = PackedBytes<CudaType<T>, precision.value>(task);
        if (bytes < 0) return bytes;
        most = std::max(most, bytes);
      }
      return most;
    });
  }
}

template <typename T>
LaunchError Run(const GpuExec& exec, const std::vector<Task>& tasks, const T* source,
                const T* weights, T* target, void* workspace) {
  return WithPrecision<T>(exec, [&](auto precision) -> LaunchError {
    for (const Task& task : tasks) {
      uint32_t* const packed = static_cast<uint32_t*>(workspace);
      LaunchError error =
          PackTask<CudaType<T>, precision.value>(exec, task, Native(weights), packed);
      if (error.empty()) {
        error = MultiplyPacked<CudaType<T>, precision.value>(exec, task, Native(source),
                                                             packed, Native(target));
      }
      if (!error.empty()) return error;
    }
    return {};
  });
}

}  // namespace capsops::capsule_conv::tiled

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_TENSOR_CORES_CUH_
