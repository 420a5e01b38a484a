// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Adds the horizontal taps that wgmma/across.cuh turns into columns.
#include "cuda/capsule_conv/wgmma/across.cuh"

#include <algorithm>
#include <cstdint>

#include "cuda/capsule_conv/tasks.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"

namespace capsops::capsule_conv::wgmma {

constexpr int kAddThreads = 256;

// Sums the taps of each target pixel. Blocks with the same blockIdx.x divide a row of
// pixels among them, and a thread computes a pack of kPack elements at a time. A target
// pixel has `pixel` packs; `products` has as many for each tap of each source pixel.
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
  const int first = blockIdx.y * kAddThreads + threadIdx.x;
  for (int i = first; i < across.points * pixel; i += gridDim.y * kAddThreads) {
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

LaunchError TapColumns::Add(const GpuExec& exec, const char* op, const Task& task,
                            const float* products, float* target) {
  const int64_t rows = task.target.batch * task.vertical.points;
  const int pixel = static_cast<int>(task.target.pixel());
  CAPSOPS_RETURN_IF_ERROR(CheckGrid(op, rows));
  // If there are few rows, splits them to get about eight blocks per multiprocessor.
  constexpr int kWaves = 8;
  const auto launch = [&](auto pack) {
    using Packs = Pack<float, pack.value>;
    const int64_t most =
        CeilDivide(int64_t{task.horizontal.points} * pixel / pack.value, kAddThreads);
    const int64_t parts =
        std::clamp<int64_t>(int64_t{kWaves} * exec.device.processors / rows, 1, most);
    return Launch(op, AddTapsKernel<pack.value>, dim3(rows, parts), kAddThreads, 0,
                  exec, task.source, task.target, task.vertical, task.horizontal,
                  task.placement, pixel / pack.value,
                  reinterpret_cast<const Packs*>(products),
                  reinterpret_cast<Packs*>(target));
  };
  return WithConstant<1, 4>(pixel % 4 == 0 ? 4 : 1, launch);
}

}  // namespace capsops::capsule_conv::wgmma
