// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Launches the kernels of high_order_conv_quads.cuh where sizes allow.
#ifndef CAPSOPS_CUDA_HIGH_ORDER_CONV_QUADS_LAUNCH_CUH_
#define CAPSOPS_CUDA_HIGH_ORDER_CONV_QUADS_LAUNCH_CUH_

#include <type_traits>

#include "cc/launch/high_order_conv.h"
#include "cuda/common/launch.cuh"
#include "cuda/high_order_conv/quads.cuh"

namespace capsops::high_order_conv::quads {

// `own` quads a block.
inline bool CanRun(const Problem& p, int own, Work* w, int64_t* blocks) {
  constexpr int64_t kMost = 1 << 30;
  if (!p.channels_first || p.kernel_height != p.kernel_width || p.dilation_width != 1 ||
      p.dilation_height > INT32_MAX || p.width % kPixels != 0 ||
      p.batch * p.height * p.width * p.channels == 0 || p.height >= kMost / p.width ||
      p.channels >= kMost) {
    return false;
  }
  *blocks = CeilDivide(p.height * p.width / kPixels, own);
  *w = {static_cast<int>(p.height), static_cast<int>(p.width),
        static_cast<int>(*blocks), static_cast<int>(p.channels / p.groups),
        static_cast<int>(p.dilation_height)};
  if (p.batch > INT32_MAX / p.groups / *blocks) return false;
  *blocks *= p.batch * p.groups;
  return true;
}

// Calls run(K, channels together) if there is code for a kernel of K x K.
template <typename T, typename Run>
bool WithSizes(const Problem& p, const Run& run) {
  const auto with_channels = [&](auto k) {
    const int64_t of_group = p.channels / p.groups;
    if (of_group == 1) {
      run(k, std::integral_constant<int, 1>{});
    } else if (of_group <= 3) {
      run(k, std::integral_constant<int, 3>{});
    } else {
      run(k, std::integral_constant<int, kTogether>{});
    }
    return true;
  };
  if constexpr (!std::is_same_v<T, double>) {
    switch (p.kernel_height) {
      case 3:
        return with_channels(std::integral_constant<int, 3>{});
      case 5:
        return with_channels(std::integral_constant<int, 5>{});
      case 7:
        return with_channels(std::integral_constant<int, 7>{});
    }
  }
  return false;
}

template <typename T>
bool TryForward(const GpuExec& exec, const Problem& p, const T* input, const T* filters,
                T* output, LaunchError* error) {
  Work w;
  int64_t blocks;
  if (!CanRun(p, kThreads, &w, &blocks)) return false;
  return WithSizes<T>(p, [&](auto k, auto channels) {
    ForwardKernel<CudaType<T>, Accumulator<T>, k, channels>
        <<<blocks, kThreads, 0, exec.stream>>>(w, Native(input), Native(filters),
                                               Native(output));
    *error = CheckLaunch("HighOrderConv");
  });
}

template <typename T>
bool TryBackward(const GpuExec& exec, const Problem& p, const T* grad, const T* input,
                 const T* filters, T* grad_input, T* grad_filters, LaunchError* error) {
  using S = CudaType<T>;
  using A = Accumulator<T>;
  const char* const name = "HighOrderConvGrad";
  Work for_input, for_filters;
  int64_t input_blocks, filter_blocks;
  if (!CanRun(p, kThreads - 2, &for_input, &input_blocks) ||
      !CanRun(p, kThreads, &for_filters, &filter_blocks)) {
    return false;
  }
  return WithSizes<T>(p, [&](auto k, auto channels) {
    constexpr bool kBoth = channels < kTogether;
    GradientsKernel<S, A, k, channels, kBoth>
        <<<input_blocks, kThreads, 0, exec.stream>>>(
            for_input, Native(grad), Native(input), Native(filters), Native(grad_input),
            Native(grad_filters));
    *error = CheckLaunch(name);
    if constexpr (!kBoth) {
      if (!error->empty()) return;
      FiltersKernel<S, A, k><<<filter_blocks, kThreads, 0, exec.stream>>>(
          for_filters, Native(grad), Native(input), Native(grad_filters));
      *error = CheckLaunch(name);
    }
  });
}

}  // namespace capsops::high_order_conv::quads

#endif  // CAPSOPS_CUDA_HIGH_ORDER_CONV_QUADS_LAUNCH_CUH_
