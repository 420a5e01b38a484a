// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Divides the output of CapsuleConvRouting into phases. All pixels of a phase read the
// input through the same taps, so the votes of a phase are an ordinary convolution. A
// transposed convolution has a phase for each offset within its strides (offsets that
// no tap reaches share one), and a phase reads the input with stride 1. Any other
// convolution has a single phase.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cc/launch/capsule_conv_routing.h"
#include "cc/launch/taps.h"

namespace capsops::capsule_conv_routing {

using capsule_conv::AxisProblem;

// The output positions of a phase along one axis: At(n) for n < count. They form runs
// of `span` neighbors, and the runs start `step` apart.
struct Positions {
  int64_t count, first, step, span;

  constexpr int64_t At(int64_t n) const {
    if (span == step) return first + n;
    return span == 1 ? first + n * step : first + n / span * step + n % span;
  }
};

// One axis of a phase. For k < taps, position n of the phase reads input position
// n * stride + k * dilation - pad through tap `tap` + k * tap_step.
struct AxisPhase {
  Positions out;
  int64_t taps, tap, tap_step;
  int64_t stride, dilation, pad;
};

// Calls visit(phase) for the phases of an axis, in order, until it returns an error.
// Neighboring positions that no tap reaches share a phase.
template <typename Visit>
LaunchError ForEachAxisPhase(const AxisProblem& axis, bool transposed,
                             const Visit& visit) {
  if (!transposed) {
    const capsule_conv::Taps taps(axis);
    return visit(AxisPhase{{axis.out, 0, 1, 1},
                           taps.count,
                           taps.first,
                           1,
                           axis.stride,
                           axis.dilation,
                           taps.pad});
  }
  // The transposed convolution is the input gradient of this one.
  const int64_t stride = axis.stride, size = axis.out;
  const AxisProblem back = {size, axis.in, axis.kernel, stride, 1, axis.pad};
  const int64_t phases = std::min(stride, size);
  for (int64_t first = 0, span = 1; first < phases; first += span) {
    const auto taps = capsule_conv::TapsOfPhase(back, first);
    span = 1;
    while (taps.count == 0 && first + span < phases &&
           capsule_conv::TapsOfPhase(back, first + span).count == 0) {
      ++span;
    }
    const int64_t count =
        (size - first) / stride * span + std::min((size - first) % stride, span);
    // Taps are listed from the last to the first, so that they read ascending positions
    // as in an ordinary convolution.
    const int64_t last = std::max<int64_t>(taps.count - 1, 0);
    const LaunchError error = visit(AxisPhase{{count, first, stride, span},
                                              taps.count,
                                              taps.first + last * stride,
                                              -stride,
                                              1,
                                              1,
                                              last - taps.offset});
    if (!error.empty()) return error;
  }
  return {};
}

struct Phase {
  AxisPhase depth, y, x;
};

// Calls visit(phase) for each phase, in order, until it returns an error.
template <typename Visit>
LaunchError ForEachPhase(const Problem& p, const Visit& visit) {
  const AxisProblem depth = {p.in_depth,     p.out_depth,      p.kernel_depth,
                             p.stride_depth, p.dilation_depth, p.pad_front};
  const AxisProblem height = {p.in_height,     p.out_height,      p.kernel_height,
                              p.stride_height, p.dilation_height, p.pad_top};
  const AxisProblem width = {p.in_width,     p.out_width,      p.kernel_width,
                             p.stride_width, p.dilation_width, p.pad_left};
  const bool transposed = p.transposed != 0;
  return ForEachAxisPhase(depth, transposed, [&](const AxisPhase& z) {
    return ForEachAxisPhase(height, transposed, [&](const AxisPhase& y) {
      return ForEachAxisPhase(
          width, transposed, [&](const AxisPhase& x) { return visit(Phase{z, y, x}); });
    });
  });
}

}  // namespace capsops::capsule_conv_routing
