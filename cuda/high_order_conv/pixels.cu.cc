// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// High-order convolution, channels last, of any window, dilation and type, if the
// filters of 32 pixels fit in shared memory. A block has 32 to 256 consecutive pixels.
// Neighboring threads have neighboring pixels, and each computes 4 channels of a group
// at a time. Images are read from global memory. Filters, or their gradients, are
// staged in shared memory so that global accesses coalesce, except for grad_input,
// which reads the filters of surrounding pixels from global memory.
#include <cuda_pipeline.h>

#include <cstdint>
#include <string>

#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"
#include "cuda/high_order_conv/paths.h"
#include "cuda/high_order_conv/plan.cuh"

namespace capsops::high_order_conv::pixels {

constexpr int kThreads = 256;
constexpr int kPerStep = 4;        // channels computed at once
constexpr int kShared = 48 << 10;  // limit of a block's filters, in bytes
constexpr int kMinPixels = 32;     // pixels per block

// Work split. A block has `pixels` pixels, a power of two, and `kThreads / pixels`
// threads per pixel, which split its channels or, in FiltersKernel, its taps.
struct Work {
  int pixels, chunks, of_group, per_pixel;  // `chunks` of kPerStep channels per group
};

// A thread's pixel and its part of the work there.
struct Place {
  int64_t first, pixel;  // pixels of the block and the thread, counted over the batch
  int64_t y, x;
  int count;        // pixels of the block
  int of_block;     // index of the thread's pixel in the block
  int part, parts;  // the thread's part, and the threads that share a pixel
  bool inside;      // whether the thread has a pixel; otherwise `pixel` is `first`

