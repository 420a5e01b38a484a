// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and launches the filter's gradient on tensor cores.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_MMA_WEIGHTS_LAUNCH_CUH_
#define CAPSOPS_CUDA_CAPSULE_CONV_MMA_WEIGHTS_LAUNCH_CUH_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/launch/capsule_conv.h"
#include "cuda/capsule_conv/fma/product.cuh"
#include "cuda/capsule_conv/tensor_cores.cuh"
#include "cuda/capsule_conv/mma/weights.cuh"
#include "cuda/common/memory.cuh"

namespace capsops::capsule_conv::tiled {

// A kernel's shape: each warp has kTiles tiles of 16 rows, kProducts of 8 columns.
template <int kTilesOf, int kProductsOf>
struct WeightConfig {
  static constexpr int kTiles = kTilesOf, kProducts = kProductsOf;
  static constexpr int kRowQuads = kTiles * 4 * kWeightWarps;
  static constexpr int kColumnQuads = kProducts * 2;
};

// The gradient as a kernel does it; no blocks where it does not fit.
struct WeightPlan {
  WeightProduct product;
  int tiles = 0;  // WeightConfig::kTiles
  int64_t blocks = 0;
  int shared = 0;
  double cost = 0;  // cycles, roughly

  int64_t PartsBytes() const { return product.splits * product.weights * 4; }
};

// Makes row blocks of `quads` quads, and the patch that holds what the widest needs.
template <typename S>
void CutRows(int quads, WeightProduct* p) {
  const int of_chunk = p->chunk_planes * p->taps(), width = p->horizontal.taps;
  p->quads = quads;
  p->row_blocks = static_cast<int>(CeilDivide(of_chunk, quads));
  int y_taps = 1, x_taps = 1;
  for (int block = 0; block < p->row_blocks; ++block) {
    const int first = block * quads / p->chunk_planes;
    const int last = (std::min((block + 1) * quads, of_chunk) - 1) / p->chunk_planes;
    const int height = last / width - first / width + 1;
    y_taps = std::max(y_taps, height);
    x_taps = std::max(x_taps, height > 1 ? width : last - first + 1);
  }
  p->input_patch =
      MakePatch<S>(p->vertical, p->horizontal, p->input.rows, y_taps, x_taps, 16);
}

// Fills in how many blocks share the lattice, and the cost.
template <typename S, Tf32 kTf32, typename C>
void CutLattice(WeightPlan* plan) {
  WeightProduct& p = plan->product;
  const DeviceLimits& device = CurrentDevice();
  const int64_t input_words = int64_t{p.chunk_planes} * p.input_patch.plane;
  const int64_t grad_words = int64_t{C::kColumnQuads} * p.grad_patch.plane;
  const int64_t shared =
      8 * (input_words + grad_words) +
      sizeof(PatchPixel) * (p.input_patch.pixels + p.grad_patch.pixels) +
      C::kRowQuads * sizeof(RowQuad) + C::kColumnQuads * sizeof(ColumnQuad);
  if (shared > device.shared) return;
  plan->shared = static_cast<int>(shared);
  const int resident = std::min<int>(2, (device.shared + 1024) / (shared + 1024));
  const int64_t sums =
      int64_t{p.column_blocks} * p.row_blocks * p.chunks * p.input.depth;
  constexpr int64_t kMostBytes = int64_t{64} << 20;
  p.splits = static_cast<int>(
      std::max<int64_t>(1, std::min({int64_t{resident} * device.processors / sums,
                                     p.tiles, kMostBytes / 4 / p.weights})));
  plan->blocks = sums * p.splits <= INT32_MAX ? sums * p.splits : 0;
  // What a multiprocessor does in a cycle: 640 multiplications of TF32 or twice those
  // of a 16-bit type; 24 bytes copied; one element of a part written, read and added.
  // Alone, a block leaves it idle for a third.
  const double steps =
      p.vertical.tile * static_cast<double>(CeilDivide(p.horizontal.tile * p.input.rows,
                                                       Group<S>::kRows));
  const double multiply = steps * kWeightWarps * C::kTiles * C::kProducts * 1.6 *
                          (kTf32 == Tf32::kSplit ? 3 : 1) * (resident > 1 ? 1 : 1.5);
  const double columns = std::min(C::kColumnQuads, p.grad.planes());
  const double copy =
      (1.0 * p.input_patch.pixels * p.chunk_planes + p.grad_patch.pixels * columns) *
      p.input.rows * kQuad * sizeof(S) / 24;
  const double tile = std::max(multiply, copy) + 0.3 * std::min(multiply, copy) + 600;
  plan->cost = tile * CeilDivide(p.tiles, p.splits) *
                   CeilDivide(plan->blocks, device.processors) +
               1.0 * p.splits * p.weights / device.processors;
}

// The cheapest of all cuts worth a look, by the kernel's shape C.
template <typename S, Tf32 kTf32, typename C>
void FindCut(const Task& task, WeightPlan* best) {
  const int rows = task.source.rows;
  if (rows > kWeightWarps * kLanes) return;
  WeightPlan plan;
  plan.tiles = C::kTiles;
  WeightProduct& p = plan.product;
  p.input = task.source;
  p.grad = task.target;
  p.vertical = task.vertical;
  p.horizontal = task.horizontal;
  p.weights = p.taps() * task.filter.tap;
  p.column_blocks = static_cast<int>(CeilDivide(p.grad.planes(), C::kColumnQuads));
  const int planes = p.input.planes();
  const auto consider = [&](int quads) {
    if (quads <= 0 || quads > C::kRowQuads) return;
    CutRows<S>(quads, &p);
    plan.blocks = 0;
    CutLattice<S, kTf32, C>(&plan);
    if (plan.blocks > 0 && (best->blocks == 0 || plan.cost < best->cost)) *best = plan;
  };
  for (const int most : {512, 256, 128, 64, 32, 16}) {  // rows of the lattice
    for (int columns = 1; columns <= 16; ++columns) {
      p.horizontal.tile = static_cast<int>(CeilDivide(p.horizontal.points, columns));
      p.vertical.tile = std::min(most / (p.horizontal.tile * rows), p.vertical.points);
      if (columns > p.horizontal.points) break;
      if (p.vertical.tile == 0) {
        if (most != 16 || columns != 16) continue;
        p.vertical.tile = 1;
        p.horizontal.tile = std::max(1, std::min(most / rows, p.horizontal.points));
      }
      p.horizontal.tiles =
          static_cast<int>(CeilDivide(p.horizontal.points, p.horizontal.tile));
      p.vertical.tiles =
          static_cast<int>(CeilDivide(p.vertical.points, p.vertical.tile));
      p.vertical.tile =
          static_cast<int>(CeilDivide(p.vertical.points, p.vertical.tiles));
      p.tiles = p.input.batch * p.vertical.tiles * p.horizontal.tiles;
      Axis y{}, x{};
      y.stride = x.stride = 1;
      y.tile = p.vertical.tile;
      x.tile = p.horizontal.tile;
      p.grad_patch = MakePatch<S>(y, x, rows, 1, 1, 16);
      for (p.chunks = 1; p.chunks <= planes; p.chunks *= 2) {
        p.chunk_planes = static_cast<int>(CeilDivide(planes, p.chunks));
        const int line = p.chunk_planes * p.horizontal.taps;
        consider(std::min(C::kRowQuads, line * p.vertical.taps));
        consider(C::kRowQuads / p.chunk_planes * p.chunk_planes);
        consider(C::kRowQuads / line * line);
      }
    }
  }
}

using Wide3 = WeightConfig<3, 8>;
using Wide4 = WeightConfig<4, 8>;
using Wide5 = WeightConfig<5, 8>;
// Few columns: as many as one group has.
template <typename S>
using NarrowWeights = WeightConfig<4, Group<S>::kElements>;

template <typename S>
bool FewColumns(const Task& task) {
  return task.target.planes() <= NarrowWeights<S>::kColumnQuads;
}

// The cheapest plan of all kernels; no blocks where none fits.
template <typename S, Tf32 kTf32>
WeightPlan FindWeightPlan(const Problem& problem) {
  WeightPlan plan;
  if (FitsInts(problem)) {
    const Task task = ForwardTask(problem);
    constexpr int64_t kMost = int64_t{1} << 30;
    if (task.filter.tap <= kMost / (task.vertical.taps * task.horizontal.taps)) {
      if (FewColumns<S>(task)) {
        FindCut<S, kTf32, NarrowWeights<S>>(task, &plan);
      } else {
        FindCut<S, kTf32, Wide4>(task, &plan);
        if constexpr (kTf32 == Tf32::kRounded) {
          FindCut<S, kTf32, Wide3>(task, &plan);
          FindCut<S, kTf32, Wide5>(task, &plan);
        }
      }
    }
  }
  return plan;
}

// The same, remembered.
template <typename S, Tf32 kTf32>
WeightPlan PlanWeights(const Problem& problem) {
  static Memory<Problem, WeightPlan> memory;
  return memory.Recall(problem, [&] { return FindWeightPlan<S, kTf32>(problem); });
}

template <typename T>
int64_t WeightsWorkspace(const GpuExec& exec, const Problem& problem) {
  if constexpr (std::is_same_v<T, double>) {
    return -1;
  } else {
    return WithPrecision<T>(exec, [&](auto precision) -> int64_t {
      const WeightPlan plan = PlanWeights<CudaType<T>, precision.value>(problem);
      return plan.blocks > 0 ? plan.PartsBytes() : -1;
    });
  }
}

template <typename S, Tf32 kTf32, typename C, bool kEvenRows>
LaunchError LaunchWeights(const GpuExec& exec, const WeightPlan& plan, const S* input,
                          const S* grad, float* parts) {
  constexpr auto kKernel = WeightsKernel<S, kTf32, C::kTiles, C::kProducts, kEvenRows>;
  constexpr char kName[] = "CapsuleConvBackpropWeights";
  for (const auto& error :
       {CheckGrid(kName, plan.blocks), AllowShared<kKernel>(kName)}) {
    if (!error.empty()) return error;
  }
  return LaunchOverlapped(kName, kKernel, dim3(plan.blocks), kWeightWarps * kLanes,
                          plan.shared, exec, plan.product, input, grad, parts);
}

// What WeightsWorkspace() finds to fit.
template <typename T>
LaunchError RunWeights(const GpuExec& exec, const Problem& problem, const T* input,
                       const T* grad, T* grad_weights, void* workspace) {
  using S = CudaType<T>;
  return WithPrecision<T>(exec, [&](auto precision) -> LaunchError {
    constexpr Tf32 kTf32 = precision.value;
    const WeightPlan plan = PlanWeights<S, kTf32>(problem);
    float* const parts = static_cast<float*>(workspace);
    const auto launch = [&](auto config) {
      using C = decltype(config);
      if (std::is_same_v<S, float> || problem.pose_rows % 2 == 0) {
        return LaunchWeights<S, kTf32, C, true>(exec, plan, Native(input), Native(grad),
                                                parts);
      }
      return LaunchWeights<S, kTf32, C, std::is_same_v<S, float>>(
          exec, plan, Native(input), Native(grad), parts);
    };
    const LaunchError error = [&]() -> LaunchError {
      if (FewColumns<S>(ForwardTask(problem))) return launch(NarrowWeights<S>());
      if constexpr (kTf32 == Tf32::kRounded) {
        if (plan.tiles == Wide3::kTiles) return launch(Wide3());
        if (plan.tiles == Wide5::kTiles) return launch(Wide5());
      }
      return launch(Wide4());
    }();
    if (!error.empty()) return error;
    using general::kSumElements, general::kSumThreads;
    return LaunchOverlapped("CapsuleConvBackpropWeights",
                            general::SumPartsKernel<S, float>,
                            dim3(CeilDivide(plan.product.weights, kSumElements)),
                            kSumElements * kSumThreads, 0, exec, plan.product.weights,
                            plan.product.splits, parts, Native(grad_weights));
  });
}

}  // namespace capsops::capsule_conv::tiled

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_MMA_WEIGHTS_LAUNCH_CUH_
