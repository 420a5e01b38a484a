// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Launches the kernels of high_order_conv_planes.cuh where sizes allow.
#ifndef CAPSOPS_CUDA_HIGH_ORDER_CONV_PLANES_LAUNCH_CUH_
#define CAPSOPS_CUDA_HIGH_ORDER_CONV_PLANES_LAUNCH_CUH_

#include <type_traits>

#include "cc/launch/high_order_conv.h"
#include "cuda/common/launch.cuh"
#include "cuda/high_order_conv/planes.cuh"

namespace capsops::high_order_conv::planes {

// Whether pixels of a plane and what a kernel spans can be counted in 31 bits, and
// blocks in a grid. A kernel of many positions beside the image is not worth walking.
inline bool CanRun(const Problem& p, Work* w, int64_t* blocks) {
  constexpr int64_t kMost = 1 << 30;
  if (!p.channels_first || p.batch * p.height * p.width * p.channels == 0 ||
      p.height >= kMost / p.width || p.channels >= kMost || p.groups >= kMost ||
      p.dilation_height >= kMost / p.kernel_height ||
      p.dilation_width >= kMost / p.kernel_width || p.kernel_height > 2 * p.height ||
      p.kernel_width > 2 * p.width) {
    return false;
  }
  *w = {};
  w->height = p.height;
  w->width = p.width;
  while (w->log_width < 5 && 1 << w->log_width < p.width) ++w->log_width;
  w->tiles_x = CeilDivide(p.width, 1 << w->log_width);
  w->tiles_y = CeilDivide(p.height, kThreads >> w->log_width);
  w->groups = p.groups;
  w->of_group = p.channels / p.groups;
  w->kernel_height = p.kernel_height;
  w->kernel_width = p.kernel_width;
  w->dilation_height = p.dilation_height;
  w->dilation_width = p.dilation_width;
  *blocks = int64_t{w->tiles_x} * w->tiles_y;
  if (p.batch > INT32_MAX / p.groups / *blocks) return false;
  *blocks *= p.batch * p.groups;
  return true;
}

// Calls launch(width of the kernel, or 0 for any).
template <typename T, typename Launch>
void WithWidth(int width, const Launch& launch) {
  if constexpr (!std::is_same_v<T, double>) {
    if (width == 5) return launch(std::integral_constant<int, 5>{});
  }
  launch(std::integral_constant<int, 0>{});
}

template <typename T, bool kReverse, typename Width, typename Channels>
void Gather(const GpuExec& exec, const Work& w, int64_t blocks, Width, Channels,
            const T* values, const T* filters, T* result) {
  GatherKernel<CudaType<T>, Accumulator<T>, Width::value, Channels::value, kReverse>
      <<<blocks, kThreads, 0, exec.stream>>>(w, Native(values), Native(filters),
                                             Native(result));
}

template <typename T>
bool TryForward(const GpuExec& exec, const Problem& p, const T* input, const T* filters,
                T* output, LaunchError* error) {
  Work w;
  int64_t blocks;
  if (!CanRun(p, &w, &blocks)) return false;
  WithWidth<T>(w.kernel_width, [&](auto width) {
    const auto gather = [&](auto channels) {
      Gather<T, false>(exec, w, blocks, width, channels, input, filters, output);
    };
    if (w.of_group == 1) {
      gather(std::integral_constant<int, 1>{});
    } else if (w.of_group <= 3) {
      gather(std::integral_constant<int, 3>{});
    } else {
      gather(std::integral_constant<int, kTogether>{});
    }
  });
  *error = CheckLaunch("HighOrderConv");
  return true;
}

template <typename T>
bool TryBackward(const GpuExec& exec, const Problem& p, const T* grad, const T* input,
                 const T* filters, T* grad_input, T* grad_filters, LaunchError* error) {
  using S = CudaType<T>;
  using A = Accumulator<T>;
  Work w;
  int64_t blocks;
  if (!CanRun(p, &w, &blocks)) return false;
  WithWidth<T>(w.kernel_width, [&](auto width) {
    const auto gradients = [&](auto channels) {
      GradientsKernel<S, A, width, channels><<<blocks, kThreads, 0, exec.stream>>>(
          w, Native(grad), Native(input), Native(filters), Native(grad_input),
          Native(grad_filters));
    };
    if (w.of_group == 1) {
      gradients(std::integral_constant<int, 1>{});
    } else if (w.of_group <= 3) {
      gradients(std::integral_constant<int, 3>{});
    } else {
      Gather<T, true>(exec, w, blocks, width, std::integral_constant<int, kTogether>{},
                      grad, filters, grad_input);
      *error = CheckLaunch("HighOrderConvGrad");
      FiltersKernel<S, A, width><<<blocks, kThreads, 0, exec.stream>>>(
          w, Native(grad), Native(input), Native(grad_filters));
    }
  });
  if (error->empty()) *error = CheckLaunch("HighOrderConvGrad");
  return true;
}

}  // namespace capsops::high_order_conv::planes

#endif  // CAPSOPS_CUDA_HIGH_ORDER_CONV_PLANES_LAUNCH_CUH_