  __device__ Place(const Problem& p, const Work& w) {
    const int64_t all = p.batch * p.height * p.width;
    first = int64_t{blockIdx.x} * w.pixels;
    count = static_cast<int>(min(int64_t{w.pixels}, all - first));
    of_block = threadIdx.x % w.pixels;
    part = threadIdx.x / w.pixels;
    parts = kThreads / w.pixels;
    inside = of_block < count;
    pixel = first + (inside ? of_block : 0);
    Split(Split(pixel, p.width, &x), p.height, &y);
  }
};

// Computes output from input and staged filters, or if kReverse grad_input from grad
// and filters in global memory.
template <typename S, typename A, bool kReverse>
__global__ void __launch_bounds__(kThreads)
    GatherKernel(Problem p, Work w, const S* __restrict__ values,
                 const S* __restrict__ filters, S* __restrict__ result) {
  extern __shared__ __align__(16) char shared[];
  S* const staged = reinterpret_cast<S*>(shared);
  const Place at(p, w);
  const S* mine = filters + at.pixel * w.per_pixel;
  if constexpr (!kReverse) {
    const int64_t start = at.first * w.per_pixel;
    const S* const from = filters + start - start % (16 / sizeof(S));
    const int skip = ForSegment<S>(
        start, at.count * w.per_pixel,
        [&](int e) { __pipeline_memcpy_async(staged + e, from + e, 16); },
        [&](int e) { staged[e] = from[e]; });
    mine = staged + skip + at.of_block * w.per_pixel;
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
  }
  if (!at.inside) return;
  const int height = p.kernel_height, width = p.kernel_width;
  const int64_t below = p.height - 1 - at.y, right = p.width - 1 - at.x;
  const Reach rows(kReverse ? below : at.y, kReverse ? at.y : below, height,
                   p.dilation_height);
  const Reach columns(kReverse ? right : at.x, kReverse ? at.x : right, width,
                      p.dilation_width);
  for (int chunk = at.part; chunk < w.chunks * static_cast<int>(p.groups);
       chunk += at.parts) {
    const int group = chunk / w.chunks, c0 = chunk % w.chunks * kPerStep;
    const S* const first = values + group * w.of_group + c0;
    // Channels past the group's end repeat its last one, and are not stored.
    int offset[kPerStep];
#pragma unroll
    for (int c = 0; c < kPerStep; ++c) offset[c] = min(c, w.of_group - 1 - c0);
    A sum[kPerStep] = {};
    for (int64_t kh = rows.begin; kh < rows.end; ++kh) {
      const int i = static_cast<int>(kh);
      const int64_t down = (i - height / 2) * p.dilation_height * p.width;
      const int tap = (group * height + i) * width;
      A part[kPerStep] = {};
#pragma unroll 4
      for (int j = static_cast<int>(columns.begin); j < columns.end; ++j) {
        const int64_t away = down + (j - width / 2) * p.dilation_width;
        const int64_t source = kReverse ? at.pixel - away : at.pixel + away;
        const A f =
            Widen(kReverse ? filters[source * w.per_pixel + tap + j] : mine[tap + j]);
        const S* const from = first + source * p.channels;
#pragma unroll
        for (int c = 0; c < kPerStep; ++c) part[c] += f * Widen(from[offset[c]]);
      }
#pragma unroll
      for (int c = 0; c < kPerStep; ++c) sum[c] += part[c];
    }
    S* const to = result + at.pixel * p.channels + group * w.of_group + c0;
#pragma unroll
    for (int c = 0; c < kPerStep; ++c) {
      if (c0 + c < w.of_group) Narrow(sum[c], to + c);
    }
  }
}

// Computes grad_filters. A thread has some taps of its pixel, and adds up their
// channels in shared memory, 4 at a time. From there, stores coalesce.
template <typename S, typename A>
__global__ void __launch_bounds__(kThreads)
    FiltersKernel(Problem p, Work w, const S* __restrict__ grad,
                  const S* __restrict__ input, S* __restrict__ grad_filters) {
  extern __shared__ __align__(16) char shared[];
  A* const staged = reinterpret_cast<A*>(shared);
  const Place at(p, w);
  const int width = p.kernel_width, taps = static_cast<int>(p.kernel_height) * width;
  for (int chunk = 0; at.inside && chunk < w.chunks * static_cast<int>(p.groups);
       ++chunk) {
    const int group = chunk / w.chunks, c0 = chunk % w.chunks * kPerStep;
    const int64_t channel = group * w.of_group + c0;
    A own[kPerStep];
    int offset[kPerStep];
#pragma unroll
    for (int c = 0; c < kPerStep; ++c) {
      const bool has = c0 + c < w.of_group;
      offset[c] = has ? c : 0;
      const A g = Widen(grad[at.pixel * p.channels + channel + offset[c]]);
      own[c] = has ? g : A{0};
    }
    A* const mine = staged + at.of_block * w.per_pixel + group * taps;
#pragma unroll 4
    for (int tap = at.part; tap < taps; tap += at.parts) {
      const int i = tap / width, j = tap % width;
      const int64_t y = at.y + (i - p.kernel_height / 2) * p.dilation_height;
      const int64_t x = at.x + (j - width / 2) * p.dilation_width;
      const bool inside = y >= 0 && y < p.height && x >= 0 && x < p.width;
      const int64_t source =
          at.pixel + (inside ? (y - at.y) * p.width + (x - at.x) : 0);
      const S* const from = input + source * p.channels + channel;
      A sum = 0;
#pragma unroll
      for (int c = 0; c < kPerStep; ++c) {
        // Ignores channels of the next group, which might not be finite.
        sum += own[c] * (c0 + c < w.of_group ? Widen(from[offset[c]]) : A{0});
      }
      mine[tap] = inside ? (c0 > 0 ? mine[tap] + sum : sum) : A{0};
    }
  }
  __syncthreads();
  S* const to = grad_filters + at.first * w.per_pixel;
  for (int e = threadIdx.x; e < at.count * w.per_pixel; e += kThreads) {
    Narrow(staged[e], to + e);
  }
}

// Returns the pixels per block, at most `maximum`, or 0 if the filters of kMinPixels do
// not fit. An element of filters takes `bytes` of shared memory.
inline int PixelsOfBlock(const Problem& p, int bytes, int maximum) {
  const int64_t limit = kShared / bytes - 16;  // less the padding of a segment
  if (p.kernel_height > limit || p.kernel_width > limit || p.groups > limit) return 0;
  const int64_t per_pixel = p.groups * p.kernel_height * p.kernel_width;
  int pixels = maximum;
  while (pixels >= kMinPixels && pixels * per_pixel > limit) pixels /= 2;
  return pixels >= kMinPixels ? pixels : 0;
}

// Returns why this path refuses the problem, or splits the pixels among blocks and
// returns "". An element of filters takes `bytes` of shared memory.
inline std::string Divide(const Problem& p, int bytes, Work* w, int64_t* blocks) {
  if (Empty(p)) return kEmpty;
  if (p.channels_first) return "data_format is NCHW";
  if (p.channels > 1 << 24) return "there are too many channels";
  *w = {};
  w->of_group = p.channels / p.groups;
  w->chunks = CeilDivide(w->of_group, kPerStep);
  // Each halving of the pixels doubles the threads per pixel. There should be no more
  // threads than chunks.
  int maximum = kThreads;
  for (int64_t parts = w->chunks * p.groups; parts > 1 && maximum > kMinPixels;
       parts /= 2) {
    maximum /= 2;
  }
  w->pixels = PixelsOfBlock(p, bytes, maximum);
  if (w->pixels == 0) return "the filters of 32 pixels do not fit in shared memory";
  w->per_pixel = p.groups * p.kernel_height * p.kernel_width;
  *blocks = CeilDivide(Pixels(p), w->pixels);
  return *blocks <= INT32_MAX ? "" : kTooLarge;
}

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec&, const Problem& p) {
  using Plan = ForwardPlan<GpuExec, T>;
  Work w;
  int64_t blocks;
  CAPSOPS_REFUSE_IF(Divide(p, sizeof(T), &w, &blocks));
  return Plan::Make(0, [=](const GpuExec& exec, const T* input, const T* filters,
                           T* output, void*) {
    return Launch(Forward::kName, GatherKernel<CudaType<T>, Accumulator<T>, false>,
                  blocks, kThreads, SegmentSize<T>(w.pixels * w.per_pixel) * sizeof(T),
                  exec, p, w, input, filters, output);
  });
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec&, const Problem& p) {
  using Plan = BackwardPlan<GpuExec, T>;
  using S = CudaType<T>;
  using A = Accumulator<T>;
  Work w;
  int64_t blocks;
  CAPSOPS_REFUSE_IF(Divide(p, sizeof(A), &w, &blocks));
  return Plan::Make(0, [=](const GpuExec& exec, const T* grad, const T* input,
                           const T* filters, T* grad_input, T* grad_filters, void*) {
    CAPSOPS_RETURN_IF_ERROR(Launch(Backward::kName, GatherKernel<S, A, true>, blocks,
                                   kThreads, 0, exec, p, w, grad, filters, grad_input));
    return Launch(Backward::kName, FiltersKernel<S, A>, blocks, kThreads,
                  w.pixels * w.per_pixel * sizeof(A), exec, p, w, grad, input,
                  grad_filters);
  });
}

CAPSOPS_INSTANTIATE_PATH(GpuExec)

}  // namespace capsops::high_order_conv::pixels
