// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// High-order convolution, channels first, where the width is a multiple of 4. A thread
// has 4 neighbouring pixels, a quad, and moves them at once. It holds the three quads
// of the image that a row of taps reads in registers. Quads are counted through all
// rows of a plane.
#ifndef CAPSOPS_CUDA_HIGH_ORDER_CONV_QUADS_CUH_
#define CAPSOPS_CUDA_HIGH_ORDER_CONV_QUADS_CUH_

#include <cstdint>

#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"
#include "cuda/high_order_conv/plan.cuh"

namespace capsops::high_order_conv::quads {

constexpr int kThreads = 256;
constexpr int kPixels = 4;
constexpr int kTogether = 8;     // channels of a group, where there are many
constexpr int kBlockOfSum = 32;  // channels added before they join the sum

struct Work {
  int height, width, blocks;  // of a plane
  int of_group;               // channels of a group
  int dilation_height;
};

// The quad of a thread, and the first element of its group's planes in each tensor.
struct Place {
  int x, y, pixel;
  int64_t plane, channel, tap;
  bool inside;

  // A block has `own` quads of its own, and `halo` more before them.
  __device__ Place(const Work& w, int own, int halo, int taps) {
    const int64_t group = blockIdx.x / static_cast<unsigned>(w.blocks);
    const int block = blockIdx.x % static_cast<unsigned>(w.blocks);
    pixel = (block * own - halo + static_cast<int>(threadIdx.x)) * kPixels;
    plane = int64_t{w.height} * w.width;
    inside = pixel >= 0 && pixel < plane;
    y = inside ? pixel / w.width : 0;
    x = inside ? pixel % w.width : 0;
    channel = group * w.of_group * plane;
    tap = group * taps * plane;
  }
  // Whether column `at` - R of the window, x - R and on, is inside the image.
  template <int R>
  __device__ bool Column(const Work& w, int at) const {
    return !((at < R && x == 0) || (at >= kPixels + R && x + kPixels == w.width));
  }
};

template <typename S, typename A>
__device__ void LoadQuad(const S* from, A* to) {
  const auto pack = *reinterpret_cast<const Pack<S, kPixels>*>(from);
#pragma unroll
  for (int px = 0; px < kPixels; ++px) to[px] = Widen(pack.at[px]);
}

template <typename S, typename A>
__device__ void StoreQuad(const A* from, S* to) {
  Pack<S, kPixels> pack;
#pragma unroll
  for (int px = 0; px < kPixels; ++px) Narrow(from[px], &pack.at[px]);
  *reinterpret_cast<Pack<S, kPixels>*>(to) = pack;
}

// Loads columns x - 4 to x + 7 of the row that `quad` points into; those outside the
// image are zero.
template <typename S, typename A>
__device__ void LoadWindow(const Work& w, const Place& at, const S* quad,
                           A (&window)[12]) {
  const bool left = at.x > 0, right = at.x + kPixels < w.width;
  LoadQuad(quad - (left ? kPixels : 0), window);
  LoadQuad(quad, window + kPixels);
  LoadQuad(quad + (right ? kPixels : 0), window + 2 * kPixels);
#pragma unroll
  for (int px = 0; px < kPixels; ++px) {
    window[px] = left ? window[px] : A{0};
    window[2 * kPixels + px] = right ? window[2 * kPixels + px] : A{0};
  }
}

template <typename S, typename A, int K, int kChannels>
__global__ void __launch_bounds__(kThreads)
    ForwardKernel(Work w, const S* __restrict__ input, const S* __restrict__ filters,
                  S* __restrict__ output) {
  constexpr int R = K / 2;
  const Place at(w, kThreads, 0, K * K);
  if (!at.inside) return;
  for (int c0 = 0; c0 < w.of_group; c0 += kChannels) {
    A sum[kChannels][kPixels] = {};
#pragma unroll 1
    for (int i = 0; i < K; ++i) {
      const int64_t y = at.y + int64_t{i - R} * w.dilation_height;
      if (y < 0 || y >= w.height) continue;
      A f[K][kPixels];
#pragma unroll
      for (int j = 0; j < K; ++j) {
        LoadQuad(filters + at.tap + (i * K + j) * at.plane + at.pixel, f[j]);
#pragma unroll
        for (int px = 0; px < kPixels; ++px) {
          f[j][px] = at.Column<R>(w, px + j) ? f[j][px] : A{0};
        }
      }
      const S* const row = input + at.channel + y * w.width + at.x;
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        A v[3 * kPixels];
        LoadWindow(w, at, row + min(c0 + c, w.of_group - 1) * at.plane, v);
#pragma unroll
        for (int j = 0; j < K; ++j) {
#pragma unroll
          for (int px = 0; px < kPixels; ++px) {
            sum[c][px] += f[j][px] * v[kPixels - R + px + j];
          }
        }
      }
    }
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      if (c0 + c < w.of_group) {
        StoreQuad(sum[c], output + at.channel + (c0 + c) * at.plane + at.pixel);
      }
    }
  }
}

