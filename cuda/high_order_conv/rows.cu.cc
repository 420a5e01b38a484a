// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and launches of the kernels of rows.cuh.
#include "cuda/high_order_conv/rows.cuh"

#include <algorithm>

#include "cuda/common/launch.cuh"
#include "cuda/high_order_conv/paths.h"
#include "cuda/high_order_conv/plan.cuh"

namespace capsops::high_order_conv::rows {

// Returns the most lanes of a task that fit in `bytes` of shared memory.
template <typename Z>
int MaxLanes(int64_t bytes) {
  int lanes = kThreads;
  while (lanes > 0 && Z::Bytes(lanes, 1) > bytes) lanes -= Z::kUnit / kPixels;
  return lanes;
}

// Returns the blocks that fit on a multiprocessor, limited by registers and shared
// memory. CUDA rounds a block's shared memory up to 128 bytes and reserves 1 KB more.
template <typename Z>
int ResidentBlocks(const GpuDevice& device, int64_t bytes) {
  const int64_t with_reserve = CeilDivide(bytes, 128) * 128 + 1024;
  const int64_t fit = device.processor_shared / with_reserve;
  return std::max<int64_t>(std::min<int64_t>(fit, Z::kResident), 1);
}

// Splits the images into tasks. `tasks` is 0 if not even the narrowest strip fits in
// shared memory.
template <typename Z, typename S, bool kBackward>
Work Divide(const GpuDevice& device, const Problem& p) {
  const int64_t bytes = device.shared / 2 - 1024;  // for two blocks per multiprocessor
  const int max_columns = MaxLanes<Z>(bytes) * kPixels;
  Work w{};
  w.height = p.height;
  w.width = p.width;
  int maximum = max_columns;
  if (p.width > max_columns) maximum = max_columns - 2 * Z::kHalo;
  if (maximum < Z::kUnit) return w;
  w.strips = CeilDivide(p.width, maximum);
  w.strip = CeilDivide(CeilDivide(p.width, w.strips), Z::kUnit) * Z::kUnit;
  w.strips = CeilDivide(p.width, w.strip);
  w.lanes = CeilDivide(std::min<int>(w.strip + 2 * Z::kHalo, w.width), kPixels);
  w.lanes = CeilDivide(w.lanes, Z::kUnit / kPixels) * (Z::kUnit / kPixels);
  // The largest word, up to 16 bytes, that the start of every row is aligned to.
  const int row_bytes = w.width * sizeof(S) % 16;
  w.bytes = row_bytes == 0 ? 16 : row_bytes & -row_bytes;
  w.subs = kThreads / w.lanes;
  while (w.subs > 1 && Z::Bytes(w.lanes, w.subs) > bytes) --w.subs;
  // Chooses the rows per task that minimize the estimated time: waves of concurrent
  // tasks, times the sum of a task's rows, its halo, and two for its latency at start.
  const int64_t slots = int64_t{device.processors} *
                        ResidentBlocks<Z>(device, Z::Bytes(w.lanes, w.subs)) * w.subs;
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
LaunchError Launch(const GpuExec& exec, const Work& w, const T* input, const T* filters,
                   const T* grad, T* result, T* grad_filters) {
  using S = CudaType<T>;
  using Z = Shape<S, Accumulator<T>, K, C, kBackward>;
  constexpr auto kKernel = RowsKernel<S, Accumulator<T>, K, C, kBackward>;
  constexpr auto kName = kBackward ? Backward::kName : Forward::kName;
  return Launch<kKernel>(kName, CeilDivide(w.tasks, w.subs), kThreads,
                         Z::Bytes(w.lanes, w.subs), exec, w, input, filters, grad,
                         result, grad_filters);
}

// Returns why this path refuses the problem whatever the kernel size, or "".
inline std::string Obstacle(const Problem& p, int64_t element_bytes) {
  constexpr int64_t kMax = 1 << 24;
  if (Empty(p)) return kEmpty;
  if (p.channels_first) return "data_format is NCHW";
  if (p.groups != 1) return "there is more than one group";
  if (p.channels != 1 && p.channels != 3) return "there are not 1 or 3 channels";
  if (p.dilation_height != 1 || p.dilation_width != 1) return "dilations are not 1";
  if (p.height > kMax || p.width > kMax) return kTooLarge;
  if (p.width * element_bytes % 4 != 0) return "width is odd";
  return "";
}

// Returns make(K, channels, work) with compile-time K and channels, or a refusal.
template <typename Plan, typename T, bool kBackward, typename Make>
Plan WithSizes(const GpuExec& exec, const Problem& p, const Make& make) {
  CAPSOPS_REFUSE_IF(Obstacle(p, sizeof(T)));
  return WithKernel<Plan, T>(p, [&](auto k) {
    const auto with_channels = [&](auto channels) {
      using S = CudaType<T>;
      using Z = Shape<S, Accumulator<T>, k, channels, kBackward>;
      const Work w = Divide<Z, S, kBackward>(exec.device, p);
      if (w.tasks == 0) return Plan::Refuse("a block has too little shared memory");
      if (CeilDivide(w.tasks, w.subs) > INT32_MAX) return Plan::Refuse(kTooLarge);
      return make(k, channels, w);
    };
    return WithConstant<1, 3>(p.channels, with_channels);
  });
}

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  using Plan = ForwardPlan<GpuExec, T>;
  return WithSizes<Plan, T, false>(exec, p, [](auto k, auto channels, const Work& w) {
    return Plan::Make(0, [w](const GpuExec& exec, const T* input, const T* filters,
                             T* output, void*) {
      return Launch<T, decltype(k)::value, decltype(channels)::value, false>(
          exec, w, input, filters, nullptr, output, nullptr);
    });
  });
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& p) {
  using Plan = BackwardPlan<GpuExec, T>;
  return WithSizes<Plan, T, true>(exec, p, [](auto k, auto channels, const Work& w) {
    return Plan::Make(0, [w](const GpuExec& exec, const T* grad, const T* input,
                             const T* filters, T* grad_input, T* grad_filters, void*) {
      return Launch<T, decltype(k)::value, decltype(channels)::value, true>(
          exec, w, input, filters, grad, grad_input, grad_filters);
    });
  });
}

CAPSOPS_INSTANTIATE_PATH(GpuExec)

}  // namespace capsops::high_order_conv::rows
