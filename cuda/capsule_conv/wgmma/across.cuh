// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Products with few columns. Tensor cores take as long for 8 columns as for 64, since
// they have to read the rows. So the taps across become columns, too: one product
// makes, of each pixel that is read, what every tap across takes from it, and a kernel
// after it adds up the columns that belong to a result.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_WGMMA_ACROSS_CUH_
#define CAPSOPS_CUDA_CAPSULE_CONV_WGMMA_ACROSS_CUH_

#include <cstdint>

#include "cuda/capsule_conv/tasks.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_conv::wgmma {

constexpr int kFewColumns = 16;
inline int Columns(const Task& task) {
  return task.target.channels * task.target.columns;
}

struct Across {
  // Whether taps across become columns: of a task that has too few, but several taps,
  // and of each of them so many terms that the sums cost less than they save.
  static bool Helps(const Task& task) {
    constexpr int kFewestTerms = 256;
    constexpr int64_t kMost = 1 << 30;  // elements of an image that are counted
    const int64_t columns = int64_t{task.horizontal.taps} * Columns(task);
    const int64_t terms =
        int64_t{task.vertical.taps} * task.source.channels * task.source.columns;
    return Columns(task) <= kFewColumns && task.horizontal.taps > 1 &&
           terms >= kFewestTerms &&
           columns * task.target.depth * task.source.rows * task.source.width *
                   task.vertical.points <=
               kMost;
  }

  // The product of such a task.
  static Task Spread(const Task& task) {
    const Axis& across = task.horizontal;
    Task spread = task;
    spread.target.height = task.vertical.points;
    spread.target.width = task.source.width;
    spread.target.channels = across.taps * task.target.channels;
    spread.placement = {1, 0, 1, 0};
    Axis pixels{};
    pixels.points = task.source.width;
    pixels.stride = pixels.step = pixels.taps = 1;
    pixels.first = across.first;
    spread.horizontal = pixels;
    spread.filter.out_channels = spread.target.channels;
    spread.filter.tap_channels = task.target.channels;
    spread.filter.out_tap = task.filter.tap * across.every;
    return spread;
  }

  // Elements of the result of that product.
  static int64_t Elements(const Task& spread) {
    const Image& image = spread.target;
    return image.batch * image.height * image.width * image.pixel();
  }

  // Adds up what the product of Spread(task) made.
  static LaunchError Add(const GpuExec& exec, const char* op, const Task& task,
                         const float* products, float* target);
};

}  // namespace capsops::capsule_conv::wgmma

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_WGMMA_ACROSS_CUH_
