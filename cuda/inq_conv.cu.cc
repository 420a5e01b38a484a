// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// INQ convolution as a capsule convolution over poses of 1 x in_channels and
// in_channels x out_channels, of which each pixel has one. Weights are decoded into the
// workspace; images of 16-bit types are computed there in float, for their weights may
// not fit in 16 bits.
#include "cc/launch/inq_conv.h"

#include <algorithm>
#include <type_traits>

#include "cc/launch/capsule_conv.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"

namespace capsops::inq_conv {
namespace {

constexpr int kThreads = 256;

// Exponents of top weights with which no weight overflows or is subnormal: from minus
// this to this.
template <typename A>
constexpr int kLargestTop = std::is_same_v<A, double> ? 900 : 60;

// Weights whose largest is 2^top; `last` is the last code of the book.
template <typename A>
__global__ void DecodeKernel(int64_t count, int top, int last, const uint8_t* codes,
                             A* weights) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += stride) {
    const int code = codes[i];
    const A size = ldexp(A{1}, top - (code - 1) / 2);
    weights[i] = code == 0 || code > last ? A{0} : code % 2 == 1 ? size : -size;
  }
}

// to = from * 2^exponent; `from` and `to` may be the same.
template <typename From, typename To>
__global__ void ScaleKernel(int64_t count, int exponent, const From* from, To* to) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += stride) {
    Narrow(ldexp(Widen(from[i]), exponent), to + i);
  }
}

unsigned int Blocks(int64_t count) {
  return static_cast<unsigned int>(
      std::min<int64_t>(CeilDivide(count, kThreads), 1 << 16));
}

template <typename From, typename To>
LaunchError Scale(const GpuExec& exec, int64_t count, int exponent, const From* from,
                  To* to) {
  if (count == 0) return {};
  ScaleKernel<<<Blocks(count), kThreads, 0, exec.stream>>>(count, exponent, from, to);
  return CheckLaunch("InqConv scaling");
}

capsule_conv::Problem AsCapsules(const Problem& p) {
  capsule_conv::Problem q;
  q.batch = p.batch;
  q.in_height = p.in_height;
  q.in_width = p.in_width;
  q.kernel_height = p.kernel_height;
  q.kernel_width = p.kernel_width;
  q.out_height = p.out_height;
  q.out_width = p.out_width;
  q.in_channels = q.out_channels = q.pose_depth = q.pose_rows = 1;
  q.pose_inner = p.in_channels;
  q.pose_columns = p.out_channels;
  q.stride_height = p.stride_height;
  q.stride_width = p.stride_width;
  q.dilation_height = p.dilation_height;
  q.dilation_width = p.dilation_width;
  q.pad_top = p.pad_top;
  q.pad_left = p.pad_left;
  return q;
}

int64_t Weights(const Problem& p) {
  return p.kernel_height * p.kernel_width * p.in_channels * p.out_channels;
}
int64_t Input(const Problem& p) {
  return p.batch * p.in_height * p.in_width * p.in_channels;
}
int64_t Output(const Problem& p) {
  return p.batch * p.out_height * p.out_width * p.out_channels;
}

// What lies in the workspace, in bytes from its beginning.
template <typename T>
struct Layout {
  using A = Accumulator<T>;
  static constexpr bool kWidened = !std::is_same_v<T, A>;

  Layout(const Problem& p, int64_t from_count, int64_t to_count) {
    from = After(0, Weights(p));
    to = After(from, kWidened ? from_count : 0);
    convolution = After(to, kWidened ? to_count : 0);
  }

  static int64_t After(int64_t start, int64_t count) {
    return start + CeilDivide(count * static_cast<int64_t>(sizeof(A)), 64) * 64;
  }

  int64_t from, to, convolution;
};

