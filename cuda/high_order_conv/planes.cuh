// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// High-order convolution, channels first. A thread has one pixel of a tile. Its
// neighbours read the elements beside those that it reads, so nothing needs staging;
// the pixels that threads share come from the first-level cache.
#ifndef CAPSOPS_CUDA_HIGH_ORDER_CONV_PLANES_CUH_
#define CAPSOPS_CUDA_HIGH_ORDER_CONV_PLANES_CUH_

#include <cstdint>
#include <type_traits>

#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"
#include "cuda/high_order_conv/plan.cuh"

namespace capsops::high_order_conv::planes {

constexpr int kThreads = 256;
constexpr int kTogether = 8;     // channels of a group, where there are many
constexpr int kBlockOfSum = 32;  // channels added before they join the sum

// Tiles are 2^log_width pixels wide and have kThreads pixels.
struct Work {
  int height, width, tiles_x, tiles_y, log_width;
  int groups, of_group;  // channels of a group
  int kernel_height, kernel_width, dilation_height, dilation_width;
};

// The pixel of a thread, and the first element of its group in each tensor.
struct Place {
  int x, y, pixel;
  int64_t plane, channel, tap;

  __device__ explicit Place(const Work& w) {
    unsigned block = blockIdx.x;
    const int tile_x = block % w.tiles_x;
    block /= w.tiles_x;
    const int tile_y = block % w.tiles_y;
    const int64_t group = block / w.tiles_y;  // of all groups of all images
    const int log_height = 8 - w.log_width;
    static_assert(kThreads == 1 << 8);
    x = (tile_x << w.log_width) + (threadIdx.x & ((1 << w.log_width) - 1));
    y = (tile_y << log_height) + (threadIdx.x >> w.log_width);
    pixel = y * w.width + x;
    plane = int64_t{w.height} * w.width;
    channel = group * w.of_group * plane;
    tap = group * (int64_t{w.kernel_height} * w.kernel_width) * plane;
  }
  __device__ bool Inside(const Work& w) const { return x < w.width && y < w.height; }
};

__device__ inline bool Inside(int at, int size) {
  return static_cast<unsigned>(at) < static_cast<unsigned>(size);
}

// `from` can be read in any case. So loads need no branches, and many of them are in
// flight together.
template <typename A, typename S>
__device__ A LoadIf(bool condition, const S* from) {
  const A value = Widen(*from);
  return condition ? value : A{0};
}

// Computes output from input and filters where kReverse is false, and grad_input from
// grad and filters where it is true. kWidth is kernel_width, or 0 for any.
template <typename S, typename A, int kWidth, int kChannels, bool kReverse>
__global__ void __launch_bounds__(kThreads)
    GatherKernel(Work w, const S* __restrict__ values, const S* __restrict__ filters,
                 S* __restrict__ result) {
  const Place at(w);
  if (!at.Inside(w)) return;
  const int kernel_width = kWidth > 0 ? kWidth : w.kernel_width;
  for (int c0 = 0; c0 < w.of_group; c0 += kChannels) {
    const S* channels[kChannels];
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      channels[c] = values + at.channel + min(c0 + c, w.of_group - 1) * at.plane;
    }
    A sum[kChannels] = {};
#pragma unroll(kWidth > 0 && kChannels <= 3 ? 2 : 1)
    for (int i = 0; i < w.kernel_height; ++i) {
      const int down = (i - w.kernel_height / 2) * w.dilation_height;
      const int y = kReverse ? at.y - down : at.y + down;
      const bool row_inside = Inside(y, w.height);
      const int row = (row_inside ? y : at.y) * w.width;
      const S* filter = filters + at.tap + int64_t{i} * kernel_width * at.plane;
      A part[kChannels] = {};
#pragma unroll(kWidth > 0 ? kWidth : 2)
      for (int j = 0; j < kernel_width; ++j) {
        const int across = (j - kernel_width / 2) * w.dilation_width;
        const int x = kReverse ? at.x - across : at.x + across;
        const bool inside = row_inside && Inside(x, w.width);
        const int from = row + (inside ? x : at.x);
        const A f = LoadIf<A>(inside, filter + (kReverse ? from : at.pixel));
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          part[c] += f * LoadIf<A>(inside, channels[c] + from);
        }
        filter += at.plane;
      }
#pragma unroll
      for (int c = 0; c < kChannels; ++c) sum[c] += part[c];
    }
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      if (c0 + c < w.of_group) {
        Narrow(sum[c], result + at.channel + (c0 + c) * at.plane + at.pixel);
      }
    }
  }
}

