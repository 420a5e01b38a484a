// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The inner loops of high-order convolution over planes, for the output, the input
// gradient and the filter gradient, in register tiles of a few channels and a few
// vectors of neighboring pixels. Channels of a group share the loads of filters.
#pragma once

#include <cstdint>

#include "cc/cpu/simd.h"

namespace capsops::high_order_conv::CAPSOPS_ISA {

using namespace capsops::CAPSOPS_ISA;  // NOLINT: this unit's instruction set

// A tile has enough independent sums to hide the latency of additions.
#if defined(__AVX512F__)
constexpr int kMostChannels = 8;
constexpr int VectorsOf(int channels) {
  return channels == 1 ? 4 : channels <= 4 ? 2 : 1;
}
#else
constexpr int kMostChannels = 4;
constexpr int VectorsOf(int channels) {
  return channels == 1 ? 4 : channels == 2 ? 2 : 1;
}
#endif
constexpr int kMostVectors = 4;

template <typename A>
struct Planes {
  A* first;
  int64_t stride;
  A* operator[](int64_t plane) const { return first + plane * stride; }
  // Returns the planes from `plane` on, each starting at element `number`.
  Planes From(int64_t plane, int64_t number = 0) const {
    return {(*this)[plane] + number, stride};
  }
  operator Planes<const A>() const { return {first, stride}; }
};

// The taps of a filter: their rows and columns, and the distances within a plane from
// one row to the next and from one column to the next.
struct Kernel {
  int64_t rows, columns;
  int64_t pitch, spacing;
};

// Prefetches `runs` runs of `bytes` bytes, `stride` bytes apart, into the L2 cache,
// evenly spread over the next `vectors` vectors that are computed.
class Prefetcher {
 public:
  Prefetcher(const void* first, int64_t bytes, int64_t stride, int64_t runs,
             int64_t vectors)
      : next_(static_cast<const char*>(first)),
        bytes_(bytes),
        skip_(stride - bytes),
        runs_(bytes > 0 ? runs : 0),
        left_(bytes),
        pace_(runs * (bytes / kLine + 1) / (vectors > 0 ? vectors : 1) + 1) {}

  // Prefetches the cache lines that are due with the next `vectors` vectors.
  void Prefetch(int64_t vectors) {
    for (int64_t line = 0; line < vectors * pace_ && runs_ > 0; ++line) {
      __builtin_prefetch(next_, 0, 2);
      if (left_ > kLine) {
        left_ -= kLine;
        next_ += kLine;
        continue;
      }
      next_ += left_ + skip_;
      left_ = bytes_;
      --runs_;
    }
  }

 private:
  static constexpr int64_t kLine = 64;

  const char* next_;
  int64_t bytes_, skip_, runs_, left_;
  int64_t pace_;  // cache lines per vector
};

// Adds the products of a tap's filters and C channels that are `stride` elements apart.
template <typename A, int C, int V>
CAPSOPS_INLINE void AddTap(const A* filters, const A* x, int64_t stride,
                           Vector<A> (&sum)[C][V]) {
  Vector<A> weights[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) weights[v] = Load(filters + v * kLanes<A>);
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      sum[c][v] += weights[v] * Load(x + c * stride + v * kLanes<A>);
    }
  }
}

// Computes, for C channels and n < count,
//   output[c][n] = sum over taps k of input[c][n + offset of k] * filters[k][n]
// where `input` points to the first tap. Each row of taps is summed separately, because
// short sums have smaller rounding errors.
template <typename A, int C>
void Apply(const Kernel& kernel, Planes<const A> input, Planes<const A> filters,
           int64_t count, Prefetcher& ahead, Planes<A> output) {
  constexpr int V = VectorsOf(C);
  for (int64_t n = 0; n < count; n += V * kLanes<A>) {
    ahead.Prefetch(V);
    Vector<A> sum[C][V] = {};
    const A* f = filters.first + n;
    for (int64_t kh = 0; kh < kernel.rows; ++kh) {
      const A* x = input.first + n + kh * kernel.pitch;
      Vector<A> part[C][V] = {};
      for (int64_t kw = 0; kw < kernel.columns; ++kw) {
        AddTap<A>(f, x, input.stride, part);
        f += filters.stride;
        x += kernel.spacing;
      }
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sum[c][v] += part[c][v];
      }
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) Store(output[c] + n + v * kLanes<A>, sum[c][v]);
    }
  }
}

// Adds one row of taps to the input gradient,
//   grad_input[c][n] += sum over taps k of grad[c][n'] * filters[k][n']
// where output pixel n' reads input pixel n through tap k. `grad` and `filters` point
// to n' of the first tap; n' decreases from tap to tap.
template <typename A, int C>
void Gather(const Kernel& kernel, Planes<const A> grad, Planes<const A> filters,
            int64_t count, Prefetcher& ahead, Planes<A> grad_input) {
  constexpr int V = VectorsOf(C);
  for (int64_t n = 0; n < count; n += V * kLanes<A>) {
    ahead.Prefetch(V);
    Vector<A> sum[C][V] = {};
    const A* f = filters.first + n;
    const A* g = grad.first + n;
    for (int64_t kw = 0; kw < kernel.columns; ++kw) {
      AddTap<A>(f, g, grad.stride, sum);
      f += filters.stride - kernel.spacing;
      g -= kernel.spacing;
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        A* const to = grad_input[c] + n + v * kLanes<A>;
        Store(to, Load(to) + sum[c][v]);
      }
    }
  }
}

// Computes the filter gradient, or adds to it if `add` is true,
//   grad_filters[k][n] = sum over C channels of grad[c][n] * input[c][n + offset of k]
template <typename A, int C>
void Correlate(const Kernel& kernel, Planes<const A> input, Planes<const A> grad,
               int64_t count, bool add, Planes<A> grad_filters) {
  for (int64_t n = 0; n < count; n += kLanes<A>) {
    Vector<A> g[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) g[c] = Load(grad[c] + n);
    A* to = grad_filters.first + n;
    for (int64_t kh = 0; kh < kernel.rows; ++kh) {
      const A* x = input.first + n + kh * kernel.pitch;
      for (int64_t kw = 0; kw < kernel.columns; ++kw) {
        Vector<A> sum = g[0] * Load(x);
#pragma GCC unroll 8
        for (int c = 1; c < C; ++c) sum += g[c] * Load(x + c * input.stride);
        if (add) sum += Load(to);
        Store(to, sum);
        to += grad_filters.stride;
        x += kernel.spacing;
      }
    }
  }
}

// Calls run(Constant<n>, first channel) for tiles of n channels that cover all
// channels.
template <typename Run>
void ForChannels(int64_t channels, const Run& run) {
  int64_t c = 0;
  for (; c + kMostChannels <= channels; c += kMostChannels) {
    run(Constant<kMostChannels>{}, c);
  }
  if constexpr (kMostChannels == 8) {
    if (c + 4 <= channels) {
      run(Constant<4>{}, c);
      c += 4;
    }
  }
  switch (channels - c) {
    case 3:
      return run(Constant<3>{}, c);
    case 2:
      return run(Constant<2>{}, c);
    case 1:
      return run(Constant<1>{}, c);
  }
}

}  // namespace capsops::high_order_conv::CAPSOPS_ISA