// Decodes, widens, lets `convolve` compute (from, weights, to, its workspace), and
// scales.
template <typename T, typename Convolve>
LaunchError Run(const GpuExec& exec, const Problem& p, const uint8_t* codes,
                int32_t top_exponent, const T* from, int64_t from_count, T* to,
                int64_t to_count, void* workspace, const Convolve& convolve) {
  using A = Accumulator<T>;
  const Layout<T> layout(p, from_count, to_count);
  char* const base = static_cast<char*>(workspace);
  A* const weights = reinterpret_cast<A*>(base);
  const int top = std::clamp(top_exponent, -kLargestTop<A>, kLargestTop<A>);
  // Past 5000 up or down every result is infinite or zero.
  const int rest = std::clamp(top_exponent, -5000, 5000) - top;
  LaunchError error;
  if (const int64_t count = Weights(p)) {
    DecodeKernel<<<Blocks(count), kThreads, 0, exec.stream>>>(
        count, top, 1 << (p.bits - 1), codes, weights);
    error = CheckLaunch("InqConv decoding");
    if (!error.empty()) return error;
  }
  if constexpr (Layout<T>::kWidened) {
    A* const wide = reinterpret_cast<A*>(base + layout.from);
    A* const sums = reinterpret_cast<A*>(base + layout.to);
    error = Scale(exec, from_count, 0, Native(from), wide);
    if (!error.empty()) return error;
    error = convolve(wide, weights, sums, base + layout.convolution);
    if (!error.empty()) return error;
    return Scale(exec, to_count, rest, sums, Native(to));
  } else {
    error = convolve(from, weights, to, base + layout.convolution);
    if (!error.empty() || rest == 0) return error;
    return Scale(exec, to_count, rest, to, to);
  }
}

}  // namespace

template <typename T>
int64_t ForwardWorkspace(const GpuExec& exec, const Problem& p) {
  return Layout<T>(p, Input(p), Output(p)).convolution +
         capsule_conv::ForwardWorkspace<Accumulator<T>>(exec, AsCapsules(p));
}

template <typename T>
int64_t BackpropInputWorkspace(const GpuExec& exec, const Problem& p) {
  return Layout<T>(p, Output(p), Input(p)).convolution +
         capsule_conv::BackpropInputWorkspace<Accumulator<T>>(exec, AsCapsules(p));
}

template <typename T>
LaunchError Forward(const GpuExec& exec, const Problem& p, const T* input,
                    const uint8_t* codes, int32_t top_exponent, T* output,
                    void* workspace) {
  using A = Accumulator<T>;
  return Run(exec, p, codes, top_exponent, input, Input(p), output, Output(p),
             workspace, [&](const A* from, const A* weights, A* to, void* space) {
               return capsule_conv::Forward(exec, AsCapsules(p), from, weights, to,
                                            space);
             });
}

template <typename T>
LaunchError BackpropInput(const GpuExec& exec, const Problem& p, const uint8_t* codes,
                          int32_t top_exponent, const T* grad, T* grad_input,
                          void* workspace) {
  using A = Accumulator<T>;
  return Run(exec, p, codes, top_exponent, grad, Output(p), grad_input, Input(p),
             workspace, [&](const A* from, const A* weights, A* to, void* space) {
               return capsule_conv::BackpropInput(exec, AsCapsules(p), weights, from,
                                                  to, space);
             });
}

#define CAPSOPS_INSTANTIATE(T)                                                       \
  template int64_t ForwardWorkspace<T>(const GpuExec&, const Problem&);              \
  template int64_t BackpropInputWorkspace<T>(const GpuExec&, const Problem&);        \
  template LaunchError Forward(const GpuExec&, const Problem&, const T*,             \
                               const uint8_t*, int32_t, T*, void*);                  \
  template LaunchError BackpropInput(const GpuExec&, const Problem&, const uint8_t*, \
                                     int32_t, const T*, T*, void*);
CAPSOPS_INSTANTIATE(float)
CAPSOPS_INSTANTIATE(double)
CAPSOPS_INSTANTIATE(Float16)
CAPSOPS_INSTANTIATE(BFloat16)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::inq_conv
