// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Which matrix products make capsule convolution and its input gradient.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_TASKS_CUH_
#define CAPSOPS_CUDA_CAPSULE_CONV_TASKS_CUH_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "cc/launch/capsule_conv.h"
#include "cuda/capsule_conv/block.cuh"

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
  for (const int64_t factor :
       {p.kernel_height, p.kernel_width, p.dilation_height, p.dilation_width,
        p.stride_height, p.stride_width, p.kernel_height * p.dilation_height,
        p.kernel_width * p.dilation_width}) {
    if (factor > kMost) return false;
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

// A task as a kernel does it; no blocks where it does not fit.
struct Plan {
  Product product;
  int64_t blocks = 0;  // tiles
  int shared = 0;
  double cost = 0;  // cycles, roughly
  // Of warpgroups only.
  bool squares = false;
  Divisor by_across;
};

// The part of a plan that all kernels have: tiles of y x x lattice points and `columns`
// columns.
inline Product TiledProduct(const Task& task, int y, int x, int columns) {
  Product p{};
  p.source = task.source;
  p.target = task.target;
  p.vertical = task.vertical;
  p.horizontal = task.horizontal;
  p.placement = task.placement;
  p.vertical.tile = y;
  p.vertical.tiles = static_cast<int>(CeilDivide(p.vertical.points, y));
  p.horizontal.tile = x;
  p.horizontal.tiles = static_cast<int>(CeilDivide(p.horizontal.points, x));
  p.order.column_blocks = static_cast<int>(
      CeilDivide(int64_t{p.target.channels} * p.target.columns, columns));
  return p;
}

// Tiles of all images, depths and columns.
inline int64_t CountTiles(const Product& p) {
  return p.source.batch * p.vertical.tiles * p.horizontal.tiles * p.source.depth *
         p.order.column_blocks;
}

}  // namespace capsops::capsule_conv::tiled

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_TASKS_CUH_
