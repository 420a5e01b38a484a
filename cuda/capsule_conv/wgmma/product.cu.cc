// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and launches the kernel of wgmma/product.cuh.
#include "cuda/capsule_conv/wgmma/product.cuh"

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cuda/capsule_conv/paths.h"
#include "cuda/capsule_conv/tasks.cuh"
#include "cuda/capsule_conv/tensor_cores.cuh"
#include "cuda/capsule_conv/wgmma/across.cuh"
#include "cuda/capsule_conv/wgmma/path.cuh"

namespace capsops::capsule_conv::wgmma {

// The tensor map of patches; a box is one residue class of one plane. If a pose row is
// one quad, the rows of a pose are contiguous and become one dimension.
inline TmaTensor<5> MapPatches(const Product& p) {
  const Image& image = p.source;
  const SortedPatch patch(p);
  const uint64_t row = image.columns, pixel = image.pixel(), rows = pixel / row;
  const uint64_t width = image.width, height = image.height;
  const bool quads = image.columns == kQuad;
  const uint32_t pose_rows = image.rows;
  const auto reach = [](const ResidueClasses& classes, const Axis& axis) {
    return static_cast<uint32_t>((classes.extent - 1) * axis.stride + 1);
  };
  const uint32_t down = p.vertical.stride, across = p.horizontal.stride;
  TmaTensor<5> map;
  map.size = {quads ? pixel : row, quads ? 1 : rows, width, height,
              static_cast<uint64_t>(image.batch)};
  map.apart = {quads ? pixel : row, pixel, width * pixel, height * width * pixel};
  map.box = {quads ? kQuad * pose_rows : kQuad, quads ? 1 : pose_rows,
             reach(patch.horizontal, p.horizontal), reach(patch.vertical, p.vertical),
             1};
  map.every = {1, 1, map.box[2] == 1 ? 1 : across, map.box[3] == 1 ? 1 : down, 1};
  map.swizzle = 0;
  return map;
}

// TMA limits: up to 256 elements per box dimension, with strides up to 8.
constexpr int kMaxBoxExtent = 256, kMaxBoxStride = 8;
// Whether TMA can load the patch as boxes.
inline bool HasBoxes(const Product& p) {
  const auto spans = [](const Axis& axis) {
    const int more = ResidueClasses(axis).extent - 1;
    return more == 0 || (axis.stride <= kMaxBoxStride &&
                         int64_t{more} * axis.stride < kMaxBoxExtent);
  };
  const int row = p.source.columns == kQuad ? kQuad : 1;
  return p.source.rows * row <= kMaxBoxExtent && spans(p.vertical) &&
         spans(p.horizontal);
}

template <typename S, typename C>
LaunchError Launch(const GpuExec& exec, const char* op, const TilePlan<S>& plan,
                   const S* source, const uint32_t* packed, S* target) {
  const Product& p = plan.product;
  const WarpgroupParams warpgroups{p,
                                   SortedPatch(p),
                                   static_cast<int>(plan.tiles),
                                   plan.rows_2d,
                                   p.patch.row * p.source.rows,
                                   plan.ring,
                                   plan.by_across};
  constexpr auto kKernel = WarpgroupKernel<S, C>;
  CAPSOPS_RETURN_IF_ERROR(CheckRegisters<kKernel>(op, C::kRegisters));
  PatchSource<S, C> from;
  if constexpr (C::kBoxes) {
    CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, source, MapPatches(p), &from));
  } else {
    from = source;
  }
  const int64_t most = int64_t{exec.device.processors} * C::kBlocks;
  return LaunchDependent<kKernel>(op, dim3(std::min(plan.tiles, most)), C::kThreads,
                                  plan.shared, exec, warpgroups, from, packed, target);
}

// Coefficients of the cost model, fitted to six thousand plans measured on an H200:
// - multiply: cycles of products, relative to the tensor cores' peak
// - idle: factor on `multiply` if one of two consumer warpgroups has no work
// - load, chunk, store, tile: cycles per unit loaded, chunk, byte stored and tile
// - first: cycles per unit of the first chunk, whose load nothing overlaps
// - launch: cycles per launch
struct CostFactors {
  double multiply, idle, load, chunk, store, tile, first, launch;
};

// The coefficients of kernel shape C.
template <typename S, typename C>
constexpr CostFactors FindFactors() {
  constexpr bool kNarrow = C::kColumns == kWgmmaRows;
  if (C::kFilterParts > 1 && C::kLeft)
    return {1.02, 1.19, 1.6, 940, 0, 3300, 0.33, 8800};
  if (C::kFilterParts > 1) return {0.87, 1.1, 3.2, 1180, 0.02, 2000, 1.8, 6600};
  if (C::kBoxes) return {kNarrow ? 0.94 : 0.99, 1.15, 0, 890, 0.046, 1430, 0.43, 8000};
  if (!C::kLeft) return {kNarrow ? 0.86 : 0.9, 1.08, 0.31, 1870, 0.058, 1440, 2.7, 0};
  if (!std::is_same_v<S, float>) return {0.94, 1.12, 0, 2100, 0.052, 475, 1.7, 900};
  if (C::kParts == 1) return {0.8, 1.28, 1.45, 385, 0.017, 2670, 2.1, 0};
  return {kNarrow ? 1.27 : 0.7, 1.17, 2.55, 1700, 0.021, 1290, 7.7, 0};
}

