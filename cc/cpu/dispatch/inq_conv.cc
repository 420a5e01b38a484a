// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The steps of INQ convolution, and how each is divided among threads. No sum crosses a
// task. Weights are decoded into the workspace; images of 16-bit types are computed
// there in float, for their weights may not fit in 16 bits. Where our own kernels do
// not fit, it is a capsule convolution over poses of 1 x in_channels and in_channels x
// out_channels, of which each pixel has one.
#include "cc/cpu/inq_conv.h"

#include <algorithm>
#include <cstring>
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

// Bytes of so many numbers, up to where others can begin.
template <typename A>
int64_t Bytes(int64_t count) {
  return (count * static_cast<int64_t>(sizeof(A)) + 63) / 64 * 64;
}

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

// Forward convolution, or the gradient of the input.
template <typename T, bool kGradient>
struct Convolution {
  using A = Real<T>;
  static constexpr bool kWidened = !std::is_same_v<T, A>;

  Convolution(const CpuExec& exec, const Problem& p)
      : exec(exec),
        p(p),
        kernels(Selected<T>()),
        image(kGradient ? kernels.backprop_input : kernels.forward),
        division(Weights(p) == 0 ? Division{} : image.divide(p)),
        from_count(kGradient ? Output(p) : Input(p)),
        to_count(kGradient ? Input(p) : Output(p)) {}

  // The workspace holds what is read and what is written in A, where T is another type,
  // and then the weights and what else Convolve needs.
  int64_t Workspace() const {
    if (Weights(p) == 0) return 0;
    const int64_t widened = kWidened ? Bytes<A>(from_count) + Bytes<A>(to_count) : 0;
    if (division.fits) return widened + division.workspace;
    const capsule_conv::Problem q = AsCapsules(p);
    return widened + Bytes<A>(Weights(p)) +
           (kGradient ? capsule_conv::BackpropInputWorkspace<A>(exec, q)
                      : capsule_conv::ForwardWorkspace<A>(exec, q));
  }

  LaunchError Run(const uint8_t* codes, int32_t top_exponent, const T* from, T* to,
                  void* workspace) const {
    if (Weights(p) == 0) {
      if (to_count > 0) std::memset(to, 0, to_count * sizeof(T));
      return {};
    }
    const int64_t bad = kernels.find_bad_code(Weights(p), p.bits, codes);
    if (bad < Weights(p)) return BadCode(p, codes, bad);

    const int64_t top =
        std::clamp<int64_t>(top_exponent, -kLargestTop<A>, kLargestTop<A>);
    const int64_t rest = top_exponent - top;
    const auto scale = [&](const A* sums) {
      ForAll(exec, to_count, [&](int64_t at, int64_t count) {
        kernels.scale(count, rest, sums + at, to + at);
      });
    };
    if constexpr (kWidened) {
      char* const base = static_cast<char*>(workspace);
      A* const wide = reinterpret_cast<A*>(base);
      A* const sums = reinterpret_cast<A*>(base + Bytes<A>(from_count));
      void* const space = base + Bytes<A>(from_count) + Bytes<A>(to_count);
      ForAll(exec, from_count, [&](int64_t at, int64_t count) {
        kernels.widen(count, from + at, wide + at);
      });
      LaunchError error = Convolve(codes, static_cast<int>(top), wide, sums, space);
      if (error.empty()) scale(sums);
      return error;
    } else {
      LaunchError error = Convolve(codes, static_cast<int>(top), from, to, workspace);
      if (error.empty() && rest != 0) scale(to);
      return error;
    }
  }

 private:
  LaunchError Convolve(const uint8_t* codes, int top, const A* from, A* to,
                       void* space) const {
    if (!division.fits) return ConvolveAsCapsules(codes, top, from, to, space);
    if (division.tasks == 0) return {};
    const auto each = [&](int64_t tasks, int64_t cost, const auto& run) {
      exec.parallel_for(tasks, std::max<int64_t>(cost / std::max<int64_t>(tasks, 1), 1),
                        [&](int64_t begin, int64_t end) {
                          for (int64_t task = begin; task < end; ++task) run(task);
                        });
    };
    each(division.pack_tasks, 2 * Weights(p),
         [&](int64_t task) { image.pack(p, task, top, codes, space); });
    // Roughly: sixteen multiply-adds a cycle.
    const int64_t work = Output(p) * p.kernel_height * p.kernel_width * p.in_channels;
    each(division.tasks, work / 16,
         [&](int64_t task) { image.run(p, task, from, space, to); });
    return {};
  }

  LaunchError ConvolveAsCapsules(const uint8_t* codes, int top, const A* from, A* to,
                                 void* space) const {
    A* const weights = static_cast<A*>(space);
    ForAll(exec, Weights(p), [&](int64_t at, int64_t count) {
      kernels.decode(count, top, codes + at, weights + at);
    });
    const capsule_conv::Problem q = AsCapsules(p);
    void* const rest = static_cast<char*>(space) + Bytes<A>(Weights(p));
    return kGradient ? capsule_conv::BackpropInput(exec, q, weights, from, to, rest)
                     : capsule_conv::Forward(exec, q, from, weights, to, rest);
  }

  const CpuExec& exec;
  const Problem& p;
  const CpuKernels<T>& kernels;
  const ImageKernels<A>& image;
  const Division division;
  const int64_t from_count, to_count;
};

}  // namespace

template <typename T>
int64_t ForwardWorkspace(const CpuExec& exec, const Problem& p) {
  return Convolution<T, false>(exec, p).Workspace();
}

template <typename T>
int64_t BackpropInputWorkspace(const CpuExec& exec, const Problem& p) {
  return Convolution<T, true>(exec, p).Workspace();
}

template <typename T>
LaunchError Forward(const CpuExec& exec, const Problem& p, const T* input,
                    const uint8_t* codes, int32_t top_exponent, T* output,
                    void* workspace) {
  return Convolution<T, false>(exec, p).Run(codes, top_exponent, input, output,
                                            workspace);
}

template <typename T>
LaunchError BackpropInput(const CpuExec& exec, const Problem& p, const uint8_t* codes,
                          int32_t top_exponent, const T* grad, T* grad_input,
                          void* workspace) {
  return Convolution<T, true>(exec, p).Run(codes, top_exponent, grad, grad_input,
                                           workspace);
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