// Computes grad_input, and where kFilters is true also grad_filters of groups of at
// most kChannels channels. A quad of filters is read once, by the thread in the same
// columns of the row that it reaches. Its contributions to the columns beside go to the
// neighbouring threads through shared memory, so a block has one more quad at each end.
template <typename S, typename A, int K, int kChannels, bool kFilters>
__global__ void __launch_bounds__(kThreads)
    GradientsKernel(Work w, const S* __restrict__ grad, const S* __restrict__ input,
                    const S* __restrict__ filters, S* __restrict__ grad_input,
                    S* __restrict__ grad_filters) {
  constexpr int R = K / 2, kWindow = kPixels + 2 * R;
  __shared__ A edges[2 * R * kChannels][kThreads];
  const Place at(w, kThreads - 2, 1, K * K);
  const bool own = at.inside && threadIdx.x > 0 && threadIdx.x < kThreads - 1;
  for (int c0 = 0; c0 < w.of_group; c0 += kChannels) {
    const auto channel = [&](int c) {
      return at.channel + min(c0 + c, w.of_group - 1) * at.plane;
    };
    A g[kChannels][kPixels] = {}, acc[kChannels][kWindow] = {};
    if (kFilters && own) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) LoadQuad(grad + channel(c) + at.pixel, g[c]);
    }
#pragma unroll 1
    for (int i = 0; i < K; ++i) {
      const int64_t down = int64_t{i - R} * w.dilation_height;
      if (at.inside && at.y - down >= 0 && at.y - down < w.height) {
        const int64_t from = (at.y - down) * w.width + at.x;
        A f[K][kPixels];
#pragma unroll
        for (int j = 0; j < K; ++j) {
          LoadQuad(filters + at.tap + (i * K + j) * at.plane + from, f[j]);
        }
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          A values[kPixels];
          LoadQuad(grad + channel(c) + from, values);
#pragma unroll
          for (int j = 0; j < K; ++j) {
#pragma unroll
            for (int px = 0; px < kPixels; ++px)
              acc[c][px + j] += values[px] * f[j][px];
          }
        }
      }
      if constexpr (kFilters) {
        if (!own) continue;
        A product[K][kPixels] = {};
        if (at.y + down >= 0 && at.y + down < w.height) {
#pragma unroll
          for (int c = 0; c < kChannels; ++c) {
            if (c >= w.of_group) break;
            A v[3 * kPixels];
            LoadWindow(w, at, input + channel(c) + (at.y + down) * w.width + at.x, v);
#pragma unroll
            for (int j = 0; j < K; ++j) {
#pragma unroll
              for (int px = 0; px < kPixels; ++px) {
                product[j][px] += g[c][px] * v[kPixels - R + px + j];
              }
            }
          }
        }
#pragma unroll
        for (int j = 0; j < K; ++j) {
#pragma unroll
          for (int px = 0; px < kPixels; ++px) {
            product[j][px] = at.Column<R>(w, px + j) ? product[j][px] : A{0};
          }
          StoreQuad(product[j],
                    grad_filters + at.tap + (i * K + j) * at.plane + at.pixel);
        }
      }
    }
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int e = 0; e < 2 * R; ++e) {
        edges[c * 2 * R + e][threadIdx.x] = acc[c][e < R ? e : e + kPixels];
      }
    }
    __syncthreads();
    if (own) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        if (c0 + c >= w.of_group) break;
        A sum[kPixels];
#pragma unroll
        for (int px = 0; px < kPixels; ++px) {
          sum[px] = acc[c][R + px];
          // Adds the right neighbour's first columns and the left neighbour's last
          // ones.
          if (px >= kPixels - R && at.x + kPixels < w.width) {
            sum[px] += edges[c * 2 * R + px - (kPixels - R)][threadIdx.x + 1];
          }
          if (px < R && at.x > 0) sum[px] += edges[c * 2 * R + R + px][threadIdx.x - 1];
        }
        StoreQuad(sum, grad_input + channel(c) + at.pixel);
      }
    }
    __syncthreads();
  }
}