// Computes both gradients, for groups of at most kChannels channels. Each element of
// filters is read once, by the thread of the pixel of grad_input that it reaches.
template <typename S, typename A, int kWidth, int kChannels>
__global__ void __launch_bounds__(kThreads)
    GradientsKernel(Work w, const S* __restrict__ grad, const S* __restrict__ input,
                    const S* __restrict__ filters, S* __restrict__ grad_input,
                    S* __restrict__ grad_filters) {
  const Place at(w);
  if (!at.Inside(w)) return;
  const int kernel_width = kWidth > 0 ? kWidth : w.kernel_width;
  const S *grads[kChannels], *inputs[kChannels];
  A own[kChannels], sum[kChannels] = {};
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    const int64_t channel = at.channel + min(c, w.of_group - 1) * at.plane;
    grads[c] = grad + channel;
    inputs[c] = input + channel;
    own[c] = LoadIf<A>(c < w.of_group, grads[c] + at.pixel);
  }
#pragma unroll 1
  for (int i = 0; i < w.kernel_height; ++i) {
    const int down = (i - w.kernel_height / 2) * w.dilation_height;
    const bool from_row = Inside(at.y - down, w.height);
    const bool to_row = Inside(at.y + down, w.height);
    const int64_t tap = at.tap + int64_t{i} * kernel_width * at.plane;
    const int row_from = (at.y - (from_row ? down : 0)) * w.width;
    const int row_to = (at.y + (to_row ? down : 0)) * w.width;
    const S* filter = filters + tap;
    S* result = grad_filters + tap + at.pixel;
    A part[kChannels] = {};
#pragma unroll(kWidth > 0 ? kWidth : 2)
    for (int j = 0; j < kernel_width; ++j) {
      const int across = (j - kernel_width / 2) * w.dilation_width;
      const bool reached = from_row && Inside(at.x - across, w.width);
      const bool reads = to_row && Inside(at.x + across, w.width);
      const int from = row_from + at.x - (reached ? across : 0);
      const int to = row_to + at.x + (reads ? across : 0);
      const A f = LoadIf<A>(reached, filter + from);
      A product = 0;
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        // Past the group's last channel, that one is read again, and its grad is zero.
        const A v = LoadIf<A>(c < w.of_group, inputs[c] + to);
        part[c] += f * LoadIf<A>(reached, grads[c] + from);
        product += own[c] * v;
      }
      Narrow(reads ? product : A{0}, result);
      filter += at.plane;
      result += at.plane;
    }
#pragma unroll
    for (int c = 0; c < kChannels; ++c) sum[c] += part[c];
  }
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    if (c < w.of_group) {
      Narrow(sum[c], grad_input + at.channel + c * at.plane + at.pixel);
    }
  }
}

// Computes grad_filters for groups of any number of channels, one row of taps at a
// time, or 4 taps of it.
template <typename S, typename A, int kWidth>
__global__ void __launch_bounds__(kThreads)
    FiltersKernel(Work w, const S* __restrict__ grad, const S* __restrict__ input,
                  S* __restrict__ grad_filters) {
  constexpr int kStep = kWidth > 0 ? kWidth : 4;
  const Place at(w);
  if (!at.Inside(w)) return;
  const int kernel_width = kWidth > 0 ? kWidth : w.kernel_width;
  const S* const own = grad + at.channel + at.pixel;
  const S* const first = input + at.channel;
#pragma unroll 1
  for (int i = 0; i < w.kernel_height; ++i) {
    const int y = at.y + (i - w.kernel_height / 2) * w.dilation_height;
#pragma unroll 1
    for (int j0 = 0; j0 < kernel_width; j0 += kStep) {
      const int x0 = at.x + (j0 - kernel_width / 2) * w.dilation_width;
      A sum[kStep] = {};
      bool inside[kStep];
      int from[kStep];
#pragma unroll
      for (int j = 0; j < kStep; ++j) {
        inside[j] = Inside(y, w.height) && j0 + j < kernel_width &&
                    Inside(x0 + j * w.dilation_width, w.width);
        from[j] = inside[j] ? y * w.width + x0 + j * w.dilation_width : at.pixel;
      }
      for (int c0 = 0; c0 < w.of_group; c0 += kBlockOfSum) {
        A part[kStep] = {};
        for (int c = c0; c < min(c0 + kBlockOfSum, w.of_group); ++c) {
          const A g = Widen(own[c * at.plane]);
#pragma unroll
          for (int j = 0; j < kStep; ++j) {
            part[j] += g * Widen(first[c * at.plane + from[j]]);
          }
        }
#pragma unroll
        for (int j = 0; j < kStep; ++j) sum[j] += part[j];
      }
#pragma unroll
      for (int j = 0; j < kStep; ++j) {
        if (j0 + j < kernel_width) {
          const int64_t tap = (int64_t{i} * kernel_width + j0 + j) * at.plane;
          Narrow(inside[j] ? sum[j] : A{0}, grad_filters + at.tap + tap + at.pixel);
        }
      }
    }
  }
}

