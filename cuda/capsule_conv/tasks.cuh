// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The matrix products (tasks) of a convolution or its input gradient, and their plans.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cc/launch/capsule_conv.h"
#include "cc/launch/taps.h"
#include "cuda/capsule_conv/block.cuh"

namespace capsops::capsule_conv {

// One matrix product: what it reads and where it writes.
struct Task {
  Image source, target;
  Axis vertical, horizontal;
  Placement placement;
  Filter filter;
};

// All tasks of a convolution.
struct Tasks {
  std::vector<Task> tasks;
  int64_t zeros = 0;    // elements of the target to clear first
  std::string refusal;  // why there are no tasks, else empty
};

// Whether the problem is so small that overheads such as packing matter.
inline bool HasFewProducts(const Problem& p) {
  constexpr double kFew = 1 << 29;
  return 1.0 * Pixels(p) * PixelSize(p) * p.kernel_height * p.kernel_width *
             p.in_channels * p.pose_inner <
         kFew;
}

// Why the tensor-core kernels must refuse, as they index in 32 bits; else empty.
inline std::string RefuseSizes(const Problem& p) {
  constexpr int64_t kMax = 1 << 30;
  const char* const too_large = "32 bits do not count its elements";
  for (const int64_t factor :
       {p.kernel_height, p.kernel_width, p.dilation_height, p.dilation_width,
        p.stride_height, p.stride_width, p.kernel_height * p.dilation_height,
        p.kernel_width * p.dilation_width}) {
    if (factor > kMax) return too_large;
  }
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
    if (count < 1) return "a tensor is empty";
    if (count > kMax) return too_large;
  }
  return p.batch > 0 ? "" : "a tensor is empty";
}

// The input or the output, with `columns` columns per pose.
inline Image MakeImage(const Problem& p, int64_t height, int64_t width,
                       int64_t channels, int64_t columns) {
  return {p.batch,
          static_cast<int>(height),
          static_cast<int>(width),
          static_cast<int>(channels),
          static_cast<int>(p.pose_depth),
          static_cast<int>(p.pose_rows),
          static_cast<int>(columns)};
}

inline Axis ForwardAxis(const AxisProblem& p) {
  Axis axis{};
  axis.points = static_cast<int>(p.out);
  axis.stride = static_cast<int>(p.stride);
  axis.offset = -static_cast<int>(p.pad);
  axis.step = static_cast<int>(p.dilation);
  axis.taps = static_cast<int>(p.kernel);
  axis.every = 1;
  return axis;
}

// The product of the forward convolution.
inline Task ForwardTask(const Problem& p) {
  const int64_t matrix = p.pose_inner * p.pose_columns;
  const int64_t matrices = p.out_channels * p.pose_depth;
  Task task{};
  task.source = MakeImage(p, p.in_height, p.in_width, p.in_channels, p.pose_inner);
  task.target = MakeImage(p, p.out_height, p.out_width, p.out_channels, p.pose_columns);
  task.vertical = ForwardAxis(Vertical(p));
  task.horizontal = ForwardAxis(Horizontal(p));
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
                 matrix,
                 p.kernel_height * p.kernel_width * p.in_channels * matrices * matrix};
  return task;
}

// The axis of one phase of the input gradient: pixels phase, phase + stride, ... Its
// taps are taken in reverse, so that the output pixels they read ascend.
inline Axis PhaseAxis(const AxisProblem& p, int64_t phase) {
  const PhaseTaps taps = TapsOfPhase(p, phase);
  Axis axis{};
  axis.points = CeilDivideInt(p.in - phase, p.stride);
  axis.stride = 1;
  axis.step = static_cast<int>(taps.step);
  if (taps.count == 0) return axis;
  axis.taps = static_cast<int>(taps.count);
  axis.every = static_cast<int>(-taps.every);
  axis.first = static_cast<int>(taps.first + (taps.count - 1) * taps.every);
  axis.offset = static_cast<int>(taps.offset - (taps.count - 1) * taps.step);
  return axis;
}

inline Tasks ForwardTasks(const Problem& p) {
  Tasks all;
  all.refusal = RefuseSizes(p);
  if (all.refusal.empty()) all.tasks = {ForwardTask(p)};
  return all;
}

// Input gradients with more phases than this are refused.
constexpr int64_t kMaxPhases = 64;

// Swaps source and target and transposes the filter, for the input gradient.
inline void Transpose(Task* task) {
  std::swap(task->source, task->target);
  Filter& filter = task->filter;
  std::swap(filter.channels, filter.out_channels);
  std::swap(filter.inner, filter.out_inner);
  std::swap(filter.channel, filter.out_channel);
  std::swap(filter.element, filter.out_element);
}

