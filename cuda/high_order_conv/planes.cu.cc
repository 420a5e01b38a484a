// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// High-order convolution, channels first. A thread computes a pack of kPixels
// neighboring pixels, which it loads at once: 4 for floats and 16-bit types if
// kernel_width is 3, 5 or 7, the width is a multiple of 4 and dilation_width is 1; else
// 1. A block has 256 packs of one group of one image. Packs are numbered through all
// rows of a plane, so that no width leaves threads idle. Operands go from global memory
// straight to registers; neighboring threads share loads through the L1 cache.
#include <cstdint>
#include <string>
#include <type_traits>

#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"
#include "cuda/high_order_conv/paths.h"
#include "cuda/high_order_conv/plan.cuh"

namespace capsops::high_order_conv::planes {

constexpr int kThreads = 256;
constexpr int kPerStep = 8;      // channels computed at once in large groups
constexpr int kBlockOfSum = 32;  // channels per partial sum

// Sizes for the kernels. A block has kThreads packs of one group of one image.
struct Work {
  int height, width, blocks;  // size of a plane, and blocks per plane
  int of_group;               // channels per group
  int kernel_height, kernel_width, dilation_height, dilation_width;
};

// A thread's pack: its first pixel, and the offsets of its group's first plane in
// images
// (`channel`) and in filters (`tap`). A plane has `plane` elements.
template <int kPixels>
struct Place {
  int x, y, pixel;
  int64_t plane, channel, tap;
  bool inside;

  __device__ explicit Place(const Work& w) {
    const int64_t group = blockIdx.x / static_cast<unsigned>(w.blocks);
    const int block = blockIdx.x % static_cast<unsigned>(w.blocks);
    plane = int64_t{w.height} * w.width;
    pixel = (block * kThreads + static_cast<int>(threadIdx.x)) * kPixels;
    inside = pixel < plane;
    y = pixel / w.width;
    x = pixel % w.width;
    channel = group * w.of_group * plane;
    tap = group * (int64_t{w.kernel_height} * w.kernel_width) * plane;
  }
};

__device__ inline bool Inside(int at, int size) {
  return static_cast<unsigned>(at) < static_cast<unsigned>(size);
}

// The columns of row `y` that kTaps neighboring taps read for a pack: pixel px reads
// column px + tap. They are loaded as three packs of 4 pixels, or kTaps packs of 1.
template <int kPixels, int kTaps>
struct Window {
  static constexpr int kColumns = kPixels + kTaps - 1;
  static constexpr int kPacks = kPixels == 1 ? kTaps : 3;
  static constexpr int kFirst = kPixels == 1 ? 0 : kPixels - kTaps / 2;
  int taps, from[kPacks];
  bool row, inside[kPacks];

  // Starts at tap `j` of a row of kernel_width taps, and uses `count` taps.
  __device__ Window(const Work& w, const Place<kPixels>& at, int y, int kernel_width,
                    int j, int count)
      : taps(count), row(Inside(y, w.height)) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int x = kPixels == 1 ? at.x + (j + i - kernel_width / 2) * w.dilation_width
                                 : at.x + (i - 1) * kPixels;
      const bool column =
          kPixels == 1 ? i < count && Inside(x, w.width) : i == 1 || Inside(x, w.width);
      inside[i] = row && column;
      from[i] = inside[i] ? y * w.width + x : at.pixel;
    }
  }
  __device__ bool Has(int column) const { return inside[(kFirst + column) / kPixels]; }

  // Loads N columns from `column` on, zeros outside the image. In place of a pack
  // outside it loads the thread's own one, so that loads need no branches and many are
  // in flight.
  template <typename S, typename A, int N>
  __device__ void Load(const S* plane, int column, A (&to)[N]) const {
    A values[kPacks * kPixels];
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      LoadPack<kPixels>(plane + from[i], values + i * kPixels);
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
      to[n] = Has(column + n) ? values[kFirst + column + n] : A{0};
    }
  }
};