// Says why this kernel cannot do it, or divides planes into tiles and returns null.
// Kernels count the pixels of a plane and those that a window spans in 31 bits.
inline const char* Divide(const Problem& p, Work* w, int64_t* blocks) {
  constexpr int64_t kMost = 1 << 30;
  if (Empty(p)) return kEmpty;
  if (!p.channels_first) return "data_format is NHWC";
  if (p.height >= kMost / p.width || p.channels >= kMost || p.groups >= kMost) {
    return kTooLarge;
  }
  if (p.dilation_height >= kMost / p.kernel_height ||
      p.dilation_width >= kMost / p.kernel_width) {
    return "the window spans too many pixels";
  }
  // Most taps of a much larger window are outside the image.
  if (p.kernel_height > 2 * p.height || p.kernel_width > 2 * p.width) {
    return "the window is more than twice as large as the image";
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
  if (p.batch > INT32_MAX / p.groups / *blocks) return kTooLarge;
  *blocks *= p.batch * p.groups;
  return nullptr;
}

// Returns make(width, channels, work, blocks). The constant `width` is kernel_width, or
// 0 for any; the constant `channels` is how many of a group are computed together.
template <typename Plan, typename T, typename Make>
Plan WithSizes(const Problem& p, const Make& make) {
  Work w;
  int64_t blocks;
  if (const char* const why = Divide(p, &w, &blocks)) return Plan::Refuse(why);
  return WithChannels<kTogether>(w.of_group, [&](auto channels) {
    if constexpr (!std::is_same_v<T, double>) {
      if (w.kernel_width == 5) {
        return make(std::integral_constant<int, 5>{}, channels, w, blocks);
      }
    }
    return make(std::integral_constant<int, 0>{}, channels, w, blocks);
  });
}

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const Problem& p) {
  using Plan = ForwardPlan<GpuExec, T>;
  return WithSizes<Plan, T>(p, [](auto width, auto channels, Work w, int64_t blocks) {
    return Plan::Make(0, [w, blocks](const GpuExec& exec, const T* input,
                                     const T* filters, T* output, void*) {
      GatherKernel<CudaType<T>, Accumulator<T>, decltype(width)::value,
                   decltype(channels)::value, false>
          <<<blocks, kThreads, 0, exec.stream>>>(w, Native(input), Native(filters),
                                                 Native(output));
      return CheckLaunch(kForwardName);
    });
  });
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const Problem& p) {
  using Plan = BackwardPlan<GpuExec, T>;
  return WithSizes<Plan, T>(p, [](auto width, auto channels, Work w, int64_t blocks) {
    return Plan::Make(0, [w, blocks](const GpuExec& exec, const T* grad, const T* input,
                                     const T* filters, T* grad_input, T* grad_filters,
                                     void*) {
      using S = CudaType<T>;
      using A = Accumulator<T>;
      constexpr int kWidth = decltype(width)::value;
      constexpr int kChannels = decltype(channels)::value;
      if constexpr (kChannels < kTogether) {
        GradientsKernel<S, A, kWidth, kChannels><<<blocks, kThreads, 0, exec.stream>>>(
            w, Native(grad), Native(input), Native(filters), Native(grad_input),
            Native(grad_filters));
        return CheckLaunch(kBackwardName);
      } else {
        GatherKernel<S, A, kWidth, kTogether, true>
            <<<blocks, kThreads, 0, exec.stream>>>(w, Native(grad), Native(filters),
                                                   Native(grad_input));
        const LaunchError error = CheckLaunch(kBackwardName);
        if (!error.empty()) return error;
        FiltersKernel<S, A, kWidth><<<blocks, kThreads, 0, exec.stream>>>(
            w, Native(grad), Native(input), Native(grad_filters));
        return CheckLaunch(kBackwardName);
      }
    });
  });
}

}  // namespace capsops::high_order_conv::planes

#endif  // CAPSOPS_CUDA_HIGH_ORDER_CONV_PLANES_CUH_
