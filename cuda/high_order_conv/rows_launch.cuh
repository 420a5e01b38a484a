// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// How images are divided among the blocks of the kernels of high_order_conv_rows.cuh.
#ifndef CAPSOPS_CUDA_HIGH_ORDER_CONV_ROWS_LAUNCH_CUH_
#define CAPSOPS_CUDA_HIGH_ORDER_CONV_ROWS_LAUNCH_CUH_

#include <type_traits>

#include "cc/launch/high_order_conv.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/memory.cuh"
#include "cuda/high_order_conv/rows.cuh"

namespace capsops::high_order_conv::rows {

template <typename Z>
int MaxLanes(int64_t bytes) {
  int lanes = kThreads;
  while (lanes > 0 && Z::Bytes(lanes, 1) > bytes) lanes -= Z::kUnit / kPixels;
  return lanes;
}

// No tasks: cannot be done this way.
template <typename S, typename A, int K, int C, bool kBackward>
Work Divide(const Problem& p) {
  using Z = Shape<S, A, K, C, kBackward>;
  constexpr auto kKernel = RowsKernel<S, A, K, C, kBackward>;
  const DeviceLimits& device = CurrentDevice();
  const int64_t bytes = device.shared / 2 - 1024;
  const int max_columns = MaxLanes<Z>(bytes) * kPixels;
  Work w{};
  w.height = p.height;
  w.width = p.width;
  int most = max_columns;
  if (p.width > max_columns) most = max_columns - 2 * Z::kHalo;
  if (most < Z::kUnit) return w;
  w.strips = CeilDivide(p.width, most);
  w.strip = CeilDivide(CeilDivide(p.width, w.strips), Z::kUnit) * Z::kUnit;
  w.strips = CeilDivide(p.width, w.strip);
  w.lanes = CeilDivide(std::min<int>(w.strip + 2 * Z::kHalo, w.width), kPixels);
  w.lanes = CeilDivide(w.lanes, Z::kUnit / kPixels) * (Z::kUnit / kPixels);
  const int row_bytes = w.width * sizeof(S) % 16;
  w.bytes = row_bytes == 0 ? 16 : row_bytes & -row_bytes;
  w.subs = kThreads / w.lanes;
  while (w.subs > 1 && Z::Bytes(w.lanes, w.subs) > bytes) --w.subs;
  if (!AllowShared<kKernel>("HighOrderConv").empty()) return w;
  int resident = 1;
  if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(
          &resident, kKernel, kThreads, Z::Bytes(w.lanes, w.subs)) != cudaSuccess) {
    cudaGetLastError();
    return w;
  }
  // As many rows a task as make the time least: rounds of what runs at a time, each
  // with its halo and the time until its first filters have come.
  const int64_t slots = int64_t{device.processors} * std::max(resident, 1) * w.subs;
  const int64_t columns = p.batch * w.strips;
  const int extra = 2 + (kBackward ? 2 * Z::kRadius : 0);
  int64_t least = INT64_MAX;
  for (int chunks = 1; chunks <= std::min(p.height, int64_t{256}); ++chunks) {
    const int64_t rows = CeilDivide(p.height, chunks);
    const int64_t tasks = columns * CeilDivide(p.height, rows);
    const int64_t time = CeilDivide(tasks, slots) * (rows + extra);
    if (time >= least) continue;
    least = time;
    w.rows = rows;
    w.chunks = CeilDivide(p.height, rows);
    w.tasks = tasks;
  }
  return w;
}

template <typename T, int K, int C, bool kBackward>
Work Remember(const Problem& p) {
  struct Key {
    int64_t batch, height, width;
  };
  static Memory<Key, Work> memory;
  return memory.Recall(Key{p.batch, p.height, p.width}, [&] {
    return Divide<CudaType<T>, Accumulator<T>, K, C, kBackward>(p);
  });
}

// Whether it ran; `error` is the outcome.
template <typename T, int K, int C, bool kBackward>
bool Run(const GpuExec& exec, const Problem& p, const T* input, const T* filters,
         const T* grad, T* result, T* grad_filters, LaunchError* error) {
  using S = CudaType<T>;
  using Z = Shape<S, Accumulator<T>, K, C, kBackward>;
  const Work w = Remember<T, K, C, kBackward>(p);
  if (w.tasks == 0) return false;
  const char* const name = kBackward ? "HighOrderConvGrad" : "HighOrderConv";
  const int64_t blocks = CeilDivide(w.tasks, w.subs);
  *error = CheckGrid(name, blocks);
  if (!error->empty()) return true;
  RowsKernel<S, Accumulator<T>, K, C, kBackward>
      <<<blocks, kThreads, Z::Bytes(w.lanes, w.subs), exec.stream>>>(
          w, Native(input), Native(filters), Native(grad), Native(result),
          Native(grad_filters));
  *error = CheckLaunch(name);
  return true;
}

// Runs if it can; backward where there is a grad.
template <typename T, bool kBackward>
bool TryRun(const GpuExec& exec, const Problem& p, const T* input, const T* filters,
            const T* grad, T* result, T* grad_filters, LaunchError* error) {
  if constexpr (!std::is_same_v<T, double>) {
    constexpr int64_t kMost = 1 << 24;
    if (p.channels_first || p.groups != 1 || p.kernel_height != p.kernel_width ||
        p.dilation_height != 1 || p.dilation_width != 1 || p.height > kMost ||
        p.width > kMost || p.width * sizeof(T) % 4 != 0 ||
        p.batch * p.height * p.width == 0) {
      return false;
    }
    const auto with_channels = [&](auto k, auto c) {
      return Run<T, k, c, kBackward>(exec, p, input, filters, grad, result,
                                     grad_filters, error);
    };
    const auto with_kernel = [&](auto k) {
      switch (p.channels) {
        case 1:
          return with_channels(k, std::integral_constant<int, 1>{});
        case 3:
          return with_channels(k, std::integral_constant<int, 3>{});
        default:
          return false;
      }
    };
    switch (p.kernel_height) {
      case 3:
        return with_kernel(std::integral_constant<int, 3>{});
      case 5:
        return with_kernel(std::integral_constant<int, 5>{});
      case 7:
        return with_kernel(std::integral_constant<int, 7>{});
    }
  }
  return false;
}

}  // namespace capsops::high_order_conv::rows

#endif  // CAPSOPS_CUDA_HIGH_ORDER_CONV_ROWS_LAUNCH_CUH_