// Computes grad_filters for groups of any number of channels.
template <typename S, typename A, int K>
__global__ void __launch_bounds__(kThreads)
    FiltersKernel(Work w, const S* __restrict__ grad, const S* __restrict__ input,
                  S* __restrict__ grad_filters) {
  constexpr int R = K / 2;
  const Place at(w, kThreads, 0, K * K);
  if (!at.inside) return;
#pragma unroll 1
  for (int i = 0; i < K; ++i) {
    const int64_t y = at.y + int64_t{i - R} * w.dilation_height;
    A sum[K][kPixels] = {};
    if (y >= 0 && y < w.height) {
      for (int c0 = 0; c0 < w.of_group; c0 += kBlockOfSum) {
        A part[K][kPixels] = {};
#pragma unroll 2
        for (int c = c0; c < min(c0 + kBlockOfSum, w.of_group); ++c) {
          A g[kPixels], v[3 * kPixels];
          LoadQuad(grad + at.channel + c * at.plane + at.pixel, g);
          LoadWindow(w, at, input + at.channel + c * at.plane + y * w.width + at.x, v);
#pragma unroll
          for (int j = 0; j < K; ++j) {
#pragma unroll
            for (int px = 0; px < kPixels; ++px) {
              part[j][px] += g[px] * v[kPixels - R + px + j];
            }
          }
        }
#pragma unroll
        for (int e = 0; e < K * kPixels; ++e) {
          sum[e / kPixels][e % kPixels] += part[e / kPixels][e % kPixels];
        }
      }
    }
#pragma unroll
    for (int j = 0; j < K; ++j) {
#pragma unroll
      for (int px = 0; px < kPixels; ++px) {
        sum[j][px] = at.Column<R>(w, px + j) ? sum[j][px] : A{0};
      }
      StoreQuad(sum[j], grad_filters + at.tap + (i * K + j) * at.plane + at.pixel);
    }
  }
}

// Says why this kernel cannot do it, or divides planes into blocks that have `own`
// quads each and returns null.
inline const char* Divide(const Problem& p, int own, Work* w, int64_t* blocks) {
  constexpr int64_t kMost = 1 << 30;
  if (Empty(p)) return kEmpty;
  if (!p.channels_first) return "data_format is NHWC";
  if (p.dilation_width != 1) return "there is a dilation across";
  if (p.width % kPixels != 0) return "width is no multiple of 4";
  if (p.dilation_height > INT32_MAX) return "the dilation down is too large";
  if (p.height >= kMost / p.width || p.channels >= kMost) return kTooLarge;
  *blocks = CeilDivide(p.height * p.width / kPixels, own);
  *w = {static_cast<int>(p.height), static_cast<int>(p.width),
        static_cast<int>(*blocks), static_cast<int>(p.channels / p.groups),
        static_cast<int>(p.dilation_height)};
  if (p.batch > INT32_MAX / p.groups / *blocks) return kTooLarge;
  *blocks *= p.batch * p.groups;
  return nullptr;
}

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const Problem& p) {
  using Plan = ForwardPlan<GpuExec, T>;
  Work w;
  int64_t blocks;
  if (const char* const why = Divide(p, kThreads, &w, &blocks)) {
    return Plan::Refuse(why);
  }
  return WithKernel<Plan, T>(p, [&](auto k) {
    return WithChannels<kTogether>(w.of_group, [&](auto channels) {
      return Plan::Make(0, [w, blocks](const GpuExec& exec, const T* input,
                                       const T* filters, T* output, void*) {
        ForwardKernel<CudaType<T>, Accumulator<T>, decltype(k)::value,
                      decltype(channels)::value><<<blocks, kThreads, 0, exec.stream>>>(
            w, Native(input), Native(filters), Native(output));
        return CheckLaunch(kForwardName);
      });
    });
  });
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const Problem& p) {
  using Plan = BackwardPlan<GpuExec, T>;
  Work of_input, of_filters;
  int64_t input_blocks, filter_blocks;
  for (const char* const why : {Divide(p, kThreads - 2, &of_input, &input_blocks),
                                Divide(p, kThreads, &of_filters, &filter_blocks)}) {
    if (why != nullptr) return Plan::Refuse(why);
  }
  return WithKernel<Plan, T>(p, [&](auto k) {
    return WithChannels<kTogether>(of_input.of_group, [&](auto channels) {
      return Plan::Make(
          0, [=](const GpuExec& exec, const T* grad, const T* input, const T* filters,
                 T* grad_input, T* grad_filters, void*) {
            using S = CudaType<T>;
            using A = Accumulator<T>;
            constexpr int kKernel = decltype(k)::value;
            constexpr int kChannels = decltype(channels)::value;
            constexpr bool kBoth = kChannels < kTogether;
            GradientsKernel<S, A, kKernel, kChannels, kBoth>
                <<<input_blocks, kThreads, 0, exec.stream>>>(
                    of_input, Native(grad), Native(input), Native(filters),
                    Native(grad_input), Native(grad_filters));
            LaunchError error = CheckLaunch(kBackwardName);
            if constexpr (!kBoth) {
              if (!error.empty()) return error;
              FiltersKernel<S, A, kKernel><<<filter_blocks, kThreads, 0, exec.stream>>>(
                  of_filters, Native(grad), Native(input), Native(grad_filters));
              error = CheckLaunch(kBackwardName);
            }
            return error;
          });
    });
  });
}

}  // namespace capsops::high_order_conv::quads

#endif  // CAPSOPS_CUDA_HIGH_ORDER_CONV_QUADS_CUH_
