// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// High-order convolution of any size, type and layout. Each thread computes one element
// of a result at a time, directly from the definition and from global memory.
// Neighboring threads have neighboring elements, so that most accesses coalesce.
#include <algorithm>
#include <cstdint>

#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"
#include "cuda/high_order_conv/paths.h"
#include "cuda/high_order_conv/plan.cuh"

namespace capsops::high_order_conv::general {

constexpr int kThreads = 256;
constexpr int kBlockOfSum = 32;

// A sum of n terms in blocks of 32, so that its rounding error grows with 32 + n / 32
// and not with n.
template <typename A>
class Sum {
 public:
  __device__ void Add(A term) {
    block_ += term;
    if (++count_ % kBlockOfSum == 0) {
      total_ += block_;
      block_ = 0;
    }
  }
  __device__ A Value() const { return total_ + block_; }

 private:
  A total_ = 0, block_ = 0;
  int count_ = 0;
};

// Coordinates of an element: sample, row, column, and channel or filter element.
struct Place {
  int64_t n, y, x, inner;
};

// Convert between an element's index and its coordinates, in a tensor of `inners`
// channels or filter elements per pixel.
__device__ inline Place Locate(const Problem& p, int64_t element, int64_t inners) {
  Place at;
  if (p.channels_first) {
    element = Split(element, p.width, &at.x);
    element = Split(element, p.height, &at.y);
    at.n = Split(element, inners, &at.inner);
  } else {
    element = Split(element, inners, &at.inner);
    element = Split(element, p.width, &at.x);
    at.n = Split(element, p.height, &at.y);
  }
  return at;
}

__device__ inline int64_t ElementAt(const Problem& p, const Place& at, int64_t inners) {
  return p.channels_first
             ? ((at.n * inners + at.inner) * p.height + at.y) * p.width + at.x
             : ((at.n * p.height + at.y) * p.width + at.x) * inners + at.inner;
}

// Computes output from input and filters, or if kReverse grad_input from grad and
// filters. A pixel of grad_input reads the filters of the surrounding pixels, at the
// opposite taps.
template <typename S, typename A, bool kReverse>
__global__ void __launch_bounds__(kThreads)
    GatherKernel(Problem p, int64_t elements, const S* __restrict__ values,
                 const S* __restrict__ filters, S* __restrict__ result) {
  const int64_t taps = p.kernel_height * p.kernel_width, per_pixel = p.groups * taps;
  const int64_t of_group = p.channels / p.groups;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t e = int64_t{blockIdx.x} * kThreads + threadIdx.x; e < elements;
       e += stride) {
    const Place at = Locate(p, e, p.channels);
    const int64_t above = at.y, below = p.height - 1 - at.y;
    const int64_t left = at.x, right = p.width - 1 - at.x;
    const Reach rows(kReverse ? below : above, kReverse ? above : below,
                     p.kernel_height, p.dilation_height);
    const Reach columns(kReverse ? right : left, kReverse ? left : right,
                        p.kernel_width, p.dilation_width);
    const int64_t sign = kReverse ? -1 : 1;
    const int64_t step_x = p.channels_first ? 1 : p.channels;
    const int64_t step_taps = p.channels_first ? p.height * p.width : 1;
    const int64_t step_filters = p.channels_first ? 1 : per_pixel;
    int64_t ignored;
    const int64_t first_tap = Split(at.inner, of_group, &ignored) * taps;
    Sum<A> sum;
    for (int64_t kh = rows.begin; kh < rows.end; ++kh) {
      const int64_t y = at.y + sign * (kh - p.kernel_height / 2) * p.dilation_height;
      const S* const row = values + ElementAt(p, {at.n, y, 0, at.inner}, p.channels);
      const S* const filter =
          filters + ElementAt(p,
                              {at.n, kReverse ? y : at.y, kReverse ? 0 : at.x,
                               first_tap + kh * p.kernel_width},
                              per_pixel);
      for (int64_t kw = columns.begin; kw < columns.end; ++kw) {
        const int64_t x = at.x + sign * (kw - p.kernel_width / 2) * p.dilation_width;
        sum.Add(Widen(row[x * step_x]) *
                Widen(filter[kw * step_taps + (kReverse ? x * step_filters : 0)]));
      }
    }
    Narrow(sum.Value(), result + e);
  }
}

// Computes grad_filters: per tap, the inner product of grad and input over a group.
template <typename S, typename A>
__global__ void __launch_bounds__(kThreads)
    FiltersKernel(Problem p, int64_t elements, const S* __restrict__ grad,
                  const S* __restrict__ input, S* __restrict__ grad_filters) {
  const int64_t taps = p.kernel_height * p.kernel_width;
  const int64_t of_group = p.channels / p.groups;
  const int64_t step_c = p.channels_first ? p.height * p.width : 1;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t e = int64_t{blockIdx.x} * kThreads + threadIdx.x; e < elements;
       e += stride) {
    const Place at = Locate(p, e, p.groups * taps);
    int64_t tap, kw;
    const int64_t c = Split(at.inner, taps, &tap) * of_group;
    const int64_t kh = Split(tap, p.kernel_width, &kw);
    const int64_t y = at.y + (kh - p.kernel_height / 2) * p.dilation_height;
    const int64_t x = at.x + (kw - p.kernel_width / 2) * p.dilation_width;
    Sum<A> sum;
    if (y >= 0 && y < p.height && x >= 0 && x < p.width) {
      const S* const g = grad + ElementAt(p, {at.n, at.y, at.x, c}, p.channels);
      const S* const v = input + ElementAt(p, {at.n, y, x, c}, p.channels);
      for (int64_t i = 0; i < of_group; ++i) {
        sum.Add(Widen(g[i * step_c]) * Widen(v[i * step_c]));
      }
    }
    Narrow(sum.Value(), grad_filters + e);
  }
}

inline unsigned Blocks(int64_t elements) {
  return std::min(CeilDivide(elements, kThreads), int64_t{INT32_MAX});
}

template <typename T, bool kReverse>
LaunchError Gather(const char* name, const GpuExec& exec, const Problem& p,
                   const T* values, const T* filters, T* result) {
  const int64_t elements = Pixels(p) * p.channels;
  if (elements == 0) return {};
  return Launch(name, GatherKernel<CudaType<T>, Accumulator<T>, kReverse>,
                Blocks(elements), kThreads, 0, exec, p, elements, values, filters,
                result);
}

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec&, const Problem& p) {
  return ForwardPlan<GpuExec, T>::Make(
      0, [p](const GpuExec& exec, const T* input, const T* filters, T* output, void*) {
        return Gather<T, false>(Forward::kName, exec, p, input, filters, output);
      });
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec&, const Problem& p) {
  return BackwardPlan<GpuExec, T>::Make(0, [p](const GpuExec& exec, const T* grad,
                                               const T* input, const T* filters,
                                               T* grad_input, T* grad_filters, void*) {
    const LaunchError error =
        Gather<T, true>(Backward::kName, exec, p, grad, filters, grad_input);
    const int64_t elements = Pixels(p) * p.groups * p.kernel_height * p.kernel_width;
    if (!error.empty() || elements == 0) return error;
    return Launch(Backward::kName, FiltersKernel<CudaType<T>, Accumulator<T>>,
                  Blocks(elements), kThreads, 0, exec, p, elements, grad, input,
                  grad_filters);
  });
}

CAPSOPS_INSTANTIATE_PATH(GpuExec)

}  // namespace capsops::high_order_conv::general
