// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Shared by the kernels of capsule convolution: index arithmetic along one axis, sizes
// of images, packing of weights, and the number of samples per task.
#pragma once

#include <cstdint>

#include "cc/cpu/capsule_conv.h"
#include "cc/cpu/convert.h"
#include "cc/cpu/simd.h"
#include "cc/launch/taps.h"

namespace capsops::capsule_conv::CAPSOPS_ISA {

using namespace capsops::CAPSOPS_ISA;  // NOLINT: this unit's instruction set

constexpr int64_t kTasks = 32;  // number of tasks to aim for, if each has enough work
constexpr int64_t kTaskWork = 1 << 18;  // least work of a task, in multiply-adds

// Returns the beginning of part `index` of [0, count), divided into `parts` parts of
// about equal size.
inline int64_t PartBegin(int64_t count, int64_t index, int64_t parts) {
  return count * index / parts;
}

// The sums along one axis of the image that is written: for t < count,
//   written[first + t * stride] = sum over j < taps of
//       weights[tap_first + j * tap_step] * read[t * step + offset + j * delta]
struct Axis {
  int64_t count, first, stride;
  int64_t taps, tap_first, tap_step;
  int64_t step, offset, delta;

  // The lowest pixel that t = 0 reads, and the distance from it to the highest pixel
  // that t = 0 reads.
  int64_t lowest() const { return delta < 0 ? offset + (taps - 1) * delta : offset; }
  int64_t reach() const { return taps == 0 ? 0 : (taps - 1) * spacing(); }
  int64_t spacing() const { return delta < 0 ? -delta : delta; }
  // The least n for which taps j and j + n read the same pixels, for different t.
  int64_t period() const { return step / Gcd(step, spacing()); }
};

// Returns the axis without the first and last taps that read only padding of an image
// of `size` pixels. The reach is then less than `size` plus the extent of the outputs,
// for any dilation.
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

inline Axis ForwardAxis(const AxisProblem& p) {
  return Trimmed({p.out, 0, 1, p.kernel, 0, 1, p.stride, -p.pad, p.dilation}, p.in);
}

// Returns the axis of the convolution or, with kGradient, of one phase of its input
// gradient. All pixels of a phase read the same taps.
template <bool kGradient>
Axis ImageAxis(const AxisProblem& p, int64_t phase) {
  if constexpr (!kGradient) return ForwardAxis(p);
  const PhaseTaps taps = TapsOfPhase(p, phase);
  return Trimmed({CeilDivide(p.in - phase, p.stride), phase, p.stride, taps.count,
                  taps.first, taps.every, 1, taps.offset, -taps.step},
                 p.out);
}

// The sizes of an image of capsules; a pose has `columns` columns.
struct Image {
  int64_t height, width, channels, columns;
};

inline Image InputImage(const Problem& p) {
  return {p.in_height, p.in_width, p.in_channels, p.pose_inner};
}
inline Image OutputImage(const Problem& p) {
  return {p.out_height, p.out_width, p.out_channels, p.pose_columns};
}

// Returns the number of elements of a capsule.
inline int64_t CapsuleSize(const Problem& p, const Image& image) {
  return p.pose_depth * p.pose_rows * image.columns;
}

// Packs kWidth columns of matrix g (pose depth) of a tap's weights, from column `first`
// on, as to[plane][column], for the convolution or its input gradient. Columns after
// the last one are copies of it, and their results are ignored.
template <typename T, bool kGradient, int kWidth>
void PackTile(const Problem& p, const T* weights, int64_t g, int64_t first,
              Accumulator<T>* to) {
  const Image read = kGradient ? OutputImage(p) : InputImage(p);
  const Image written = kGradient ? InputImage(p) : OutputImage(p);
  const int64_t pose = p.pose_inner * p.pose_columns;
  // Strides of the weights along the channels and columns of both images.
  const int64_t in = p.out_channels * p.pose_depth * pose, out = p.pose_depth * pose;
  const int64_t read_channel = kGradient ? out : in;
  const int64_t written_channel = kGradient ? in : out;
  const int64_t read_column = kGradient ? 1 : p.pose_columns;
  const int64_t written_column = kGradient ? p.pose_columns : 1;
  const int64_t columns = written.channels * written.columns;
  if (!kGradient && p.pose_depth * p.pose_inner == 1 && first + kWidth <= columns) {
    for (int64_t c = 0; c < read.channels; ++c, to += kWidth) {
      const T* const from = weights + c * read_channel + first;
      for (int64_t n = 0; n < kWidth; ++n) to[n] = Widen(from[n]);
    }
    return;
  }
  const T* offsets[kWidth];
  for (int64_t n = 0; n < kWidth; ++n) {
    const int64_t column = Min(first + n, columns - 1);
    offsets[n] = weights + g * pose + column / written.columns * written_channel +
                 column % written.columns * written_column;
  }
  for (int64_t c = 0; c < read.channels; ++c) {
    for (int64_t q = 0; q < read.columns; ++q, to += kWidth) {
      for (int64_t n = 0; n < kWidth; ++n) {
        to[n] = Widen(offsets[n][c * read_channel + q * read_column]);
      }
    }
  }
}

// Returns the number of samples of a task, at most 32, chosen such that rows of
// `pixels` pixels of these samples leave few lanes idle. If a row of one sample fills
// fewer than `vectors` vectors, the samples of a pixel fill whole vectors where
// possible.
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