// Adds the contribution of the window's taps to a pack of each channel. `filter` is the
// plane of the first tap. If kReverse, `channels` are planes of grad and the sum is
// grad_input: the taps are reversed, and filters are read at grad's pixels.
template <bool kReverse, int kPixels, int kTaps, int kChannels, typename S, typename A>
__device__ void AddTaps(const Place<kPixels>& at, const Window<kPixels, kTaps>& window,
                        const S* filter, const S* const (&channels)[kChannels],
                        A (&sum)[kChannels][kPixels]) {
  // With one pixel, a branch would keep the compiler from issuing the loads of the
  // caller's unrolled taps together.
  if (kPixels > 1 && !window.row) return;
  A f[kTaps][kPixels];
#pragma unroll
  for (int j = 0; j < kTaps; ++j) {
    if (kReverse) {
      window.Load(filter - j * at.plane, j, f[j]);
      continue;
    }
    LoadPack<kPixels>(filter + j * at.plane + at.pixel, f[j]);
#pragma unroll
    for (int px = 0; px < kPixels; ++px) {
      f[j][px] = window.Has(px + j) ? f[j][px] : A{0};
    }
  }
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    A v[window.kColumns];
    window.Load(channels[c], 0, v);
#pragma unroll
    for (int px = 0; px < kPixels; ++px) {
      A part = 0;
#pragma unroll
      for (int j = 0; j < kTaps; ++j) part += f[j][px] * v[px + j];
      sum[c][px] += part;
    }
  }
}

// Computes grad_filters for the taps of `window`; `result` is the plane of the first
// tap. A group has at most kChannels channels, or any number if kChannels is kPerStep.
template <int kChannels, typename A, int kPixels, int kTaps, typename S>
__device__ void FilterTaps(const Work& w, const Place<kPixels>& at,
                           const Window<kPixels, kTaps>& window,
                           const S* __restrict__ grad, const S* __restrict__ input,
                           S* __restrict__ result) {
  constexpr bool kMany = kChannels == kPerStep;
  constexpr int kBlock = kMany ? kBlockOfSum : kChannels;
  const int of_group = kChannels == 1 ? 1 : w.of_group;
  A sum[kTaps][kPixels] = {};
  if (kPixels == 1 || window.row) {
    for (int c0 = 0; c0 < (kMany ? of_group : 1); c0 += kBlock) {
      A part[kTaps][kPixels] = {};
#pragma unroll(kMany ? 2 : kBlock)
      for (int c = 0; c < kBlock; ++c) {
        if (c0 + c >= of_group) break;
        const int64_t plane = at.channel + (c0 + c) * at.plane;
        A g[kPixels], v[window.kColumns];
        LoadPack<kPixels>(grad + plane + at.pixel, g);
        window.Load(input + plane, 0, v);
#pragma unroll
        for (int j = 0; j < kTaps; ++j) {
#pragma unroll
          for (int px = 0; px < kPixels; ++px) part[j][px] += g[px] * v[px + j];
        }
      }
#pragma unroll
      for (int e = 0; e < kTaps * kPixels; ++e) {
        sum[e / kPixels][e % kPixels] += part[e / kPixels][e % kPixels];
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kTaps; ++j) {
    if (j >= window.taps) break;
#pragma unroll
    for (int px = 0; px < kPixels; ++px) {
      sum[j][px] = window.Has(px + j) ? sum[j][px] : A{0};
    }
    StorePack<kPixels>(sum[j], result + j * at.plane + at.pixel);
  }
}

// Minimum blocks per multiprocessor for the launch bounds, or 0 for the compiler's
// choice. Two are faster for 8 channels of 4 pixels, but with 7 taps they would spill.
template <int kPixels, int kWidth, int kChannels>
constexpr int kResident = kPixels * kChannels < 4 * kPerStep ? 0
                          : kWidth < 7                       ? 2
                                                             : 1;

// Computes output from input and filters, or if kReverse grad_input from grad and
// filters. If kFilters, also computes grad_filters while grad is loaded, for groups of
// at most kChannels channels.
template <typename S, typename A, int kPixels, int kWidth, int kChannels, bool kReverse,
          bool kFilters>
__global__ void __launch_bounds__(kThreads, (kResident<kPixels, kWidth, kChannels>))
    GatherKernel(Work w, const S* __restrict__ values, const S* __restrict__ filters,
                 S* __restrict__ result, const S* __restrict__ input,
                 S* __restrict__ grad_filters) {
  constexpr int kTaps = kWidth > 0 ? kWidth : 1;
  const int kernel_width = kWidth > 0 ? kWidth : w.kernel_width;
  const Place<kPixels> at(w);
  if (!at.inside) return;
  for (int c0 = 0; c0 < w.of_group; c0 += kChannels) {
    // Channels past the group's end repeat its last one, and are not stored.
    const S* channels[kChannels];
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      channels[c] = values + at.channel + min(c0 + c, w.of_group - 1) * at.plane;
    }
    const S* filter = filters + at.tap;
    if (kReverse) filter += (int64_t{w.kernel_height} * kernel_width - 1) * at.plane;
    S* grad_filter = grad_filters + at.tap;
    A sum[kChannels][kPixels] = {};
#pragma unroll 1
    for (int i = 0; i < w.kernel_height; ++i) {
      const int y = at.y + (i - w.kernel_height / 2) * w.dilation_height;
      // If kWidth is 0, each row of taps has its own sum, which bounds rounding errors.
      A part[kChannels][kPixels] = {};
#pragma unroll(kWidth > 0 ? 1 : 2)
      for (int j = 0; j < kernel_width; j += kTaps) {
        const Window<kPixels, kTaps> window(w, at, y, kernel_width, j, kTaps);
        AddTaps<kReverse>(at, window, filter, channels, kWidth > 0 ? sum : part);
        filter += (kReverse ? -kTaps : kTaps) * at.plane;
        if constexpr (kFilters) {
          FilterTaps<kChannels, A>(w, at, window, values, input, grad_filter);
          grad_filter += kTaps * at.plane;
        }
      }
      if constexpr (kWidth == 0) {
#pragma unroll
        for (int e = 0; e < kChannels * kPixels; ++e) {
          sum[e / kPixels][e % kPixels] += part[e / kPixels][e % kPixels];
        }
      }
    }
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      if (c0 + c >= w.of_group) break;
      StorePack<kPixels>(sum[c], result + at.channel + (c0 + c) * at.plane + at.pixel);
    }
  }
}

