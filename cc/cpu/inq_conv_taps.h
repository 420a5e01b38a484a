// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The sums of a tile of INQ convolution over kernel positions and channels.
#ifndef CAPSOPS_CC_CPU_INQ_CONV_TAPS_H_
#define CAPSOPS_CC_CPU_INQ_CONV_TAPS_H_

#include <cstdint>

#include "cc/cpu/simd.h"

namespace capsops::inq_conv::CAPSOPS_ISA {

using namespace capsops::CAPSOPS_ISA;  // NOLINT: this unit's instruction set

// Pixels of a tile: the sums fill the registers but for the operands.
#if defined(__AVX512F__)
constexpr int kPixels = 14;
#else
constexpr int kPixels = 6;
#endif
constexpr int kSlots = 16;  // at least as many, in whole vectors

// One kernel position, or all of a row if the pixels that they read follow each other:
// their weights, and what they multiply for each pixel of a tile.
template <typename A>
struct Tap {
  int64_t tap;    // its weights are rows tap * (channels of a pixel) on of a panel
  int64_t count;  // of kernel positions
  const A* pixels[kSlots];
};

// What is asked for ahead of time, a little at each kernel position: more at once than
// a core can wait for would stall it. Stretches of memory, line after line.
struct Lines {
  static constexpr int64_t kMost = 2 * kSlots, kBytes = 64;

  void Add(const void* from, int64_t bytes) {
    if (bytes <= 0) return;
    first[stretches] = static_cast<const char*>(from);
    end[stretches] = first[stretches] + bytes;
    ++stretches;
    count += (bytes + kBytes - 1) / kBytes;
  }
  void Prefetch(int64_t times) {
    for (int64_t n = each * times; n > 0 && next < stretches; --n) {
      __builtin_prefetch(first[next]);
      first[next] += kBytes;
      if (first[next] >= end[next]) ++next;
    }
  }

  int64_t each = 0, next = 0, stretches = 0, count = 0;
  const char *first[kMost], *end[kMost];
};

// sums[pixel][lane] = sum over taps and channels from first to end of
//   pixels[pixel][channel] * panel[tap * channels + channel][lane]
// for P pixels and V vectors of lanes; added to what is there where `add`. Taps of more
// than one kernel position have all channels.
template <typename A, int V, int P>
void AddTaps(const Tap<A>* taps, int64_t count, const A* panel, int64_t channels,
             int64_t first, int64_t end, bool add, A* sums, Lines* lines) {
  Vector<A> sum[P][V] = {};
  for (const Tap<A>* tap = taps; tap < taps + count; ++tap) {
    lines->Prefetch(tap->count);
    const A* w = panel + (tap->tap * channels + first) * V * kLanes<A>;
    const int64_t last = first + tap->count * (end - first);
    for (int64_t c = first; c < last; ++c, w += V * kLanes<A>) {
      Vector<A> column[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) column[v] = Load(w + v * kLanes<A>);
#pragma GCC unroll 16
      for (int n = 0; n < P; ++n) {
        const A x = tap->pixels[n][c];
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sum[n][v] += x * column[v];
      }
    }
  }
#pragma GCC unroll 16
  for (int n = 0; n < P; ++n) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      A* const to = sums + (n * V + v) * kLanes<A>;
      Store(to, add ? Load(to) + sum[n][v] : sum[n][v]);
    }
  }
}

template <typename A>
using AddTapsFunction = void (*)(const Tap<A>*, int64_t, const A*, int64_t, int64_t,
                                 int64_t, bool, A*, Lines*);

// AddTaps for at least so many pixels, which are at most P.
template <typename A, int V, int P = kPixels>
AddTapsFunction<A> AddTapsOf(int64_t pixels) {
  if constexpr (P > 2) {
    if (pixels <= P - 2) return AddTapsOf<A, V, P - 2>(pixels);
  }
  return AddTaps<A, V, P>;
}

}  // namespace capsops::inq_conv::CAPSOPS_ISA

#endif  // CAPSOPS_CC_CPU_INQ_CONV_TAPS_H_
