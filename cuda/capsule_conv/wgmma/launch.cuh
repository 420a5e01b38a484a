// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and launches the products of wgmma/product.cuh.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_WGMMA_LAUNCH_CUH_
#define CAPSOPS_CUDA_CAPSULE_CONV_WGMMA_LAUNCH_CUH_

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cuda/capsule_conv/tasks.cuh"
#include "cuda/capsule_conv/wgmma/product.cuh"

namespace capsops::capsule_conv::wgmma {

// Planes follow each other at 4 words past a multiple of 32: a warp writes many.
inline Patch UnitPatch(const Axis& vertical, const Axis& horizontal, int rows) {
  return MakePatch<float>(vertical, horizontal, rows, vertical.taps, horizontal.taps,
                          4);
}

// What tensor cores multiply.
template <typename S, Tf32 kTf32>
using OperandOf = std::conditional_t<kTf32 == Tf32::kSplitLeft, __nv_bfloat16, S>;

template <typename S, typename C>
LaunchError Launch(const GpuExec& exec, const char* op, const TilePlan<S>& plan,
                   const S* source, const uint32_t* packed, S* target) {
  WarpgroupProduct warpgroups;
  warpgroups.product = plan.product;
  warpgroups.tiles = static_cast<int>(plan.tiles);
  warpgroups.squares = plan.squares;
  warpgroups.row = plan.product.patch.row * plan.product.source.rows;
  warpgroups.by_across = plan.by_across;
  constexpr auto kKernel = WarpgroupKernel<S, C>;
  LaunchError error = AllowShared<kKernel>(exec, op);
  if (error.empty()) error = CheckRegisters<kKernel>(op, C::kRegisters);
  if (!error.empty()) return error;
  const int64_t most = int64_t{exec.device.processors} * C::kBlocks;
  return LaunchOverlapped(op, kKernel, dim3(std::min(plan.tiles, most)), C::kThreads,
                          plan.shared, exec, warpgroups, source, packed, target);
}

// Fills in how to do `task` by tiles of y x x lattice points.
template <typename S, typename C>
TilePlan<S> PlanTile(const Task& task, const GpuDevice& device, int y, int x,
                     bool squares, int buffers) {
  TilePlan<S> plan;
  plan.by_wgmma = true;
  plan.columns = C::kColumns;
  plan.step_words = UnitStepWords(C::kColumns);
  plan.launch = Launch<S, C>;
  Product& p = plan.product;
  p = TiledProduct(task, y, x, C::kColumns);
  p.buffers = buffers;
  const int rows = p.source.rows, taps = p.vertical.taps * p.horizontal.taps;
  const int all =
      static_cast<int>(CeilDivide(p.source.planes(), kUnitQuads<typename C::O>));
  p.patch = UnitPatch(p.vertical, p.horizontal, rows);
  const int row = p.patch.row * rows;
  const int across = static_cast<int>(CeilDivide(x * rows, kGroupRows));
  const int64_t lattice_rows = (y - 1) * int64_t{row} + x * rows;
  const int64_t products = squares ? CeilDivide(y, kGroupRows) * across
                                   : CeilDivide(lattice_rows, kProductRows);
  if (products > C::kGroups * C::kTiles || row >= 1 << 14) return plan;
  plan.squares = squares;
  plan.by_across = Divisor(squares ? across : row);

  const int most = std::min(device.shared, device.processor_shared / C::kBlocks - 1024);
  int units = std::min(all, taps >= 8 ? 8 : 32);
  int64_t shared = 0;
  for (; units > 0; --units) {
    p.order.chunks = static_cast<int>(CeilDivide(all, units));
    units = static_cast<int>(CeilDivide(all, p.order.chunks));
    p.order.planes = units;
    p.order.steps = static_cast<int>(CeilDivide(int64_t{taps} * units, 2));
    const int64_t steps = RoundUp(p.order.steps, C::kSteps);
    shared =
        4 * (C::kBarrierWords + int64_t{buffers} * C::kParts * units * p.patch.plane +
             C::kStages * C::kStageWords + steps + p.patch.pixels);
    if (shared <= most && units * rows <= C::kCarriers) break;
  }
  if (units == 0) return plan;
  // The last product may read past its plane, but not past what is there.
  const int64_t read =
      squares ? (RoundUp(y, kGroupRows) - 1) * int64_t{row} + across * kGroupRows
              : products * kProductRows;
  if ((read - lattice_rows) * 4 > int64_t{C::kStages} * C::kStageWords) {
    return plan;
  }
  // How far apart the units of a step are; they repeat from the third unit on.
  for (int step = 0; step < taps * std::min(units, 2) / 2; ++step) {
    const UnitStep both(p, step);
    if (both.at[1] - both.at[0] >= 1 << 14) return plan;
  }
  const int64_t tiles = CountTiles(p);
  if (tiles > INT32_MAX / 2) return plan;
  plan.shared = static_cast<int>(shared);
  plan.tiles = tiles;
  // Cycles as a fit to a thousand plans of thirty convolutions has them, on an H200:
  // what it chooses takes 1.02 times the fastest's time on average. Blocks of a
  // multiprocessor share its tensor cores; the rest a block does by itself.
  const int64_t steps = int64_t{p.order.steps} * p.order.chunks;
  const int64_t stages = CeilDivide(p.order.steps, C::kSteps) * p.order.chunks;
  const int64_t made = RoundUp(products, C::kTiles);
  const double idle = products <= C::kTiles ? 1.1 : 1;  // a warpgroup
  const double multiply =
      (C::kColumns == 64 ? 42 : 46) * made * steps * C::kParts * idle;
  const double convert = !std::is_same_v<S, float> ? 0 : C::kParts == 1 ? 0.3 : 0.9;
  const double bring = (0.8 + convert) * p.patch.pixels * rows * units + 670;
  const double store = 0.065 * y * x * rows * C::kColumns * sizeof(S);
  const double alone = bring * p.order.chunks + 57 * stages + store + 3400;
  const int64_t turns = CeilDivide(tiles, device.processors);
  plan.cost = multiply * turns + alone * CeilDivide(turns, C::kBlocks);
  return plan;
}

// The cheapest tile of all worth a look.
template <typename S, typename C>
TilePlan<S> FindTile(const Task& task, const GpuDevice& device) {
  const int rows = task.source.rows;
  const int height = task.vertical.points, width = task.horizontal.points;
  constexpr int kMost = C::kGroups * C::kTiles;
  TilePlan<S> best;
  const auto consider = [&](int y, int x, bool squares) {
    for (int buffers = 2; buffers <= kMostBuffers; ++buffers) {
      const auto plan = PlanTile<S, C>(task, device, y, x, squares, buffers);
      if (plan.tiles > 0 && (best.tiles == 0 || plan.cost < best.cost)) best = plan;
    }
  };
  const auto even = [](int points, int tile) {
    return (points - 1) / ((points - 1) / tile + 1) + 1;
  };
  int before = 0;
  const int fewest =
      static_cast<int>(CeilDivide(int64_t{width} * rows, kMost * kProductRows));
  for (int parts = fewest; parts <= std::min(width, fewest + 64); ++parts) {
    const int x = (width - 1) / parts + 1;
    if (x == before) continue;
    before = x;
    // By how much patches are wider than tiles, MakePatch knows.
    Axis horizontal = task.horizontal, vertical = task.vertical;
    horizontal.tile = x;
    vertical.tile = 1;
    const int64_t row = int64_t{rows} * UnitPatch(vertical, horizontal, rows).row;
    if (row == 0) continue;  // no room for one lattice row
    for (int products = kMost; products > 0; --products) {
      if (products * kProductRows < x * rows) break;
      const int64_t y = (products * kProductRows - x * rows) / row + 1;
      consider(even(height, static_cast<int>(std::min<int64_t>(height, y))), x, false);
    }
  }
  for (int across = 1; across <= kMost; ++across) {
    const int x = std::min(across * kGroupRows / rows, width);
    if (x == 0) continue;
    for (int down = kMost / across; down > 0; --down) {
      consider(std::min(down * kGroupRows, height), x, true);
    }
  }
  return best;
}

// Why there are no such products of any task of a convolution; else empty.
template <typename S, Tf32 kTf32>
std::string Refusal(const Task& task, const GpuDevice& device) {
  const int columns = task.target.channels * task.target.columns;
  if (kTf32 == Tf32::kSplit) return "TF32 is not allowed";
  if (task.source.columns % kQuad != 0) {
    return "4 does not divide " + std::to_string(task.source.columns) +
           ", the columns of the poses that are read";
  }
  if (columns <= 16) return std::to_string(columns) + " columns are too few";
  return HasWarpgroups(device) ? "" : "it needs compute capability 9.0";
}

// The cheapest tile of all kernels.
template <typename S, Tf32 kTf32>
TilePlan<S> PlanTask(const Task& task, const GpuDevice& device) {
  TilePlan<S> best;
  const auto consider = [&](const TilePlan<S>& plan) {
    if (plan.tiles > 0 && (best.tiles == 0 || plan.cost < best.cost)) best = plan;
  };
  if constexpr (kTf32 == Tf32::kSplitLeft) {
    consider(FindTile<S, Warpgroups<__nv_bfloat16, 3, true, 1, 64, 2>>(task, device));
    consider(FindTile<S, Warpgroups<__nv_bfloat16, 3, true, 1, 128, 1>>(task, device));
  } else if constexpr (kTf32 != Tf32::kSplit) {
    consider(FindTile<S, Warpgroups<S, 1, false, 2, 64, 2>>(task, device));
    consider(FindTile<S, Warpgroups<S, 1, false, 1, 128, 1>>(task, device));
    consider(FindTile<S, Warpgroups<S, 1, false, 2, 128, 1>>(task, device));
  }
  return best;
}

}  // namespace capsops::capsule_conv::wgmma

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_WGMMA_LAUNCH_CUH_
