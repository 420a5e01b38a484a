// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The steps of INQ convolution, and how each is divided among threads. No sum crosses a
// task. Weights are decoded into the workspace; images of 16-bit types are computed
// there in float, some samples at a time, for their weights may not fit in 16 bits.
// Where our own kernels do not fit, it is a capsule convolution over poses of
// 1 x in_channels and in_channels x out_channels, of which each pixel has one.
#include "cc/cpu/inq_conv.h"

#include <algorithm>
#include <atomic>
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
int64_t RoundedUp(int64_t bytes) { return (bytes + 63) / 64 * 64; }
template <typename A>
int64_t Bytes(int64_t count) {
  return RoundedUp(count * static_cast<int64_t>(sizeof(A)));
}

template <typename Body>
void ForAll(const CpuExec& exec, int64_t count, const Body& body) {
  exec.parallel_for(count, 2, [&](int64_t begin, int64_t end) {
    if (begin < end) body(begin, end - begin);
  });
}

// Of the first code past the book, which there is.
LaunchError BadCode(const Problem& p, const uint8_t* codes) {
  int64_t place = 0;
  while (codes[place] <= 1 << (p.bits - 1)) ++place;
  const int64_t o = place % p.out_channels, in = place / p.out_channels;
  const int64_t c = in % p.in_channels, tap = in / p.in_channels;
  return "codes[" + std::to_string(tap / p.kernel_width) + "," +
         std::to_string(tap % p.kernel_width) + "," + std::to_string(c) + "," +
         std::to_string(o) + "] must be at most " + std::to_string(1 << (p.bits - 1)) +
         " (bits " + std::to_string(p.bits) + "), got " + std::to_string(codes[place]);
}

// Bytes in float of the images of 16-bit types, unless one sample has more.
constexpr int64_t kWideBytes = 16 << 20;

// Forward convolution, or the gradient of the input.
template <typename T, bool kGradient>
struct Convolution {
  using A = Real<T>;
  static constexpr bool kWidened = !std::is_same_v<T, A>;

  Convolution(const CpuExec& exec, const Problem& problem)
      : exec(exec),
        batch(problem.batch),
        most(problem),
        kernels(Selected<T>()),
        image(kGradient ? kernels.backprop_input : kernels.forward) {
    if constexpr (kWidened) {
      most.batch = 1;
      const int64_t sample =
          (Input(most) + Output(most)) * static_cast<int64_t>(sizeof(A));
      const int64_t fit = kWideBytes / std::max<int64_t>(sample, 1);
      most.batch = std::min(std::max<int64_t>(fit, 1), batch);
    }
    if (Weights(most) > 0) division = image.divide(most);
  }

  // The workspace holds the weights, and what is read and what is written in A, where T
  // is another type.
  int64_t Workspace() const {
    if (Weights(most) == 0) return 0;
    return WeightsBytes() + (kWidened ? Bytes<A>(From(most)) + Bytes<A>(To(most)) : 0);
  }

  LaunchError Run(const uint8_t* codes, int32_t top_exponent, const T* from, T* to,
                  void* workspace) const {
    Problem p = most;
    p.batch = batch;
    if (Weights(p) == 0) {
      if (To(p) > 0) std::memset(to, 0, To(p) * sizeof(T));
      return {};
    }
    const int64_t top =
        std::clamp<int64_t>(top_exponent, -kLargestTop<A>, kLargestTop<A>);
    const int64_t rest = top_exponent - top;
    const auto scale = [&](int64_t all, const A* sums, T* to) {
      ForAll(exec, all, [&](int64_t at, int64_t count) {
        kernels.scale(count, rest, sums + at, to + at);
      });
    };
    if (!Decode(codes, static_cast<int>(top), workspace)) return BadCode(p, codes);
    if constexpr (kWidened) {
      char* const images = static_cast<char*>(workspace) + WeightsBytes();
      A* const wide = reinterpret_cast<A*>(images);
      A* const sums = reinterpret_cast<A*>(images + Bytes<A>(From(most)));
      for (int64_t done = 0; done < batch; done += p.batch) {
        p.batch = std::min(most.batch, batch - done);
        ForAll(exec, From(p), [&](int64_t at, int64_t count) {
          kernels.widen(count, from + at, wide + at);
        });
        LaunchError error = Convolve(p, wide, sums, workspace);
        if (!error.empty()) return error;
        scale(To(p), sums, to);
        from += From(p);
        to += To(p);
      }
      return {};
    } else {
      LaunchError error = Convolve(p, from, to, workspace);
      if (error.empty() && rest != 0) scale(To(p), to, to);
      return error;
    }
  }

 private:
  static int64_t From(const Problem& p) { return kGradient ? Output(p) : Input(p); }
  static int64_t To(const Problem& p) { return kGradient ? Input(p) : Output(p); }

  // Of the decoded weights, and what a capsule convolution needs beside them.
  int64_t WeightsBytes() const {
    if (division.fits) return RoundedUp(division.workspace);
    const capsule_conv::Problem q = AsPoses(most, most.in_channels, most.out_channels);
    const int64_t rest = kGradient ? capsule_conv::BackpropInputWorkspace<A>(exec, q)
                                   : capsule_conv::ForwardWorkspace<A>(exec, q);
    return Bytes<A>(Weights(most)) + RoundedUp(rest);
  }

  // Whether all codes are in the book.
  bool Decode(const uint8_t* codes, int top, void* weights) const {
    std::atomic<bool> fit = true;
    if (division.fits) {
      ForEach(division.pack_tasks, 2 * Weights(most), [&](int64_t task) {
        if (!image.pack(most, task, top, codes, weights)) fit = false;
      });
    } else {
      A* const plain = static_cast<A*>(weights);
      ForAll(exec, Weights(most), [&](int64_t at, int64_t count) {
        if (!kernels.decode(most, at, count, top, codes, plain)) fit = false;
      });
    }
    return fit;
  }

  LaunchError Convolve(const Problem& p, const A* from, A* to, void* weights) const {
    if (!division.fits) {
      const capsule_conv::Problem q = AsPoses(p, p.in_channels, p.out_channels);
      const A* const plain = static_cast<const A*>(weights);
      void* const rest = static_cast<char*>(weights) + Bytes<A>(Weights(p));
      return kGradient ? capsule_conv::BackpropInput(exec, q, plain, from, to, rest)
                       : capsule_conv::Forward(exec, q, from, plain, to, rest);
    }
    // Roughly: sixteen multiply-adds a cycle.
    const int64_t work = Output(p) * p.kernel_height * p.kernel_width * p.in_channels;
    ForEach(image.divide(p).tasks, work / 16,
            [&](int64_t task) { image.run(p, task, from, weights, to); });
    return {};
  }

  // `cost` is that of all tasks.
  template <typename Body>
  void ForEach(int64_t tasks, int64_t cost, const Body& run) const {
    if (tasks == 0) return;
    exec.parallel_for(tasks, std::max<int64_t>(cost / tasks, 1),
                      [&](int64_t begin, int64_t end) {
                        for (int64_t task = begin; task < end; ++task) run(task);
                      });
  }

  const CpuExec& exec;
  const int64_t batch;
  Problem most;  // with the samples that are computed at a time
  const CpuKernels<T>& kernels;
  const ImageKernels<A>& image;
  Division division = {};  // of `most`
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
