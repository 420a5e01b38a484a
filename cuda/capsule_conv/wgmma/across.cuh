// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Convolutions with few columns. wgmma takes as long for 8 columns as for 64, as it is
// limited by reading the rows. So horizontal taps become columns as well: one product
// multiplies every source pixel by every horizontal tap, and a second kernel adds the
// results that belong to each target pixel.
#pragma once

#include <cstdint>

#include "cuda/capsule_conv/tasks.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_conv::wgmma {

constexpr int kFewColumns = 16, kMoreColumns = 32;
inline int Columns(const Task& task) {
  return task.target.channels * task.target.columns;
}

// The TapColumns of the wgmma path, as capsule_conv/tensor_cores.cuh expects it.
struct TapColumns {
  // Whether this pays off: there are few columns, several horizontal taps, and so many
  // terms per tap that the second kernel costs less than the first one saves. With more
  // than kFewColumns columns, `cost` decides, which estimates the cycles of a task.
  template <typename Cost>
  static bool PaysOff(const Task& task, int processors, const Cost& cost) {
    constexpr int kMinTerms = 256;
    constexpr int64_t kMax = 1 << 30;              // elements that 32-bit offsets reach
    constexpr double kLaunch = 6000, kBytes = 16;  // cycles, and bytes per cycle
    const int64_t columns = int64_t{task.horizontal.taps} * Columns(task);
    const int64_t terms =
        int64_t{task.vertical.taps} * task.source.channels * task.source.columns;
    if (Columns(task) > kMoreColumns || task.horizontal.taps <= 1 ||
        terms < kMinTerms ||
        columns * task.target.depth * task.source.rows * task.source.width *
                task.vertical.points >
            kMax) {
      return false;
    }
    if (Columns(task) <= kFewColumns) return true;
    const Task unfolded = Unfold(task);
    const double bytes = sizeof(float) * static_cast<double>(Elements(unfolded));
    return cost(unfolded) + kLaunch + bytes / kBytes / processors < cost(task);
  }

  // The product with horizontal taps as columns.
  static Task Unfold(const Task& task) {
    const Axis& across = task.horizontal;
    Task unfolded = task;
    unfolded.target.height = task.vertical.points;
    unfolded.target.width = task.source.width;
    unfolded.target.channels = across.taps * task.target.channels;
    unfolded.placement = {1, 0, 1, 0};
    Axis pixels{};
    pixels.points = task.source.width;
    pixels.stride = pixels.step = pixels.taps = 1;
    pixels.first = across.first;
    unfolded.horizontal = pixels;
    unfolded.filter.out_channels = unfolded.target.channels;
    unfolded.filter.tap_channels = task.target.channels;
    unfolded.filter.out_tap = task.filter.tap * across.every;
    return unfolded;
  }

  // Elements of an unfolded product's result.
  static int64_t Elements(const Task& unfolded) {
    const Image& image = unfolded.target;
    return image.batch * image.height * image.width * image.pixel();
  }

  // Adds the taps of the unfolded product's result, and stores the sums in the target.
  static LaunchError Add(const GpuExec& exec, const char* op, const Task& task,
                         const float* products, float* target);
};

}  // namespace capsops::capsule_conv::wgmma