// Estimates a plan's cycles: `tiles` tiles of `products` row tiles each.
template <typename S, typename C>
double EstimateCost(const Product& p, int64_t tiles, int processors, int products) {
  constexpr CostFactors kFactors = FindFactors<S, C>();
  // Blocks of a multiprocessor share its tensor cores.
  const int64_t turns = CeilDivide(tiles, processors);
  const int64_t block_turns = CeilDivide(turns, C::kBlocks);
  const int rows = p.source.rows, chunks = p.order.chunks;
  const double idle = products * C::kColumnGroups <= C::kTiles ? kFactors.idle : 1;
  const double multiply = kFactors.multiply * idle * 4 * C::kOctets *
                          RoundUp(products, C::kTiles) * C::kColumnGroups * C::kPairs *
                          p.order.steps * chunks;
  const double pixels = 1.0 * p.patch.pixels * p.order.planes, units = pixels * rows;
  const int columns = p.target.columns;
  const bool whole = C::kLeft ? columns == kQuad : columns % kQuad == 0;
  const double store = (whole ? 1 : 15) * kFactors.store * sizeof(S) * C::kColumns *
                       p.vertical.tile * p.horizontal.tile * rows;
  const double alone =
      (kFactors.chunk + kFactors.load * units) * chunks + store + kFactors.tile;
  double cost = multiply * turns + alone * block_turns;
  if (C::kBoxes) {
    // Lower bound: the TMA copies of a multiprocessor.
    const int together = p.source.columns == kQuad ? rows : 1;
    cost = std::max(cost,
                    (2 + together) * pixels * (rows / together) * chunks * block_turns);
  }
  cost += kFactors.first * units + kFactors.launch;
  // A third buffer pays off if products are too short to hide loads and conversions.
  const bool one_tap = p.vertical.taps * p.horizontal.taps == 1;
  const bool third = C::kBoxes || (one_tap && std::is_same_v<S, float>);
  return (p.buffers > 2) == third ? cost : 1.03 * cost;
}

// Plans `task` with tiles of y x x lattice points.
template <typename S, typename C>
TilePlan<S> PlanTile(const Task& task, const GpuDevice& device, int y, int x,
                     bool rows_2d, int buffers) {
  TilePlan<S> plan;
  plan.columns = C::kColumns;
  plan.step_words = C::kStepWords;
  plan.launch = Launch<S, C>;
  Product& p = plan.product;
  p = TiledProduct(task, y, x, C::kColumns);
  p.buffers = buffers;
  const int rows = p.source.rows, taps = p.vertical.taps * p.horizontal.taps;
  const int all = CeilDivideInt(p.source.planes(), kUnitQuads<typename C::O>);
  p.patch = UnitPatch(p, C::kBoxes);
  if (p.patch.pixels >= kTooLarge || (C::kBoxes && !HasBoxes(p))) return plan;
  const int row = p.patch.row * rows, down = C::kRows / kGroupRows;
  const int across = CeilDivideInt(x * rows, kGroupRows);
  const int64_t lattice_rows = (y - 1) * int64_t{row} + x * rows;
  const int64_t products =
      rows_2d ? CeilDivide(y, down) * across : CeilDivide(lattice_rows, C::kRows);
  if (products > C::kProducts || row >= 1 << 14) return plan;
  plan.rows_2d = rows_2d;
  plan.by_across = Divisor(rows_2d ? across : row);

  const int most = std::min(device.shared, device.processor_shared / C::kBlocks - 1024);
  int units = std::min(all, taps >= 8 ? 8 : 32);
  int64_t shared = 0;
  for (; units > 0; --units) {
    p.order.chunks = CeilDivideInt(all, units);
    units = CeilDivideInt(all, p.order.chunks);
    p.order.planes = units;
    p.order.steps = CeilDivideInt(int64_t{taps} * units, 2);
    const int64_t steps = RoundUp(p.order.steps, C::kSteps);
    shared =
        4 * (C::kBarrierWords + int64_t{buffers} * C::kParts * units * p.patch.plane +
             C::kStages * C::kStageWords + 2 * C::kProducts * C::kRows + steps +
             (C::kBoxes ? 0 : p.patch.pixels));
    if (shared <= most && (C::kBoxes || units * rows <= C::kLoadThreads)) break;
  }
  if (units == 0) return plan;
  plan.ring = std::min<int64_t>(kMaxStages,
                                C::kStages + (most - shared) / (4 * C::kStageWords));
  shared += (plan.ring - C::kStages) * int64_t{4 * C::kStageWords};
  // The last row tile may read past its plane, but not past the filter's ring, which
  // follows the patches. Such rows are not stored.
  const int64_t read = rows_2d
                           ? (RoundUp(y, down) - 1) * int64_t{row} + across * kGroupRows
                           : products * C::kRows;
  if ((read - lattice_rows) * 4 > int64_t{C::kStages} * C::kStageWords) {
    return plan;
  }
  // The distance between a step's units must fit in the 14 bits of a descriptor. From
  // the third unit on distances repeat.
  const SortedPatch sorted(p);
  for (int step = 0; step < taps * std::min(units, 2) / 2; ++step) {
    const UnitStep both(p, sorted, step);
    if (both.at[1] - both.at[0] >= 1 << 14) return plan;
  }
  const int64_t tiles = CountTiles(p);
  if (tiles > INT32_MAX / 2) return plan;
  plan.shared = static_cast<int>(shared);
  plan.tiles = tiles;
  plan.cost =
      EstimateCost<S, C>(p, tiles, device.processors, static_cast<int>(products));
  return plan;
}

