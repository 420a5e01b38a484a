// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// INQ convolution as a capsule convolution over poses of 1 x in_channels and
// in_channels x out_channels, of which each pixel has one. Weights are decoded into the
// workspace; images of 16-bit types are computed there in float, for their weights may
// not fit in 16 bits.
#include "cc/cpu/inq_conv.h"

#include <algorithm>
#include <string>

#include "cc/cpu/dispatch/isa.h"
#include "cc/launch/capsule_conv.h"

namespace capsops::inq_conv {
namespace {

template <typename T>
const CpuKernels<T>& Selected() {
  static const CpuKernels<T> kernels = CAPSOPS_SELECT(Kernels<T>());
  return kernels;
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
  static constexpr bool kWidened = !std::is_same_v<T, Real<T>>;

  explicit Layout(const Problem& p, int64_t from_count, int64_t to_count) {
    from = After(0, Weights(p));
    to = After(from, kWidened ? from_count : 0);
    convolution = After(to, kWidened ? to_count : 0);
  }

  static int64_t After(int64_t start, int64_t count) {
    return start + (count * static_cast<int64_t>(sizeof(Real<T>)) + 63) / 64 * 64;
  }

  int64_t from, to, convolution;
};

template <typename Body>
void ForAll(const CpuExec& exec, int64_t count, const Body& body) {
  exec.parallel_for(count, 2, [&](int64_t begin, int64_t end) {
    if (begin < end) body(begin, end - begin);
  });
}

LaunchError BadCode(const Problem& p, const uint8_t* codes, int64_t place) {
  const int64_t o = place % p.out_channels, in = place / p.out_channels;
  const int64_t c = in % p.in_channels, tap = in / p.in_channels;
  return "codes[" + std::to_string(tap / p.kernel_width) + "," +
         std::to_string(tap % p.kernel_width) + "," + std::to_string(c) + "," +
         std::to_string(o) + "] must be at most " + std::to_string(1 << (p.bits - 1)) +
         " (bits " + std::to_string(p.bits) + "), got " + std::to_string(codes[place]);
}

// Decodes, widens, lets `convolve` compute (from, weights, to, its workspace), and
// scales.
template <typename T, typename Convolve>
LaunchError Run(const CpuExec& exec, const Problem& p, const uint8_t* codes,
                int32_t top_exponent, const T* from, int64_t from_count, T* to,
                int64_t to_count, void* workspace, const Convolve& convolve) {
  using A = Real<T>;
  const CpuKernels<T>& kernels = Selected<T>();
  const int64_t weights_count = Weights(p);
  const int64_t bad = kernels.find_bad_code(weights_count, p.bits, codes);
  if (bad < weights_count) return BadCode(p, codes, bad);

  const Layout<T> layout(p, from_count, to_count);
  char* const base = static_cast<char*>(workspace);
  A* const weights = reinterpret_cast<A*>(base);
  const int64_t top =
      std::clamp<int64_t>(top_exponent, -kLargestTop<A>, kLargestTop<A>);
  const int64_t rest = top_exponent - top;
  ForAll(exec, weights_count, [&](int64_t at, int64_t count) {
    kernels.decode(count, static_cast<int>(top), codes + at, weights + at);
  });
  const auto scale = [&](const A* sums) {
    ForAll(exec, to_count, [&](int64_t at, int64_t count) {
      kernels.scale(count, rest, sums + at, to + at);
    });
  };
  if constexpr (Layout<T>::kWidened) {
    A* const wide = reinterpret_cast<A*>(base + layout.from);
    A* const sums = reinterpret_cast<A*>(base + layout.to);
    ForAll(exec, from_count, [&](int64_t at, int64_t count) {
      kernels.widen(count, from + at, wide + at);
    });
    LaunchError error = convolve(wide, weights, sums, base + layout.convolution);
    if (error.empty()) scale(sums);
    return error;
  } else {
    LaunchError error = convolve(from, weights, to, base + layout.convolution);
    if (error.empty() && rest != 0) scale(to);
    return error;
  }
}

}  // namespace

template <typename T>
int64_t ForwardWorkspace(const CpuExec& exec, const Problem& p) {
  return Layout<T>(p, Input(p), Output(p)).convolution +
         capsule_conv::ForwardWorkspace<Real<T>>(exec, AsCapsules(p));
}

template <typename T>
int64_t BackpropInputWorkspace(const CpuExec& exec, const Problem& p) {
  return Layout<T>(p, Output(p), Input(p)).convolution +
         capsule_conv::BackpropInputWorkspace<Real<T>>(exec, AsCapsules(p));
}

template <typename T>
LaunchError Forward(const CpuExec& exec, const Problem& p, const T* input,
                    const uint8_t* codes, int32_t top_exponent, T* output,
                    void* workspace) {
  using A = Real<T>;
  return Run(exec, p, codes, top_exponent, input, Input(p), output, Output(p),
             workspace, [&](const A* from, const A* weights, A* to, void* space) {
               return capsule_conv::Forward(exec, AsCapsules(p), from, weights, to,
                                            space);
             });
}

template <typename T>
LaunchError BackpropInput(const CpuExec& exec, const Problem& p, const uint8_t* codes,
                          int32_t top_exponent, const T* grad, T* grad_input,
                          void* workspace) {
  using A = Real<T>;
  return Run(exec, p, codes, top_exponent, grad, Output(p), grad_input, Input(p),
             workspace, [&](const A* from, const A* weights, A* to, void* space) {
               return capsule_conv::BackpropInput(exec, AsCapsules(p), weights, from,
                                                  to, space);
             });
}

#define CAPSOPS_INSTANTIATE(T)                                                       \
  template int64_t ForwardWorkspace<T>(const CpuExec&, const Problem&);              \
  template int64_t BackpropInputWorkspace<T>(const CpuExec&, const Problem&);        \
  template LaunchError Forward(const CpuExec&, const Problem&, const T*,             \
                               const uint8_t*, int32_t, T*, void*);                  \
  template LaunchError BackpropInput(const CpuExec&, const Problem&, const uint8_t*, \
                                     int32_t, const T*, T*, void*);
CAPSOPS_INSTANTIATE(float)
CAPSOPS_INSTANTIATE(double)
CAPSOPS_INSTANTIATE(Float16)
CAPSOPS_INSTANTIATE(BFloat16)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::inq_conv
