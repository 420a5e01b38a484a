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
#include "cuda/common/types.cuh"

namespace capsops::capsule_conv::wgmma {

constexpr int kFewColumns = 16;
inline int Columns(const Task& task) {
  return task.target.channels * task.target.columns;
}

// Whether taps across become columns: of a task that has too few, but several taps, and
// of each of them so many terms that the sums cost less than they save.
inline bool SpreadsTaps(const Task& task) {
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
inline Task SpreadTaps(const Task& task) {
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
inline int64_t SpreadElements(const Task& spread) {
  const Image& image = spread.target;
  return image.batch * image.height * image.width * image.pixel();
}

constexpr int kAddThreads = 256;

// `pixel` packs make a pixel of the target; `products` has one for each tap.
template <int kPack>
__global__ void AddTapsKernel(const Image source, const Image target,
                              const Axis vertical, const Axis across,
                              const Placement placement, int pixel,
                              const Pack<float, kPack>* __restrict__ products,
                              Pack<float, kPack>* __restrict__ sums) {
  const int image = blockIdx.x / vertical.points;
  const int y = static_cast<int>(blockIdx.x) - image * vertical.points;
  products += int64_t{blockIdx.x} * source.width * across.taps * pixel;
  sums +=
      (int64_t{image} * target.height + y * placement.stride_y + placement.offset_y) *
      target.width * pixel;
  for (int i = threadIdx.x; i < across.points * pixel; i += kAddThreads) {
    const int x = i / pixel, e = i - x * pixel;
    Pack<float, kPack> sum{};
    for (int tap = 0; tap < across.taps; ++tap) {
      const int from = x * across.stride + across.offset + tap * across.step;
      if (from < 0 || from >= source.width) continue;
      const Pack<float, kPack> term =
          products[(int64_t{from} * across.taps + tap) * pixel + e];
#pragma unroll
      for (int n = 0; n < kPack; ++n) sum.at[n] += term.at[n];
    }
    sums[(x * placement.stride_x + placement.offset_x) * pixel + e] = sum;
  }
}

// Adds up what the product of SpreadTaps(task) made.
inline LaunchError AddTaps(const GpuExec& exec, const char* op, const Task& task,
                           const float* products, float* target) {
  const int64_t rows = task.target.batch * task.vertical.points;
  const int pixel = static_cast<int>(task.target.pixel());
  if (auto error = CheckGrid(op, rows); !error.empty()) return error;
  const auto launch = [&](auto pack) {
    using Packs = Pack<float, pack.value>;
    AddTapsKernel<pack.value><<<rows, kAddThreads, 0, exec.stream>>>(
        task.source, task.target, task.vertical, task.horizontal, task.placement,
        pixel / pack.value, reinterpret_cast<const Packs*>(products),
        reinterpret_cast<Packs*>(target));
    return CheckLaunch(op);
  };
  return pixel % 4 == 0 ? launch(std::integral_constant<int, 4>())
                        : launch(std::integral_constant<int, 1>());
}

}  // namespace capsops::capsule_conv::wgmma

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_WGMMA_ACROSS_CUH_
