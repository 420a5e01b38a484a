// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Which rows and frames of the image a slab's votes read, tap by tap. Kernel
// parameters.
#pragma once

#include <cuda_runtime.h>

#include <climits>
#include <cstdint>
#include <cstdlib>

#include "cc/launch/capsule_conv_slabs.h"

namespace capsops::capsule_conv_routing::slabs {

// No position.
constexpr int kNone = INT_MIN;
// Divides without the instructions for it by one, the most common divisor.
__device__ inline int Divide(int n, int by) { return by == 1 ? n : n / by; }

struct TapAxis {
  int count, read;  // positions of the votes, and of the image
  int taps, stride, dilation, pad;

  TapAxis(const AxisPhase& axis, int64_t count, int64_t read, int64_t pad)
      : count(static_cast<int>(count)),
        read(static_cast<int>(read)),
        taps(static_cast<int>(axis.taps)),
        stride(static_cast<int>(axis.stride)),
        dilation(static_cast<int>(axis.dilation)),
        pad(static_cast<int>(pad)) {}

  // Returns the position of the image that position n of the votes reads by a tap, or
  // kNone.
  __device__ int Read(int n, int tap) const {
    const int from = n * stride + tap * dilation - pad;
    return from >= 0 && from < read ? from : kNone;
  }
  // Returns the position of the votes that reads position n of the image by a tap, or
  // kNone. The next positions of the votes read positions n + stride and so on; if
  // some of `several` exist, the first one may be negative.
  __device__ int Reader(int n, int tap, int several = 1) const {
    const int from = n + pad - tap * dilation, at = Divide(from, stride);
    return at > -several && at < count && at * stride == from ? at : kNone;
  }
};

// The rows of a frame.
struct RowAxis : TapAxis {
  explicit RowAxis(const Slab& slab)
      : TapAxis(slab.phase.y, slab.band.rows, slab.band.read_rows, slab.band.pad) {}
};

// Frames over all images, counted from the first ones of the slab.
struct FrameAxis {
  TapAxis image;          // the frames of one image
  int first, first_read;  // the first frames of the slab
  int count, read;        // frames of the slab

  FrameAxis(const Problem& p, const Slab& slab)
      : image(slab.phase.depth, slab.phase.depth.out.count, p.in_depth,
              slab.phase.depth.pad),
        first(static_cast<int>(slab.first)),
        first_read(static_cast<int>(Patch(p, slab).begin_frame())),
        count(static_cast<int>(slab.frames)),
        read(static_cast<int>(Patch(p, slab).end_frame()) - first_read) {}

  __device__ int Read(int frame, int tap) const {
    const int number = Divide(first + frame, image.count);
    const int from = image.Read(first + frame - number * image.count, tap);
    return from == kNone ? kNone : number * image.read + from - first_read;
  }
  __device__ int Reader(int frame, int tap) const {
    const int number = Divide(first_read + frame, image.read);
    const int from = image.Reader(first_read + frame - number * image.read, tap);
    const int at = number * image.count + from - first;
    return from != kNone && at >= 0 && at < count ? at : kNone;
  }
};

// Calls visit(frame, row, z_tap, y_tap) for the image rows that row `row` of frame
// `frame` of the votes reads, or without kVotes for the first of the `several` rows of
// the votes that read image rows from `row` on.
template <bool kVotes, typename Visit>
__device__ void ForTaps(const FrameAxis& z, const TapAxis& y, int frame, int row,
                        int several, const Visit& visit) {
  for (int z_tap = 0; z_tap < z.image.taps; ++z_tap) {
    const int from = kVotes ? z.Read(frame, z_tap) : z.Reader(frame, z_tap);
    if (from == kNone) continue;
    for (int y_tap = 0; y_tap < y.taps; ++y_tap) {
      const int line = kVotes ? y.Read(row, y_tap) : y.Reader(row, y_tap, several);
      if (line != kNone) visit(from, line, z_tap, y_tap);
    }
  }
}
// Returns how often ForTaps calls visit().
template <bool kVotes>
__device__ int CountTaps(const FrameAxis& z, const TapAxis& y, int frame, int row,
                         int several) {
  int frames = 0, rows = 0;
  for (int tap = 0; tap < z.image.taps; ++tap) {
    frames += (kVotes ? z.Read(frame, tap) : z.Reader(frame, tap)) != kNone;
  }
  for (int tap = 0; tap < y.taps; ++tap) {
    rows += (kVotes ? y.Read(row, tap) : y.Reader(row, tap, several)) != kNone;
  }
  return frames * rows;
}

// The offset in the input of the first row that a slab reads.
inline int64_t FirstRow(const Problem& p, const Slab& slab) {
  return (Patch(p, slab).begin_frame() * p.in_height + slab.band.read) * InRow(p);
}
// Bounds that keep coordinates of an axis in an int.
inline bool IsSmall(const AxisPhase& axis) {
  constexpr int64_t kMost = 1 << 20;
  return std::abs(axis.pad) < kMost && axis.dilation < kMost && axis.stride < kMost &&
         axis.taps * axis.dilation < kMost;
}

}  // namespace capsops::capsule_conv_routing::slabs
