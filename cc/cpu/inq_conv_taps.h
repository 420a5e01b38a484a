// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The sums of a tile of INQ convolution over taps and channels.
#ifndef CAPSOPS_CC_CPU_INQ_CONV_TAPS_H_
#define CAPSOPS_CC_CPU_INQ_CONV_TAPS_H_

#include <cstdint>

#include "cc/cpu/simd.h"

namespace capsops::inq_conv::CAPSOPS_ISA {

using namespace capsops::CAPSOPS_ISA;  // NOLINT: this unit's instruction set

// A tile has so many pixels that its sums and their operands fill the registers.
#if defined(__AVX512F__)
constexpr int kPixels = 14;
#else
constexpr int kPixels = 6;
#endif
constexpr int kSlots = 16;  // kPixels, rounded up to whole vectors

// One tap, or all taps of a row if the pixels that they read lie side by side.
template <typename A>
struct Tap {
  int64_t tap;    // its weights begin at row tap * (channels of a pixel) of a panel
  int64_t count;  // of taps
  const A* pixels[kSlots];  // what the first tap reads for each pixel of a tile
};

// Stretches of memory to prefetch, a few cache lines at each tap, for a core stalls
// when it has more loads under way than it can track.
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

// Computes, for P pixels and V vectors of lanes,
//   sums[pixel][lane] = sum over taps, and over channels from first to end, of
//     pixels[pixel][channel] * panel[tap * channels + channel][lane]
// and adds it to the previous `sums` if `add` is true. Where a Tap stands for several
// taps, first must be 0 and end must be `channels`.
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

// Returns AddTaps for at least `pixels` pixels, which must be at most P.
template <typename A, int V, int P = kPixels>
AddTapsFunction<A> AddTapsOf(int64_t pixels) {
  if constexpr (P > 2) {
    if (pixels <= P - 2) return AddTapsOf<A, V, P - 2>(pixels);
  }
  return AddTaps<A, V, P>;
}

}  // namespace capsops::inq_conv::CAPSOPS_ISA

#endif  // CAPSOPS_CC_CPU_INQ_CONV_TAPS_H_