// The cheapest of all plausible tiles.
template <typename S, typename C>
TilePlan<S> FindTile(const Task& task, const GpuDevice& device) {
  const int rows = task.source.rows;
  const int height = task.vertical.points, width = task.horizontal.points;
  constexpr int kMax = C::kProducts, kDown = C::kRows / kGroupRows;
  TilePlan<S> best;
  const auto consider = [&](int y, int x, bool rows_2d) {
    for (int buffers = 2; buffers <= kMaxBuffers; ++buffers) {
      const auto plan = PlanTile<S, C>(task, device, y, x, rows_2d, buffers);
      if (plan.tiles > 0 && (best.tiles == 0 || plan.cost < best.cost)) best = plan;
    }
  };
  const auto even = [](int points, int tile) {
    return (points - 1) / ((points - 1) / tile + 1) + 1;
  };
  int before = 0;
  const int fewest = CeilDivideInt(int64_t{width} * rows, kMax * C::kRows);
  for (int parts = fewest; parts <= std::min(width, fewest + 64); ++parts) {
    const int x = (width - 1) / parts + 1;
    if (x == before) continue;
    before = x;
    Axis axis = task.horizontal;
    axis.tile = x;
    const int64_t row = int64_t{rows} * ResidueClasses(axis).extent;
    for (int products = kMax; products > 0; --products) {
      if (products * C::kRows < x * rows) break;
      const int64_t y = (products * C::kRows - x * rows) / row + 1;
      consider(even(height, static_cast<int>(std::min<int64_t>(height, y))), x, false);
    }
  }
  for (int across = 1; across <= kMax; ++across) {
    const int x = std::min(across * kGroupRows / rows, width);
    if (x == 0) continue;
    for (int down = kMax / across; down > 0; --down) {
      consider(even(height, down * kDown), x, true);
    }
  }
  return best;
}

std::string Path::Refusal(const Task& task, const GpuDevice& device) {
  const int columns = Columns(task);
  if (task.source.columns % kQuad != 0) {
    return "4 does not divide " + std::to_string(task.source.columns) +
           ", the columns of the poses that are read";
  }
  if (columns <= kFewColumns) return std::to_string(columns) + " columns are too few";
  return HasWgmma(device) ? "" : "it needs compute capability 9.0";
}

template <typename S, Tf32 kTf32>
TilePlan<S> PlanTask(const Task& task, const GpuDevice& device) {
  TilePlan<S> best;
  const auto consider = [&](const TilePlan<S>& plan) {
    if (plan.tiles > 0 && (best.tiles == 0 || plan.cost < best.cost)) best = plan;
  };
  if constexpr (kTf32 == Tf32::kSplitLeft) {
    consider(FindTile<S, PosesLeft<__nv_bfloat16, 3, 1, 1, 64, 2>>(task, device));
    consider(FindTile<S, PosesLeft<__nv_bfloat16, 3, 1, 1, 128>>(task, device));
  } else if constexpr (kTf32 == Tf32::kSplit) {
    consider(FindTile<S, PosesLeft<__nv_bfloat16, 3, 3, 1, 128>>(task, device));
    consider(FindTile<S, PosesRight<__nv_bfloat16, 3, 128, 64>>(task, device));
    consider(FindTile<S, PosesRight<__nv_bfloat16, 3, 168, 64>>(task, device));
  } else {
    consider(FindTile<S, PosesLeft<S, 1, 1, 1, 128>>(task, device));
    consider(FindTile<S, PosesLeft<S, 1, 1, 2, 128>>(task, device));
    consider(FindTile<S, PosesRight<S, 1, 128, 128>>(task, device));
    consider(FindTile<S, PosesRight<S, 1, 192, 128>>(task, device));
    consider(FindTile<S, PosesRight<S, 1, 256, 128>>(task, device));
    consider(FindTile<S, PosesRight<S, 1, 168, 64>>(task, device));
    consider(FindTile<S, PosesRight<S, 1, 224, 64>>(task, device));
    consider(FindTile<S, PosesRight<S, 1, 256, 64>>(task, device));
  }
  return best;
}

CAPSOPS_DEFINE_PLAN_IMAGE

}  // namespace capsops::capsule_conv::wgmma
