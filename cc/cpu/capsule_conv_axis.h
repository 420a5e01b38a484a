// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The two axes of an image in a convolution and in its gradients.
#ifndef CAPSOPS_CC_CPU_CAPSULE_CONV_AXIS_H_
#define CAPSOPS_CC_CPU_CAPSULE_CONV_AXIS_H_

#include <cstdint>

#include "cc/cpu/capsule_conv.h"
#include "cc/cpu/convert.h"
#include "cc/cpu/simd.h"

namespace capsops::capsule_conv::CAPSOPS_ISA {

using namespace capsops::CAPSOPS_ISA;  // NOLINT: this unit's instruction set

inline int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Where part `index` of `parts` nearly equal ones of `count` begins.
inline int64_t PartBegin(int64_t count, int64_t index, int64_t parts) {
  return count * index / parts;
}

// Along one axis, pixel first + t * stride of the image that is written, for t < count,
// adds up `taps` terms. Term j is that of kernel position tap_first + j * tap_step, and
// of pixel t * step + offset + j * delta of the image that is read.
struct Axis {
  int64_t count, first, stride;
  int64_t taps, tap_first, tap_step;
  int64_t step, offset, delta;

  // The lowest pixel that t = 0 reads, and how far beyond it reads.
  int64_t lowest() const { return delta < 0 ? offset + (taps - 1) * delta : offset; }
  int64_t reach() const { return taps == 0 ? 0 : (taps - 1) * spacing(); }
  int64_t spacing() const { return delta < 0 ? -delta : delta; }
  // How often the pixels that neighbouring t read at a tap are those of an earlier tap:
  // every so many taps.
  int64_t period() const {
    int64_t a = step, b = spacing();
    while (b != 0) {
      const int64_t rest = a % b;
      a = b;
      b = rest;
    }
    return step / a;
  }
};

// Without the first and last taps that read nothing but zeros around an image of `size`
// pixels. So the reach is bounded by the image, whatever the dilation.
inline Axis Trimmed(Axis axis, int64_t size) {
  const int64_t span = (axis.count - 1) * axis.step;
  const auto outside = [&](int64_t j) {
    const int64_t pixel = axis.offset + j * axis.delta;
    return pixel >= size || pixel + span < 0;
  };
  while (axis.taps > 0 && outside(axis.taps - 1)) --axis.taps;
  while (axis.taps > 0 && outside(0)) {
    --axis.taps;
    axis.tap_first += axis.tap_step;
    axis.offset += axis.delta;
  }
  return axis;
}

inline Axis ForwardAxis(int64_t in, int64_t out, int64_t kernel, int64_t stride,
                        int64_t dilation, int64_t pad) {
  return Trimmed({out, 0, 1, kernel, 0, 1, stride, -pad, dilation}, in);
}

// The input pixels that stand where pixel `first` does against the stride: those read
// the same kernel positions.
inline Axis GradientAxis(int64_t in, int64_t out, int64_t kernel, int64_t stride,
                         int64_t dilation, int64_t pad, int64_t first) {
  Axis axis{CeilDivide(in - first, stride), first, stride, 0, 0, 1, 1, 0, 0};
  const int64_t place = ((first + pad) % stride + stride) % stride;  // pad may be < 0
  for (int64_t k = 0; k < Min(kernel, stride); ++k) {
    if (k * dilation % stride != place) continue;
    Axis phase{};
    phase.step = stride;
    phase.delta = dilation;
    axis.tap_first = k;
    axis.tap_step = phase.period();
    axis.taps = (kernel - 1 - k) / axis.tap_step + 1;
    axis.offset = (first + pad - k * dilation) / stride;
    axis.delta = -(axis.tap_step * dilation / stride);
    break;
  }
  return Trimmed(axis, out);
}

// The axes of a convolution, or of the gradient of its input where that stands at
// `place` against the stride. P has the sizes of images, kernel, strides, dilations and
// padding.
template <bool kGradient, typename P>
Axis VerticalAxis(const P& p, int64_t place) {
  if constexpr (kGradient) {
    return GradientAxis(p.in_height, p.out_height, p.kernel_height, p.stride_height,
                        p.dilation_height, p.pad_top, place);
  }
  return ForwardAxis(p.in_height, p.out_height, p.kernel_height, p.stride_height,
                     p.dilation_height, p.pad_top);
}
template <bool kGradient, typename P>
Axis HorizontalAxis(const P& p, int64_t place) {
  if constexpr (kGradient) {
    return GradientAxis(p.in_width, p.out_width, p.kernel_width, p.stride_width,
                        p.dilation_width, p.pad_left, place);
  }
  return ForwardAxis(p.in_width, p.out_width, p.kernel_width, p.stride_width,
                     p.dilation_width, p.pad_left);
}

// Capsules of one of the tensors; `columns` is the second size of a pose.
struct Image {
  int64_t height, width, channels, columns;
};

inline Image InputImage(const Problem& p) {
  return {p.in_height, p.in_width, p.in_channels, p.pose_inner};
}
inline Image OutputImage(const Problem& p) {
  return {p.out_height, p.out_width, p.out_channels, p.pose_columns};
}

// Numbers of a capsule.
inline int64_t Capsule(const Problem& p, const Image& image) {
  return p.pose_depth * p.pose_rows * image.columns;
}

// Samples, at most 32, that leave few lanes idle next to each other in rows of
// `pixels`. Where a row of one sample has fewer vectors than asked for, pixels begin at
// whole vectors if they can.
inline int64_t SamplesOfTask(const Problem& p, int64_t pixels, int64_t lanes,
                             int64_t vectors) {
  const bool aligned = pixels * p.pose_rows < vectors * lanes &&
                       lanes % p.pose_rows == 0 && lanes / p.pose_rows <= p.batch;
  const int64_t step = aligned ? lanes / p.pose_rows : 1;
  int64_t best = step, best_idle = 0, best_used = 0;
  for (int64_t samples = step; samples <= Min(p.batch, 32); samples += step) {
    const int64_t used = pixels * samples * p.pose_rows;
    const int64_t idle = RoundUp(Max(used, vectors * lanes), lanes) - used;
    if (samples == step || idle * best_used < best_idle * used) {
      best = samples, best_idle = idle, best_used = used;
    }
    if (idle * 8 <= used) break;
  }
  return best;
}

}  // namespace capsops::capsule_conv::CAPSOPS_ISA

#endif  // CAPSOPS_CC_CPU_CAPSULE_CONV_AXIS_H_