// Computes grad_filters for groups of any number of channels.
template <typename S, typename A, int kPixels, int kWidth>
__global__ void __launch_bounds__(kThreads)
    FiltersKernel(Work w, const S* __restrict__ grad, const S* __restrict__ input,
                  S* __restrict__ grad_filters) {
  constexpr int kTaps = kWidth > 0 ? kWidth : 4;
  const int kernel_width = kWidth > 0 ? kWidth : w.kernel_width;
  const Place<kPixels> at(w);
  if (!at.inside) return;
#pragma unroll 1
  for (int i = 0; i < w.kernel_height; ++i) {
    const int y = at.y + (i - w.kernel_height / 2) * w.dilation_height;
#pragma unroll 1
    for (int j = 0; j < kernel_width; j += kTaps) {
      const Window<kPixels, kTaps> window(w, at, y, kernel_width, j,
                                          min(kTaps, kernel_width - j));
      const int64_t tap = int64_t{i} * kernel_width + j;
      FilterTaps<kPerStep, A>(w, at, window, grad, input,
                              grad_filters + at.tap + tap * at.plane);
    }
  }
}

// Returns why this path refuses the problem, or splits planes into blocks and returns
// "". Kernels index a plane and a window's span with 31 bits.
inline std::string Divide(const Problem& p, int pixels, Work* w, int64_t* blocks) {
  constexpr int64_t kMax = 1 << 30;
  if (Empty(p)) return kEmpty;
  if (!p.channels_first) return "data_format is NHWC";
  if (p.height >= kMax / p.width || p.channels >= kMax || p.groups >= kMax) {
    return kTooLarge;
  }
  if (p.dilation_height >= kMax / p.kernel_height ||
      p.dilation_width >= kMax / p.kernel_width) {
    return "the window spans too many pixels";
  }
  // Most taps of a much larger window would be outside the image.
  if (p.kernel_height > 2 * p.height || p.kernel_width > 2 * p.width) {
    return "the window is more than twice as large as the image";
  }
  *w = {};
  w->height = p.height;
  w->width = p.width;
  w->blocks = CeilDivide(p.height * p.width / pixels, kThreads);
  w->of_group = p.channels / p.groups;
  w->kernel_height = p.kernel_height;
  w->kernel_width = p.kernel_width;
  w->dilation_height = p.dilation_height;
  w->dilation_width = p.dilation_width;
  if (p.batch > INT32_MAX / p.groups / w->blocks) return kTooLarge;
  *blocks = w->blocks * p.batch * p.groups;
  return "";
}

