// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and launches the products of capsule_conv_warpgroups.cuh.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_WGMMA_LAUNCH_CUH_
#define CAPSOPS_CUDA_CAPSULE_CONV_WGMMA_LAUNCH_CUH_

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cuda/capsule_conv/tasks.cuh"
#include "cuda/capsule_conv/wgmma/product.cuh"
#include "cuda/common/memory.cuh"

namespace capsops::capsule_conv::tiled {

// Planes follow each other at 4 words past a multiple of 32: a warp writes many.
inline Patch UnitPatch(const Axis& vertical, const Axis& horizontal, int rows) {
  return MakePatch<float>(vertical, horizontal, rows, std::max(vertical.taps, 1),
                          std::max(horizontal.taps, 1), 4);
}

template <typename C>
constexpr bool kByWarpgroups = false;
template <typename O, int kParts, bool kApart, int kTiles, int kColumns, int kBlocks>
constexpr bool kByWarpgroups<Warpgroups<O, kParts, kApart, kTiles, kColumns, kBlocks>> =
    true;

// Calls `then` with the shape of kernel `number`, of kWarpgroupKernels.
template <Tf32 kTf32>
constexpr int kWarpgroupKernels = kTf32 == Tf32::kSplitLeft ? 2 : 3;
template <typename S, Tf32 kTf32, typename Then>
auto WithWarpgroups(int number, const Then& then) {
  if constexpr (kTf32 == Tf32::kSplitLeft) {
    if (number == 0) return then(Warpgroups<__nv_bfloat16, 3, true, 1, 64, 2>());
    return then(Warpgroups<__nv_bfloat16, 3, true, 1, 128, 1>());
  } else {
    if (number == 0) return then(Warpgroups<S, 1, false, 2, 64, 2>());
    if (number == 1) return then(Warpgroups<S, 1, false, 1, 128, 1>());
    return then(Warpgroups<S, 1, false, 2, 128, 1>());
  }
}

// Fills in how to do `task` by tiles of y x x lattice points.
template <typename S, typename C>
Plan PlanWarpgroupTile(const Task& task, int y, int x, bool squares, int buffers) {
  Plan plan;
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

  const int most = (CurrentDevice().shared + 1024) / C::kBlocks - 1024;
  int units = std::min(all, taps >= 8 ? 8 : 32);
  int64_t shared = 0;
  for (; units > 0; --units) {
    p.order.chunks = taps > 0 ? static_cast<int>(CeilDivide(all, units)) : 0;
    units = taps > 0 ? static_cast<int>(CeilDivide(all, p.order.chunks)) : 1;
    p.order.planes = units;
    p.order.steps = static_cast<int>(CeilDivide(int64_t{taps} * units, 2));
    const int64_t steps = CeilDivide(p.order.steps, C::kSteps) * int64_t{C::kSteps};
    shared =
        4 * (C::kBarrierWords + int64_t{buffers} * C::kParts * units * p.patch.plane +
             C::kStages * C::kStageWords + steps + p.patch.pixels);
    if (shared <= most && units * rows <= C::kCarriers) break;
    if (taps == 0) units = 1;
  }
  if (units == 0) return plan;
  // The last product may read past its plane, but not past what is there.
  const int64_t read =
      squares ? (CeilDivide(y, kGroupRows) * kGroupRows - 1) * int64_t{row} +
                    across * kGroupRows
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
  plan.blocks = tiles;
  // Cycles as a fit to a thousand plans of thirty convolutions has them, on an H200:
  // what it chooses takes 1.02 times the fastest's time on average. Blocks of a
  // multiprocessor share its tensor cores; the rest a block does by itself.
  const int64_t steps = int64_t{p.order.steps} * p.order.chunks;
  const int64_t stages = CeilDivide(p.order.steps, C::kSteps) * p.order.chunks;
  const int64_t made = CeilDivide(products, C::kTiles) * C::kTiles;
  const double idle = products <= C::kTiles ? 1.1 : 1;  // a warpgroup
  const double multiply =
      (C::kColumns == 64 ? 42 : 46) * made * steps * C::kParts * idle;
  const double convert = !std::is_same_v<S, float> ? 0 : C::kParts == 1 ? 0.3 : 0.9;
  const double bring = (0.8 + convert) * p.patch.pixels * rows * units + 670;
  const double store = 0.065 * y * x * rows * C::kColumns * sizeof(S);
  const double alone = bring * p.order.chunks + 57 * stages + store + 3400;
  const int64_t turns = CeilDivide(tiles, CurrentDevice().processors);
  plan.cost = multiply * turns + alone * CeilDivide(turns, C::kBlocks);
  return plan;
}

// The cheapest tile of all worth a look.
template <typename S, typename C>
Plan FindWarpgroupTile(const Task& task) {
  const int rows = task.source.rows;
  const int height = task.vertical.points, width = task.horizontal.points;
  constexpr int kMost = C::kGroups * C::kTiles;
  Plan best;
  const auto consider = [&](int y, int x, bool squares) {
    for (int buffers = 2; buffers <= kMostBuffers; ++buffers) {
      const Plan plan = PlanWarpgroupTile<S, C>(task, y, x, squares, buffers);
      if (plan.blocks > 0 && (best.blocks == 0 || plan.cost < best.cost)) best = plan;
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

struct WarpgroupPlan {
  int number = 0;
  Plan plan;
};

// The cheapest kernel, remembered: networks ask for the same few again and again.
template <typename S, Tf32 kTf32>
WarpgroupPlan PlanWarpgroups(const Task& task) {
  static Memory<Task, WarpgroupPlan> memory;
  return memory.Recall(task, [&] {
    WarpgroupPlan best;
    for (int number = 0; number < kWarpgroupKernels<kTf32>; ++number) {
      const Plan plan = WithWarpgroups<S, kTf32>(number, [&](auto config) {
        return FindWarpgroupTile<S, decltype(config)>(task);
      });
      if (plan.blocks == 0) continue;
      if (best.plan.blocks == 0 || plan.cost < best.plan.cost) best = {number, plan};
    }
    return best;
  });
}

template <typename S, typename C>
LaunchError LaunchWarpgroups(const GpuExec& exec, const Plan& plan,
                             const Product& product, const S* source,
                             const uint32_t* packed, S* target) {
  WarpgroupProduct warpgroups;
  warpgroups.product = product;
  warpgroups.tiles = static_cast<int>(plan.blocks);
  warpgroups.squares = plan.squares;
  warpgroups.row = product.patch.row * product.source.rows;
  warpgroups.by_across = plan.by_across;
  constexpr auto kKernel = WarpgroupKernel<S, C>;
  if (const auto error = AllowShared<kKernel>("CapsuleConv"); !error.empty()) {
    return error;
  }
  // A warpgroup waits forever for registers that its block does not have.
  static const cudaFuncAttributes attributes = [] {
    cudaFuncAttributes found{};
    if (cudaFuncGetAttributes(&found, kKernel) != cudaSuccess) cudaGetLastError();
    return found;
  }();
  if (attributes.numRegs < C::kRegisters) {
    return "CapsuleConv: built with " + std::to_string(attributes.numRegs) +
           " registers for a thread, not " + std::to_string(C::kRegisters);
  }
  const int64_t most = int64_t{CurrentDevice().processors} * C::kBlocks;
  return LaunchOverlapped("CapsuleConv", kKernel, dim3(std::min(plan.blocks, most)),
                          C::kThreads, plan.shared, exec, warpgroups, source, packed,
                          target);
}

}  // namespace capsops::capsule_conv::tiled

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_WGMMA_LAUNCH_CUH_