// The input gradient: one task per phase that any filter tap reaches. A phase is the
// pixels of equal remainders modulo the strides. They are read by the same taps, so the
// gradient of a phase is an unstrided convolution of the output's gradient.
inline Tasks InputGradientTasks(const Problem& p) {
  Tasks all;
  all.refusal = RefuseSizes(p);
  if (!all.refusal.empty()) return all;
  const int64_t down = std::min(p.stride_height, p.in_height);
  const int64_t across = std::min(p.stride_width, p.in_width);
  if (down * across > kMaxPhases) {
    all.refusal = "the strides have " + std::to_string(down * across) +
                  " phases, over " + std::to_string(kMaxPhases);
    return all;
  }
  Task task = ForwardTask(p);
  Transpose(&task);
  for (int64_t y = 0; y < down; ++y) {
    for (int64_t x = 0; x < across; ++x) {
      task.vertical = PhaseAxis(Vertical(p), y);
      task.horizontal = PhaseAxis(Horizontal(p), x);
      task.placement = {static_cast<int>(p.stride_height), static_cast<int>(y),
                        static_cast<int>(p.stride_width), static_cast<int>(x)};
      if (task.vertical.taps > 0 && task.horizontal.taps > 0) {
        all.tasks.push_back(task);
      } else {
        all.zeros = p.batch * p.in_height * p.in_width * task.target.pixel();
      }
    }
  }
  if (all.tasks.empty()) all.refusal = "no tap of the filter reads a pixel";
  return all;
}

// Strides, dilations and padding as 32-bit numbers.
struct TapMoves {
  int kernel_height, kernel_width;
  int stride_y, stride_x, dilation_y, dilation_x, pad_y, pad_x;

  TapMoves() = default;
  explicit TapMoves(const Problem& p)
      : kernel_height(static_cast<int>(p.kernel_height)),
        kernel_width(static_cast<int>(p.kernel_width)),
        stride_y(static_cast<int>(p.stride_height)),
        stride_x(static_cast<int>(p.stride_width)),
        dilation_y(static_cast<int>(p.dilation_height)),
        dilation_x(static_cast<int>(p.dilation_width)),
        pad_y(static_cast<int>(p.pad_top)),
        pad_x(static_cast<int>(p.pad_left)) {}
};

// A plan for a task of element type S; `tiles` is 0 if the kernel cannot do it.
template <typename S>
struct TilePlan {
  template <typename Right>
  using Launch = LaunchError (*)(const GpuExec& exec, const char* op,
                                 const TilePlan& plan, const S* source,
                                 const Right* right, S* target);

  Product product;
  Filter filter;
  int64_t tiles = 0;
  int shared = 0;
  double cost = 0;         // estimate in cycles
  int columns = 0;         // columns per tile
  int64_t step_words = 0;  // words per step of the packed filter
  // Launches the kernel on a packed filter.
  Launch<uint32_t> launch = nullptr;
  // Launches the kernel of mma/small.cuh on the filter itself; else nullptr.
  Launch<S> launch_small = nullptr;
  // For wgmma only; see WarpgroupParams.
  bool rows_2d = false;
  int ring = 0;
  Divisor by_across;
};

// Kernel parameters for tiles of y x x lattice points and `columns` columns.
inline Product TiledProduct(const Task& task, int y, int x, int columns) {
  Product p{};
  p.source = task.source;
  p.target = task.target;
  p.vertical = task.vertical;
  p.horizontal = task.horizontal;
  p.placement = task.placement;
  p.vertical.tile = y;
  p.vertical.tiles = CeilDivideInt(p.vertical.points, y);
  p.horizontal.tile = x;
  p.horizontal.tiles = CeilDivideInt(p.horizontal.points, x);
  p.order.column_blocks =
      CeilDivideInt(int64_t{p.target.channels} * p.target.columns, columns);
  return p;
}

// The number of tiles over all images, depths and columns.
inline int64_t CountTiles(const Product& p) {
  return p.source.batch * p.vertical.tiles * p.horizontal.tiles * p.source.depth *
         p.order.column_blocks;
}

// Whether two tasks of one convolution differ only in offsets, and so can share a plan.
inline bool SameSizes(const Task& a, const Task& b) {
  return a.vertical.points == b.vertical.points && a.vertical.taps == b.vertical.taps &&
         a.horizontal.points == b.horizontal.points &&
         a.horizontal.taps == b.horizontal.taps;
}

// Sets the offsets of `task` in `p`, the plan of a task with the same sizes.
inline void SetOffsets(const Task& task, Product* p) {
  p->vertical.offset = task.vertical.offset;
  p->vertical.first = task.vertical.first;
  p->horizontal.offset = task.horizontal.offset;
  p->horizontal.first = task.horizontal.first;
  p->placement = task.placement;
}

}  // namespace capsops::capsule_conv

// Defines a path's PlanWeights by its PlanWeightsBy; use within its namespace.
#define CAPSOPS_DEFINE_PLAN_WEIGHTS                                               \
  template <typename T>                                                           \
  ConvPlan<GpuExec, T> PlanWeights(const char* op, const GpuExec& exec,           \
                                   const Problem& p) {                            \
    return PlanWithPrecision<ConvPlan<GpuExec, T>, T>(exec, [&](auto precision) { \
      return PlanWeightsBy<T, precision.value>(op, exec.device, p);               \
    });                                                                           \
  }                                                                               \
  CAPSOPS_FOR_EACH_TYPE(CAPSOPS_INSTANTIATE_PLAN_WEIGHTS)
