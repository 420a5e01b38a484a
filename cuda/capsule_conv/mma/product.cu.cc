// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and launches the kernels of mma/product.cuh and mma/small.cuh, for all poses
// and for float in TF32 or split TF32, float16 and bfloat16.
#include "cuda/capsule_conv/mma/product.cuh"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cuda/capsule_conv/mma/path.cuh"
#include "cuda/capsule_conv/mma/small.cuh"
#include "cuda/capsule_conv/paths.h"
#include "cuda/capsule_conv/tasks.cuh"
#include "cuda/capsule_conv/tensor_cores.cuh"

namespace capsops::capsule_conv::mma {

// Compile-time shape of ProductKernel: kWarps warps of kTiles tiles of 16 rows,
// kColumns columns, and kBlocks blocks that a multiprocessor should hold.
template <int kTilesOf, int kColumnsOf, int kWarpsOf, int kBlocksOf>
struct ProductTraits {
  static constexpr int kTiles = kTilesOf, kColumns = kColumnsOf, kWarps = kWarpsOf;
  static constexpr int kBlocks = kBlocksOf, kThreads = kWarps * kLanes;
  static constexpr int kStageWords = 4096;
  static constexpr int kRate = 360;  // measured multiply-adds per cycle
};
using Narrow8 = ProductTraits<2, 8, 8, 2>;
using Narrow16 = ProductTraits<2, 16, 8, 2>;
using Narrow32 = ProductTraits<4, 32, 4, 3>;
using Wide = ProductTraits<4, 64, 4, 2>;

// Compile-time shape of SmallKernel.
template <int kColumnsOf>
struct SmallTraits {
  static constexpr int kColumns = kColumnsOf, kBlocks = 2, kRate = 360;
};

// The number of blocks that fit in a multiprocessor's shared memory, of which CUDA
// reserves 1 KB per block.
inline int Resident(const GpuDevice& device, int shared) {
  return device.processor_shared / (shared + 1024);
}

// mma.sync instructions per 16 x 8 tile and step at this precision.
template <Tf32 kTf32>
constexpr int kMmaCount = kParts<kRowTf32<kTf32>> + kParts<kFilterTf32<kTf32>> - 1;

// Shared memory of a block, in bytes.
template <typename S, Tf32 kTf32, typename C>
int64_t SharedBytes(const Product& p) {
  const int64_t words = int64_t{p.buffers} * p.order.planes * p.patch.plane +
                        kStages * p.stage_steps * StepWords<kTf32>(C::kColumns) +
                        TableQuads<S>(p.order) + p.patch.pixels;
  return words * 4;
}

template <typename S, Tf32 kTf32, typename C>
LaunchError Launch(const GpuExec& exec, const char* op, const TilePlan<S>& plan,
                   const S* source, const uint32_t* packed, S* target) {
  constexpr auto kKernel =
      ProductKernel<S, kTf32, C::kTiles, C::kColumns, C::kWarps, C::kBlocks>;
  return LaunchDependent<kKernel>(op, dim3(plan.tiles), C::kThreads, plan.shared, exec,
                                  plan.product, source, packed, target);
}

template <typename S, Tf32 kTf32, typename C>
LaunchError LaunchSmall(const GpuExec& exec, const char* op, const TilePlan<S>& plan,
                        const S* source, const S* weights, S* target) {
  constexpr auto kKernel = SmallKernel<S, kTf32, C::kColumns>;
  return LaunchDependent<kKernel>(op, dim3(plan.tiles), kSmallWarps * kLanes,
                                  plan.shared, exec, plan.product, plan.filter, source,
                                  weights, target);
}

// Completes a plan if it fits. A block has `shared` bytes and `tiles` tiles of 16 rows.
template <typename S, Tf32 kTf32, typename C>
void CompletePlan(const GpuDevice& device, int64_t shared, int tiles,
                  TilePlan<S>* plan) {
  const Product& p = plan->product;
  const int64_t blocks = CountTiles(p);
  if (shared > device.shared || blocks > INT32_MAX) return;
  plan->shared = static_cast<int>(shared);
  plan->tiles = blocks;
  // Cycles of a multiprocessor. Per cycle it does kRate multiply-adds of TF32, or twice
  // as many of a 16-bit type, and copies 32 bytes. With fewer than kBlocks resident
  // blocks it multiplies at two thirds of that rate.
  const double all = p.source.planes();
  const double products = kTileRows * kQuad * all * p.vertical.taps *
                          p.horizontal.taps * C::kColumns * kMmaCount<kTf32> /
                          ((std::is_same_v<S, float> ? 1 : 2) * C::kRate);
  const double copied =
      1.0 * p.patch.pixels * p.source.rows * all * kQuad * sizeof(S) / 32;
  const double alone = Resident(device, plan->shared) >= C::kBlocks ? 1 : 1.5;
  plan->cost = (tiles * products * alone + copied + 3000) *
               CeilDivide(plan->tiles, device.processors);
}

// Plans `task` with tiles of y x x lattice points, `planes` planes per chunk at most.
template <typename S, Tf32 kTf32, typename C>
TilePlan<S> PlanTile(const Task& task, const GpuDevice& device, int y, int x,
                     int planes) {
  TilePlan<S> plan;
  plan.columns = C::kColumns;
  plan.step_words = StepWords<kTf32>(C::kColumns);
  plan.launch = Launch<S, kTf32, C>;
  Product& p = plan.product;
  p = TiledProduct(task, y, x, C::kColumns);
  const int all = p.source.planes(), rows = p.source.rows;
  const int taps = p.vertical.taps * p.horizontal.taps;
  p.order.chunks = CeilDivideInt(all, planes);
  p.order.planes = CeilDivideInt(all, p.order.chunks);
  p.order.steps = CeilDivideInt(taps * p.order.planes, kStepQuads<S>);
  p.patch = MakePatch<S>(p.vertical, p.horizontal, rows, p.vertical.taps,
                         p.horizontal.taps, std::is_same_v<S, float> ? 16 : 8);
  p.buffers = p.order.chunks > 1 ? 2 : 1;
  p.by_row_tiles = Divisor(CeilDivideInt(x * rows, kTileRows));
  p.stage_steps =
      std::min(p.order.steps, C::kStageWords / StepWords<kTf32>(C::kColumns));
  if (p.order.planes * rows > C::kThreads) return plan;
  const int tiles = y * CeilDivideInt(x * rows, kTileRows);
  CompletePlan<S, kTf32, C>(device, SharedBytes<S, kTf32, C>(p), tiles, &plan);
  return plan;
}

// Plans `task` with small.cuh and tiles of y x x lattice points.
template <typename S, Tf32 kTf32, typename C>
TilePlan<S> PlanSmallTile(const Task& task, const GpuDevice& device, int y, int x) {
  TilePlan<S> plan;
  plan.launch_small = LaunchSmall<S, kTf32, C>;
  plan.filter = task.filter;
  Product& p = plan.product;
  p = TiledProduct(task, y, x, C::kColumns);
  const int rows = p.source.rows, taps = p.horizontal.taps;
  p.order.planes = p.source.planes();
  p.order.steps = CeilDivideInt(p.vertical.taps * p.order.planes, kStepQuads<S>);
  // A step may read two rows of one plane; an odd pitch puts them in different banks.
  p.patch = MakePatch<S>(p.vertical, p.horizontal, rows, p.vertical.taps,
                         taps + (x + taps) % 2, std::is_same_v<S, float> ? 16 : 8);
  const int groups = CeilDivideInt(x * rows, kSmallRows);
  p.by_row_tiles = Divisor(groups);
  const int64_t words = int64_t{p.order.planes} * p.patch.plane +
                        kSmallRows * kQuadWords<S> + 2 * TableQuads<S>(p.order) +
                        2 * p.patch.pixels;
  CompletePlan<S, kTf32, C>(device, 4 * words + task.filter.elements * sizeof(S),
                            y * groups * kSmallTiles, &plan);
  return plan;
}

// The cheapest of all plausible tiles. A tile has up to `all` units of `unit` rows; a
// lattice row is rounded up to whole units. `plan_tile(y, x)` plans one tile.
template <typename S, typename PlanTileOf>
TilePlan<S> FindTile(const Task& task, const GpuDevice& device, int all, int unit,
                     const PlanTileOf& plan_tile) {
  const int rows = task.source.rows, height = task.vertical.points;
  TilePlan<S> best;
  int before = 0;
  for (int units = 1; units <= all; ++units) {
    const int x = std::min(units * unit / rows, task.horizontal.points);
    if (x == before) continue;
    before = x;
    const int most = all / CeilDivideInt(x * rows, unit);
    for (int bands = (height - 1) / most + 1; bands <= height; bands *= 2) {
      const TilePlan<S> plan = plan_tile((height - 1) / bands + 1, x);
      if (plan.tiles > 0 && (best.tiles == 0 || plan.cost < best.cost)) best = plan;
      if (plan.tiles > 16 * device.processors) break;
    }
  }
  return best;
}

// The cheapest tile of ProductKernel with traits C.
template <typename S, Tf32 kTf32, typename C>
TilePlan<S> FindTile(const Task& task, const GpuDevice& device) {
  return FindTile<S>(task, device, C::kTiles * C::kWarps, kTileRows, [&](int y, int x) {
    TilePlan<S> plan;
    for (const int planes : {8, 4, 2, 1}) {
      plan = PlanTile<S, kTf32, C>(task, device, y, x, planes);
      if (plan.tiles > 0 && Resident(device, plan.shared) >= C::kBlocks) break;
    }
    return plan;
  });
}

template <typename S, Tf32 kTf32>
TilePlan<S> PlanSmall(const Task& task, const GpuDevice& device) {
  const int columns = task.target.channels * task.target.columns;
  const int rows = task.source.rows;
  const Axis& across = task.horizontal;
  if (columns > 16 || task.source.columns % kQuad != 0 || kTileRows % rows != 0 ||
      across.stride > 1 || (across.taps > 1 && across.step > 1) ||
      task.filter.elements * sizeof(S) > kMaxFilterBytes) {
    return {};
  }
  const auto find = [&](auto c) {
    return FindTile<S>(task, device, kSmallWarps, kSmallRows, [&](int y, int x) {
      return PlanSmallTile<S, kTf32, decltype(c)>(task, device, y, x);
    });
  };
  return columns <= 8 ? find(SmallTraits<8>()) : find(SmallTraits<16>());
}

template <typename S, Tf32 kTf32>
TilePlan<S> PlanTask(const Task& task, const GpuDevice& device) {
  const int columns = task.target.channels * task.target.columns;
  if (columns <= 8) return FindTile<S, kTf32, Narrow8>(task, device);
  if (columns <= 16) return FindTile<S, kTf32, Narrow16>(task, device);
  if (columns <= 32 || (columns > 64 && columns <= 96)) {
    return FindTile<S, kTf32, Narrow32>(task, device);
  }
  return FindTile<S, kTf32, Wide>(task, device);
}

CAPSOPS_DEFINE_PLAN_IMAGE

}  // namespace capsops::capsule_conv::mma
