// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and launches capsule convolution and its input gradient on tensor cores, of
// every pose: float in TF32 or split TF32, float16 and bfloat16.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_TILED_CUH_
#define CAPSOPS_CUDA_CAPSULE_CONV_TILED_CUH_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <vector>

#include "cc/launch/capsule_conv.h"
#include "cuda/capsule_conv_product.cuh"
#include "cuda/capsule_conv_warpgroups.cuh"

namespace capsops::capsule_conv::tiled {

// A matrix product to make: what it reads, where it writes.
struct Task {
  Image source, target;
  Axis vertical, horizontal;
  Placement placement;
  Filter filter;
};

// Whether all that kernels count in 32 bits fits.
inline bool FitsInts(const Problem& p) {
  constexpr int64_t kMost = 1 << 30;
  const int64_t taps = p.kernel_height * p.kernel_width;
  for (const int64_t count :
       {p.in_height * p.in_width * p.in_channels * p.pose_depth * p.pose_rows *
            p.pose_inner,
        p.out_height * p.out_width * p.out_channels * p.pose_depth * p.pose_rows *
            p.pose_columns,
        (p.in_height + p.kernel_height * p.dilation_height) * p.stride_height,
        (p.in_width + p.kernel_width * p.dilation_width) * p.stride_width,
        taps * p.in_channels * p.pose_inner, taps * p.out_channels * p.pose_columns,
        p.pose_depth * p.pose_rows * p.pose_inner,
        p.pose_depth * p.pose_rows * p.pose_columns}) {
    if (count < 1 || count > kMost) return false;
  }
  return p.batch > 0;
}

inline Image InputImage(const Problem& p) {
  return {p.batch,
          static_cast<int>(p.in_height),
          static_cast<int>(p.in_width),
          static_cast<int>(p.in_channels),
          static_cast<int>(p.pose_depth),
          static_cast<int>(p.pose_rows),
          static_cast<int>(p.pose_inner)};
}
inline Image OutputImage(const Problem& p) {
  return {p.batch,
          static_cast<int>(p.out_height),
          static_cast<int>(p.out_width),
          static_cast<int>(p.out_channels),
          static_cast<int>(p.pose_depth),
          static_cast<int>(p.pose_rows),
          static_cast<int>(p.pose_columns)};
}

inline Axis ForwardAxis(int64_t points, int64_t stride, int64_t pad, int64_t dilation,
                        int64_t kernel) {
  Axis axis{};
  axis.points = static_cast<int>(points);
  axis.stride = static_cast<int>(stride);
  axis.offset = -static_cast<int>(pad);
  axis.step = static_cast<int>(dilation);
  axis.taps = static_cast<int>(kernel);
  axis.every = 1;
  return axis;
}

inline Task ForwardTask(const Problem& p) {
  const int64_t matrix = p.pose_inner * p.pose_columns;
  const int64_t matrices = p.out_channels * p.pose_depth;
  Task task{};
  task.source = InputImage(p);
  task.target = OutputImage(p);
  task.vertical = ForwardAxis(p.out_height, p.stride_height, p.pad_top,
                              p.dilation_height, p.kernel_height);
  task.horizontal = ForwardAxis(p.out_width, p.stride_width, p.pad_left,
                                p.dilation_width, p.kernel_width);
  task.placement = {1, 0, 1, 0};
  task.filter = {task.source.channels,
                 task.source.columns,
                 task.target.channels,
                 task.target.columns,
                 task.source.depth,
                 static_cast<int>(p.kernel_width),
                 p.in_channels * matrices * matrix,
                 matrices * matrix,
                 p.pose_columns,
                 p.pose_depth * matrix,
                 1,
                 matrix};
  return task;
}

// The pixels phase, phase + stride, ... of the input: the filter's taps that reach them
// are every (stride / g)-th, g dividing stride and dilation, and those read pixels of
// the output that are dilation / g apart. Counted from the last, so that pixels ascend.
inline Axis PhaseAxis(int64_t size, int64_t phase, int64_t stride, int64_t pad,
                      int64_t dilation, int64_t kernel) {
  const int64_t common = std::gcd(stride, dilation), every = stride / common;
  int64_t first = 0;
  while (first < every && (phase + pad - first * dilation) % stride != 0) ++first;
  Axis axis{};
  axis.points = static_cast<int>(CeilDivide(size - phase, stride));
  axis.stride = 1;
  axis.step = static_cast<int>(dilation / common);
  if (first == every || first >= kernel) return axis;  // none reaches them
  axis.taps = static_cast<int>((kernel - 1 - first) / every + 1);
  axis.every = static_cast<int>(-every);
  axis.first = static_cast<int>(first + (axis.taps - 1) * every);
  axis.offset = static_cast<int>((phase + pad - axis.first * dilation) / stride);
  return axis;
}

inline std::vector<Task> ForwardTasks(const Problem& p) {
  if (!FitsInts(p)) return {};
  return {ForwardTask(p)};
}

// One for each remainder of pixels by the strides; none where they do not fit.
inline std::vector<Task> InputGradientTasks(const Problem& p) {
  if (!FitsInts(p)) return {};
  const Task forward = ForwardTask(p);
  std::vector<Task> tasks;
  for (int64_t y = 0; y < std::min(p.stride_height, p.in_height); ++y) {
    for (int64_t x = 0; x < std::min(p.stride_width, p.in_width); ++x) {
      Task task = forward;
      std::swap(task.source, task.target);
      task.vertical = PhaseAxis(p.in_height, y, p.stride_height, p.pad_top,
                                p.dilation_height, p.kernel_height);
      task.horizontal = PhaseAxis(p.in_width, x, p.stride_width, p.pad_left,
                                  p.dilation_width, p.kernel_width);
      task.placement = {static_cast<int>(p.stride_height), static_cast<int>(y),
                        static_cast<int>(p.stride_width), static_cast<int>(x)};
      Filter& filter = task.filter;
      std::swap(filter.channels, filter.out_channels);
      std::swap(filter.inner, filter.out_inner);
      std::swap(filter.channel, filter.out_channel);
      std::swap(filter.element, filter.out_element);
      tasks.push_back(task);
    }
  }
  return tasks;
}

// The shape of a kernel without warpgroups: kTiles x kWarps tiles of 16 rows, kColumns
// columns; kBlocks blocks that a multiprocessor should have at once.
template <int kTilesOf, int kColumnsOf, int kWarpsOf, int kBlocksOf>
struct Warps {
  static constexpr int kTiles = kTilesOf, kColumns = kColumnsOf, kWarps = kWarpsOf;
  static constexpr int kBlocks = kBlocksOf, kThreads = kWarps * kLanes;
  static constexpr int kCarriers = kThreads;
  static constexpr int kStages = 3;
  static constexpr int kStageWords = 4096;
  static constexpr int kBarrierWords = 0;
  static constexpr int kRate = 360;  // products in a cycle, as measured
};
using Narrow8 = Warps<2, 8, 8, 2>;
using Narrow16 = Warps<4, 16, 4, 3>;
using Narrow32 = Warps<4, 32, 4, 3>;
using Wide = Warps<4, 64, 4, 2>;

template <typename C>
constexpr bool kByWarpgroups =
    std::is_same_v<C, Warpgroups64> || std::is_same_v<C, Warpgroups128>;

// A task as a kernel does it; no blocks where it does not fit.
struct Plan {
  Product product;
  int64_t blocks = 0;
  int shared = 0;
  double cost = 0;  // cycles, roughly
};

// Bytes of shared memory.
template <typename S, Tf32 kTf32, typename C>
int64_t SharedBytes(const Product& p) {
  const int64_t words = C::kBarrierWords +
                        int64_t{p.buffers} * p.order.planes * p.patch.plane +
                        C::kStages * p.stage_steps * StepWords<kTf32>(C::kColumns) +
                        TableQuads<S>(p.order) + p.patch.pixels;
  return words * 4;
}

// How many blocks a multiprocessor has shared memory for.
inline int Resident(const Plan& plan) {
  return (CurrentDevice().shared + 1024) / (plan.shared + 1024);
}

// Fills in how to do `task` by tiles of y x x lattice points, in chunks of at most
// `planes` planes.
template <typename S, Tf32 kTf32, typename C>
Plan PlanTile(const Task& task, int y, int x, int planes) {
  Plan plan;
  Product& p = plan.product;
  p.source = task.source;
  p.target = task.target;
  p.vertical = task.vertical;
  p.horizontal = task.horizontal;
  p.placement = task.placement;
  p.vertical.tile = y;
  p.vertical.tiles = static_cast<int>(CeilDivide(p.vertical.points, y));
  p.horizontal.tile = x;
  p.horizontal.tiles = static_cast<int>(CeilDivide(p.horizontal.points, x));
  const int all = p.source.planes(), rows = p.source.rows;
  const int taps = p.vertical.taps * p.horizontal.taps;
  p.order.chunks = static_cast<int>(CeilDivide(all, planes));
  p.order.planes = static_cast<int>(CeilDivide(all, p.order.chunks));
  p.order.steps = static_cast<int>(CeilDivide(taps * p.order.planes, kStepQuads<S>));
  p.order.column_blocks = static_cast<int>(
      CeilDivide(int64_t{p.target.channels} * p.target.columns, C::kColumns));
  p.patch =
      MakePatch<S>(p.vertical, p.horizontal, rows, std::max(p.vertical.taps, 1),
                   std::max(p.horizontal.taps, 1), std::is_same_v<S, float> ? 16 : 8);
  p.buffers = p.order.chunks > 1 ? 2 : 1;
  p.by_row_tiles = Divisor(static_cast<int>(CeilDivide(x * rows, kTileRows)));
  p.stage_steps =
      std::min(p.order.steps, C::kStageWords / StepWords<kTf32>(C::kColumns));
  const int64_t shared = SharedBytes<S, kTf32, C>(p);
  const int most = CurrentDevice().shared;
  if (shared > most || p.patch.pixels * rows >= 1 << 16 ||
      p.order.planes * rows > C::kCarriers)
    return plan;
  plan.shared = static_cast<int>(shared);
  plan.blocks = p.source.batch * p.vertical.tiles * p.horizontal.tiles *
                p.source.depth * p.order.column_blocks;
  // What a multiprocessor does in a cycle: kRate multiplications of TF32 or twice those
  // of a 16-bit type; 32 bytes copied. Two thirds where it has fewer blocks than it
  // should.
  const int tiles = y * static_cast<int>(CeilDivide(x * rows, kTileRows));
  const double products = kTileRows * kQuad * 1.0 * taps * all * C::kColumns *
                          (kTf32 == Tf32::kSplit ? 3 : 1) /
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
  static_assert(std::has_unique_object_representations_v<Task>);
  struct Found {
    const DeviceLimits* device = nullptr;
    Task task;
    Plan plan;
  };
  static thread_local Found memory[32];
  static thread_local int next = 0;
  const DeviceLimits* const device = &CurrentDevice();
  for (const Found& found : memory) {
    if (found.device == device && std::memcmp(&found.task, &task, sizeof(Task)) == 0) {
      return found.plan;
    }
  }
  Found& found = memory[next++ % 32];
  found = {device, task, FindPlan<S, kTf32, C>(task)};
  return found.plan;
}

// Calls `then` with the kernel's shape and the plan for a task: plans of no blocks do
// not fit.
template <typename S, Tf32 kTf32, typename Then>
auto WithPlan(const Task& task, const Then& then) {
  const int columns = task.target.channels * task.target.columns;
  if (columns <= 8) return then(Narrow8(), PlanTask<S, kTf32, Narrow8>(task));
  if (columns <= 16) return then(Narrow16(), PlanTask<S, kTf32, Narrow16>(task));
  if (columns <= 32 || (columns > 64 && columns <= 96)) {
    return then(Narrow32(), PlanTask<S, kTf32, Narrow32>(task));
  }
  if constexpr (kTf32 != Tf32::kSplit) {
    if (HasWarpgroups() && task.source.columns % kQuad == 0) {
      const Plan narrow = PlanTask<S, kTf32, Warpgroups64>(task);
      const Plan wide = PlanTask<S, kTf32, Warpgroups128>(task);
      if (wide.blocks > 0 && (narrow.blocks == 0 || wide.cost < narrow.cost)) {
        return then(Warpgroups128(), wide);
      }
      if (narrow.blocks > 0) return then(Warpgroups64(), narrow);
    }
  }
  return then(Wide(), PlanTask<S, kTf32, Wide>(task));
}

template <typename S, Tf32 kTf32, typename C>
constexpr auto KernelOf() {
  if constexpr (kByWarpgroups<C>) {
    return WarpgroupKernel<S, kTf32, C>;
  } else {
    return ProductKernel<S, kTf32, C::kTiles, C::kColumns, C::kWarps, C::kBlocks>;
  }
}

// Bytes of a task's packed filter, -1 where the task does not fit.
template <typename S, Tf32 kTf32>
int64_t PackedBytes(const Task& task) {
  return WithPlan<S, kTf32>(task, [&](auto config, const Plan& plan) -> int64_t {
    if (plan.blocks == 0) return -1;
    return PackedSteps(task.filter, plan.product.order) *
           StepWords<kTf32>(config.kColumns) * 4;
  });
}

template <typename S, Tf32 kTf32>
LaunchError Run(const GpuExec& exec, const Task& task, const S* source,
                const S* weights, S* target, uint32_t* packed) {
  return WithPlan<S, kTf32>(task, [&](auto config, const Plan& plan) -> LaunchError {
    using C = decltype(config);
    const Product& p = plan.product;
    if (p.order.steps > 0) {
      const LaunchError error =
          PackFilter<S, kTf32>(exec, task.filter, p.order, p.vertical, p.horizontal,
                               C::kColumns, weights, packed);
      if (!error.empty()) return error;
    }
    constexpr auto kKernel = KernelOf<S, kTf32, C>();
    if (const auto error = CheckGrid("CapsuleConv", plan.blocks); !error.empty()) {
      return error;
    }
    if (const auto error = AllowShared<kKernel>("CapsuleConv"); !error.empty()) {
      return error;
    }
    return LaunchOverlapped("CapsuleConv", kKernel, dim3(plan.blocks), C::kThreads,
                            plan.shared, exec, p, source, packed, target);
  });
}

// Calls `then` with the precision that products of T have.
template <typename T, typename Then>
auto WithPrecision(const GpuExec& exec, const Then& then) {
  if constexpr (!std::is_same_v<T, float>) {
    return then(std::integral_constant<Tf32, Tf32::kExact>());
  } else if (exec.tf32) {
    return then(std::integral_constant<Tf32, Tf32::kRounded>());
  } else {
    return then(std::integral_constant<Tf32, Tf32::kSplit>());
  }
}

// Bytes of workspace that `tasks`, done one after the other, need; -1 where they do not
// fit, as those of double never do.
template <typename T>
int64_t Workspace(const GpuExec& exec, const std::vector<Task>& tasks) {
  if constexpr (std::is_same_v<T, double>) {
    return -1;
  } else {
    return WithPrecision<T>(exec, [&](auto precision) {
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
      const LaunchError error = Run<CudaType<T>, precision.value>(
          exec, task, Native(source), Native(weights), Native(target),
          static_cast<uint32_t*>(workspace));
      if (!error.empty()) return error;
    }
    return {};
  });
}

}  // namespace capsops::capsule_conv::tiled

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_TILED_CUH_
