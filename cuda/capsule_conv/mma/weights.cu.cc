// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and launches the kernel of mma/weights.cuh.
#include "cuda/capsule_conv/mma/weights.cuh"

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cc/launch/capsule_conv.h"
#include "cuda/capsule_conv/parts.cuh"
#include "cuda/capsule_conv/paths.h"
#include "cuda/capsule_conv/tasks.cuh"

namespace capsops::capsule_conv::mma {

// Compile-time shape: kTiles x kProducts tiles of 16 rows by 8 columns per warp.
template <int kTilesOf, int kMmaCount>
struct WeightTraits {
  static constexpr int kTiles = kTilesOf, kProducts = kMmaCount;
  static constexpr int kRowQuads = kTiles * 4 * kWeightWarps;
  static constexpr int kColumnQuads = kProducts * 2;
};

template <typename S>
using WeightPlan =
    BlocksPlan<WeightProduct, const S* /*input*/, const S* /*grad*/, float* /*parts*/>;

template <typename S, Tf32 kTf32, typename C, bool kEvenRows>
LaunchError LaunchWeights(const GpuExec& exec, const char* op,
                          const WeightPlan<S>& plan, const S* input, const S* grad,
                          float* parts) {
  constexpr auto kKernel = WeightsKernel<S, kTf32, C::kTiles, C::kProducts, kEvenRows>;
  return LaunchDependent<kKernel>(op, dim3(plan.blocks), kWeightWarps * kLanes,
                                  plan.shared, exec, plan.tiling, input, grad, parts);
}

// Divides the rows into blocks of `quads` quads and sizes the patch for them.
template <typename S>
void SplitRows(int quads, WeightProduct* p) {
  const int of_chunk = p->chunk_planes * p->taps(), width = p->horizontal.taps;
  p->quads = quads;
  p->row_blocks = CeilDivideInt(of_chunk, quads);
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

// Chooses how many blocks divide the lattice among them, and estimates the cost.
template <typename S, Tf32 kTf32, typename C>
void SplitLattice(const GpuDevice& device, WeightPlan<S>* plan) {
  WeightProduct& p = plan->tiling;
  const int64_t input_words = int64_t{p.chunk_planes} * p.input_patch.plane;
  const int64_t grad_words = int64_t{C::kColumnQuads} * p.grad_patch.plane;
  const int64_t shared =
      8 * (input_words + grad_words) +
      sizeof(PatchPixel) * (p.input_patch.pixels + p.grad_patch.pixels) +
      C::kRowQuads * sizeof(RowQuad) + C::kColumnQuads * sizeof(ColumnQuad);
  if (shared > device.shared) return;
  plan->shared = static_cast<int>(shared);
  const int resident = std::min<int>(2, device.processor_shared / (shared + 1024));
  const int64_t sums =
      int64_t{p.column_blocks} * p.row_blocks * p.chunks * p.input.depth;
  p.splits = static_cast<int>(
      std::max<int64_t>(1, std::min({int64_t{resident} * device.processors / sums,
                                     p.tiles, kMaxPartBytes / 4 / p.weights})));
  plan->blocks = sums * p.splits <= INT32_MAX ? sums * p.splits : 0;
  // Cycles of a multiprocessor. Per cycle it does 640 multiply-adds of TF32, or twice
  // as many of a 16-bit type, copies 24 bytes, and writes, reads and adds one element
  // of a partial sum. With a single resident block, products take half as long again.
  const double steps =
      p.vertical.tile * static_cast<double>(CeilDivide(p.horizontal.tile * p.input.rows,
                                                       QuadFragment<S>::kRows));
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

// Finds the cheapest of all plausible tilings with traits C.
template <typename S, Tf32 kTf32, typename C>
void FindTiling(const Task& task, const GpuDevice& device, WeightPlan<S>* best) {
  const int rows = task.source.rows;
  constexpr bool kFloat = std::is_same_v<S, float>;
  WeightPlan<S> plan;
  plan.launch = kFloat || rows % 2 == 0 ? LaunchWeights<S, kTf32, C, true>
                                        : LaunchWeights<S, kTf32, C, kFloat>;
  WeightProduct& p = plan.tiling;
  p.input = task.source;
  p.grad = task.target;
  p.vertical = task.vertical;
  p.horizontal = task.horizontal;
  p.weights = p.taps() * task.filter.tap;
  p.column_blocks = CeilDivideInt(p.grad.planes(), C::kColumnQuads);
  const int planes = p.input.planes();
  const auto consider = [&](int quads) {
    if (quads <= 0 || quads > C::kRowQuads) return;
    SplitRows<S>(quads, &p);
    plan.blocks = 0;
    SplitLattice<S, kTf32, C>(device, &plan);
    if (plan.blocks > 0 && (best->blocks == 0 || plan.cost < best->cost)) *best = plan;
  };
  for (const int most : {512, 256, 128, 64, 32, 16}) {  // lattice rows per tile
    for (int columns = 1; columns <= 16; ++columns) {
      p.horizontal.tile = CeilDivideInt(p.horizontal.points, columns);
      p.vertical.tile = std::min(most / (p.horizontal.tile * rows), p.vertical.points);
      if (columns > p.horizontal.points) break;
      if (p.vertical.tile == 0) {
        if (most != 16 || columns != 16) continue;
        p.vertical.tile = 1;
        p.horizontal.tile = std::max(1, std::min(most / rows, p.horizontal.points));
      }
      p.horizontal.tiles = CeilDivideInt(p.horizontal.points, p.horizontal.tile);
      p.vertical.tiles = CeilDivideInt(p.vertical.points, p.vertical.tile);
      p.vertical.tile = CeilDivideInt(p.vertical.points, p.vertical.tiles);
      p.tiles = p.input.batch * p.vertical.tiles * p.horizontal.tiles;
      Axis y{}, x{};
      y.stride = x.stride = 1;
      y.tile = p.vertical.tile;
      x.tile = p.horizontal.tile;
      p.grad_patch = MakePatch<S>(y, x, rows, 1, 1, 16);
      for (p.chunks = 1; p.chunks <= planes; p.chunks *= 2) {
        p.chunk_planes = CeilDivideInt(planes, p.chunks);
        const int line = p.chunk_planes * p.horizontal.taps;
        consider(std::min(C::kRowQuads, line * p.vertical.taps));
        consider(C::kRowQuads / p.chunk_planes * p.chunk_planes);
        consider(C::kRowQuads / line * line);
      }
    }
  }
}

// Why this kernel cannot do the problem; else empty.
inline std::string RefuseWeights(const Problem& p) {
  const std::string refusal = RefuseSizes(p);
  constexpr int64_t kMax = int64_t{1} << 30;
  if (!refusal.empty()) return refusal;
  if (p.in_channels * p.out_channels * p.pose_depth * p.pose_inner * p.pose_columns >
      kMax / (p.kernel_height * p.kernel_width)) {
    return "32 bits do not count the weights";
  }
  if (p.pose_rows > kWeightWarps * kLanes) {
    return "poses have " + std::to_string(p.pose_rows) + " rows, over " +
           std::to_string(kWeightWarps * kLanes);
  }
  return "";
}

// The cheapest plan of all kernel shapes.
template <typename S, Tf32 kTf32>
WeightPlan<S> FindWeightPlan(const Task& task, const GpuDevice& device) {
  WeightPlan<S> plan;
  const auto find = [&](auto products) {
    FindTiling<S, kTf32, WeightTraits<4, products>>(task, device, &plan);
    if constexpr (kTf32 == Tf32::kRounded) {
      FindTiling<S, kTf32, WeightTraits<3, products>>(task, device, &plan);
      FindTiling<S, kTf32, WeightTraits<5, products>>(task, device, &plan);
    }
  };
  // Enough products for the columns of one group of quads.
  constexpr int kNarrow = QuadFragment<S>::kElements;
  if (task.target.planes() <= WeightTraits<4, kNarrow>::kColumnQuads) {
    find(std::integral_constant<int, kNarrow>());
  } else {
    find(std::integral_constant<int, 8>());
  }
  return plan;
}

// Plans the gradient with split-K.
template <typename T, Tf32 kTf32>
ConvPlan<GpuExec, T> PlanWeightsBy(const char* op, const GpuDevice& device,
                                   const Problem& p) {
  using Plan = ConvPlan<GpuExec, T>;
  using S = CudaType<T>;
  CAPSOPS_REFUSE_IF(RefuseWeights(p));
  const auto plan = FindWeightPlan<S, kTf32>(ForwardTask(p), device);
  if (plan.blocks == 0) return Plan::Refuse("no tile of it fits in shared memory");
  return PlanSplitK<T>(op, plan, plan.tiling.weights, plan.tiling.splits);
}

CAPSOPS_DEFINE_PLAN_WEIGHTS

}  // namespace capsops::capsule_conv::mma
