// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Launches the kernels of high_order_conv_channels.cuh where sizes allow.
#ifndef CAPSOPS_CUDA_HIGH_ORDER_CONV_CHANNELS_LAUNCH_CUH_
#define CAPSOPS_CUDA_HIGH_ORDER_CONV_CHANNELS_LAUNCH_CUH_

#include <algorithm>
#include <type_traits>

#include "cc/launch/high_order_conv.h"
#include "cuda/common/launch.cuh"
#include "cuda/high_order_conv/channels.cuh"

namespace capsops::high_order_conv::channels {

enum class Pass { kForward, kInput, kFilters };

template <typename S>
int64_t Bytes(const Work& w, Pass pass, int k) {
  const int64_t pixels = w.quads * kPixels, filters = int64_t{w.groups} * k * k;
  const int64_t row = pass == Pass::kInput
                          ? (pixels + k - 1) * filters
                          : SegmentSize<S>(static_cast<int>(pixels * filters));
  return w.rows * row * sizeof(S);
}

// The largest tile whose threads and filters a block can have; false if there is none.
template <typename S>
bool Divide(const Problem& p, Pass pass, Work* w, int64_t* blocks) {
  constexpr int64_t kMost = 1 << 24;
  if (p.channels_first || p.kernel_height != p.kernel_width || p.dilation_width != 1 ||
      p.dilation_height > INT32_MAX || p.height > kMost || p.width > kMost ||
      p.channels > kMost || p.channels % (kVector * p.groups) != 0 ||
      p.batch * p.height * p.width * p.channels == 0) {
    return false;
  }
  *w = {};
  w->height = p.height;
  w->width = p.width;
  w->channels = p.channels;
  w->groups = p.groups;
  w->dilation_height = p.dilation_height;
  const int vectors = p.channels / p.groups / kVector;
  w->lanes_of_group =
      pass == Pass::kFilters ? std::min(vectors & -vectors, 32) : vectors;
  if (int64_t{w->lanes_of_group} * p.groups > kMaxThreads) return false;
  w->lanes = w->lanes_of_group * p.groups;
  const int64_t quads = CeilDivide(p.width, kPixels);
  const int64_t most = std::min(CurrentDevice().shared, 72 << 10);
  w->rows = 1;
  w->quads = std::min<int64_t>(quads, kMaxThreads / w->lanes);
  while (w->quads > 1 && Bytes<S>(*w, pass, p.kernel_width) > most) --w->quads;
  if (Bytes<S>(*w, pass, p.kernel_width) > most) return false;
  w->tiles_x = CeilDivide(quads, w->quads);
  w->quads = CeilDivide(quads, w->tiles_x);
  while (w->rows < p.height && (w->rows + 1) * w->quads * w->lanes <= kMaxThreads) {
    ++w->rows;
    if (Bytes<S>(*w, pass, p.kernel_width) <= most) continue;
    --w->rows;
    break;
  }
  w->tiles_y = CeilDivide(p.height, w->rows);
  *blocks = int64_t{w->tiles_x} * w->tiles_y;
  if (p.batch > INT32_MAX / *blocks) return false;
  *blocks *= p.batch;
  return true;
}

template <auto kKernel, typename T, typename S>
LaunchError Launch(const char* name, const GpuExec& exec, const Work& w, int64_t blocks,
                   int64_t bytes, const T* a, const T* b, S* result) {
  const LaunchError error = AllowShared<kKernel>(name);
  if (!error.empty()) return error;
  const int threads = CeilDivide(w.rows * w.quads * w.lanes, 32) * 32;
  kKernel<<<blocks, threads, bytes, exec.stream>>>(w, Native(a), Native(b), result);
  return CheckLaunch(name);
}

// Calls run(K) for a kernel of K x K, if there is code for it.
template <typename T, typename Run>
bool WithKernel(const Problem& p, const Run& run) {
  if constexpr (!std::is_same_v<T, double>) {
    switch (p.kernel_height) {
      case 3:
        return run(std::integral_constant<int, 3>{});
      case 5:
        return run(std::integral_constant<int, 5>{});
      case 7:
        return run(std::integral_constant<int, 7>{});
    }
  }
  return false;
}

template <typename T>
bool TryForward(const GpuExec& exec, const Problem& p, const T* input, const T* filters,
                T* output, LaunchError* error) {
  return WithKernel<T>(p, [&](auto k) {
    using S = CudaType<T>;
    Work w;
    int64_t blocks;
    if (!Divide<S>(p, Pass::kForward, &w, &blocks)) return false;
    *error = Launch<ForwardKernel<S, Accumulator<T>, k>>(
        "HighOrderConv", exec, w, blocks, Bytes<S>(w, Pass::kForward, k), input,
        filters, Native(output));
    return true;
  });
}

template <typename T>
bool TryBackward(const GpuExec& exec, const Problem& p, const T* grad, const T* input,
                 const T* filters, T* grad_input, T* grad_filters, LaunchError* error) {
  return WithKernel<T>(p, [&](auto k) {
    using S = CudaType<T>;
    using A = Accumulator<T>;
    const char* const name = "HighOrderConvGrad";
    Work for_input, for_filters;
    int64_t input_blocks, filter_blocks;
    if (!Divide<S>(p, Pass::kInput, &for_input, &input_blocks) ||
        !Divide<S>(p, Pass::kFilters, &for_filters, &filter_blocks)) {
      return false;
    }
    *error = Launch<InputKernel<S, A, k>>(name, exec, for_input, input_blocks,
                                          Bytes<S>(for_input, Pass::kInput, k), grad,
                                          filters, Native(grad_input));
    if (!error->empty()) return true;
    *error = Launch<FiltersKernel<S, A, k>>(name, exec, for_filters, filter_blocks,
                                            Bytes<S>(for_filters, Pass::kFilters, k),
                                            grad, input, Native(grad_filters));
    return true;
  });
}

}  // namespace capsops::high_order_conv::channels

#endif  // CAPSOPS_CUDA_HIGH_ORDER_CONV_CHANNELS_LAUNCH_CUH_