// Returns make(pixels, width, channels, work, blocks). The constants are the pixels per
// thread, kernel_width or 0 for any, and the channels of a group computed at once.
template <typename Plan, typename T, typename Make>
Plan WithSizes(const Problem& p, const Make& make) {
  return WithSize(p.kernel_width, [&](auto width) {
    constexpr bool kFours = width > 0 && !std::is_same_v<T, double>;
    const auto with_pixels = [&](auto pixels) {
      Work w;
      int64_t blocks;
      CAPSOPS_REFUSE_IF(Divide(p, pixels, &w, &blocks));
      return WithConstant<1, 3, kPerStep>(w.of_group, [&](auto channels) {
        return make(pixels, width, channels, w, blocks);
      });
    };
    if constexpr (kFours) {
      if (p.width % 4 == 0 && p.dilation_width == 1) {
        return with_pixels(std::integral_constant<int, 4>{});
      }
    }
    return with_pixels(std::integral_constant<int, 1>{});
  });
}

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec&, const Problem& p) {
  using Plan = ForwardPlan<GpuExec, T>;
  return WithSizes<Plan, T>(p, [](auto pixels, auto width, auto channels, Work w,
                                  int64_t blocks) {
    return Plan::Make(0, [=](const GpuExec& exec, const T* input, const T* filters,
                             T* output, void*) {
      return Launch(
          Forward::kName,
          GatherKernel<CudaType<T>, Accumulator<T>, decltype(pixels)::value,
                       decltype(width)::value, decltype(channels)::value, false, false>,
          blocks, kThreads, 0, exec, w, input, filters, output, nullptr, nullptr);
    });
  });
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec&, const Problem& p) {
  using Plan = BackwardPlan<GpuExec, T>;
  return WithSizes<Plan, T>(p, [](auto pixels, auto width, auto channels, Work w,
                                  int64_t blocks) {
    return Plan::Make(0, [=](const GpuExec& exec, const T* grad, const T* input,
                             const T* filters, T* grad_input, T* grad_filters, void*) {
      using S = CudaType<T>;
      using A = Accumulator<T>;
      constexpr int kPixels = decltype(pixels)::value;
      constexpr int kWidth = decltype(width)::value;
      constexpr int kChannels = decltype(channels)::value;
      constexpr bool kBoth = kChannels < kPerStep;
      LaunchError error = Launch(
          Backward::kName, GatherKernel<S, A, kPixels, kWidth, kChannels, true, kBoth>,
          blocks, kThreads, 0, exec, w, grad, filters, grad_input, input, grad_filters);
      if constexpr (!kBoth) {
        if (!error.empty()) return error;
        error = Launch(Backward::kName, FiltersKernel<S, A, kPixels, kWidth>, blocks,
                       kThreads, 0, exec, w, grad, input, grad_filters);
      }
      return error;
    });
  });
}

CAPSOPS_INSTANTIATE_PATH(GpuExec)

}  // namespace capsops::high_order_conv::planes
