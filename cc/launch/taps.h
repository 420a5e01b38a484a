// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The taps of a convolution along one axis: which taps read inside the image, and which
// taps each phase of the input gradient uses.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cc/launch/capsule_conv.h"
#include "cc/launch/round.h"

namespace capsops::capsule_conv {

// A convolution along one axis of the image. Functions are static for the reason that
// round.h gives.
struct AxisProblem {
  int64_t in, out, kernel, stride, dilation, pad;
};

static inline AxisProblem Vertical(const WindowProblem& p) {
  return {p.in_height,     p.out_height,      p.kernel_height,
          p.stride_height, p.dilation_height, p.pad_top};
}
static inline AxisProblem Horizontal(const WindowProblem& p) {
  return {p.in_width,     p.out_width,      p.kernel_width,
          p.stride_width, p.dilation_width, p.pad_left};
}

// The taps that read inside the image for some output pixel: `count` taps from `first`
// on. All others read only padding. `pad` is the padding before the image as seen from
// tap `first`, and may be negative.
struct Taps {
  int64_t first, count, pad;

  explicit Taps(const AxisProblem& p) {
    const int64_t zero = 0;
    first = std::max(zero, CeilDivide(p.pad - (p.out - 1) * p.stride, p.dilation));
    count = std::max(zero,
                     std::min(p.kernel, CeilDivide(p.in + p.pad, p.dilation)) - first);
    pad = p.pad - first * p.dilation;
  }
};

// For the input gradient along one axis: the taps that read a phase, that is the input
// pixels phase + t * stride for all t. For j < count, tap first + j * every reads pixel
// phase + t * stride for output pixel t + offset - j * step. The gradient of a phase is
// thus a sum over these taps with stride 1 in the output.
struct PhaseTaps {
  int64_t count, first, every, offset, step;
};

static inline PhaseTaps TapsOfPhase(const AxisProblem& p, int64_t phase) {
  const int64_t common = Gcd(p.stride, p.dilation);
  PhaseTaps taps{0, 0, p.stride / common, 0, p.dilation / common};
  const auto pixel = [&] { return phase + p.pad - taps.first * p.dilation; };
  const int64_t end = taps.every < p.kernel ? taps.every : p.kernel;
  while (taps.first < end && pixel() % p.stride != 0) ++taps.first;
  if (taps.first == end) return taps;
  taps.count = (p.kernel - 1 - taps.first) / taps.every + 1;
  taps.offset = pixel() / p.stride;
  return taps;
}

}  // namespace capsops::capsule_conv
