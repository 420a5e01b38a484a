// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Maps rows and frames of a slab's votes to the rows and frames of the image that they
// read by each tap, and back. Used in kernel parameters.
#pragma once

#include <cuda_runtime.h>

#include <climits>
#include <cstdint>
#include <cstdlib>

#include "cc/launch/capsule_conv_slabs.h"

namespace capsops::capsule_conv_routing::slabs {

// Returned if there is no such position.
constexpr int kNone = INT_MIN;

// One axis of the votes and of the image that they read.
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
  // kNone. With `several`, n stands for that many positions from n on: returns what the
  // first one reads, a negative number if only later ones read the image.
  __device__ int Read(int n, int tap, int several = 1) const {
    const int from = n * stride + tap * dilation - pad;
    return from + (several - 1) * stride >= 0 && from < read ? from : kNone;
  }
  // Returns the position of the votes that reads position n of the image by a tap, or
  // kNone. With `several`, n stands for that many image positions n, n + stride, and so
  // on, which adjacent positions of the votes read: returns the first of these, a
  // negative number if only later ones exist.
  __device__ int Reader(int n, int tap, int several = 1) const {
    const int from = n + pad - tap * dilation, at = from / stride;
    return at > -several && at < count && at * stride == from ? at : kNone;
  }
};

// The rows of a frame.
struct RowAxis : TapAxis {
  explicit RowAxis(const Slab& slab)
      : TapAxis(slab.phase.y, slab.band.rows, slab.band.read_rows, slab.band.pad) {}
};

// The frames of a slab, which may span several images. Functions number the frames of
// votes and image from the slab's first ones.
struct FrameAxis {
  TapAxis image;          // the frames of one image
  int first, first_read;  // the slab's first frames, counted over all images
  int count, read;        // frames of the slab

  FrameAxis(const Problem& p, const Slab& slab)
      : image(slab.phase.depth, slab.phase.depth.out.count, p.in_depth,
              slab.phase.depth.pad),
        first(static_cast<int>(slab.first)),
        first_read(static_cast<int>(Patch(p, slab).begin_frame())),
        count(static_cast<int>(slab.frames)),
        read(static_cast<int>(Patch(p, slab).end_frame()) - first_read) {}

  // Returns the frame that frame n of the votes reads by a tap, or kNone.
  __device__ int Read(int n, int tap) const {
    const int number = (first + n) / image.count;
    const int from = image.Read(first + n - number * image.count, tap);
    return from == kNone ? kNone : number * image.read + from - first_read;
  }
  // Calls visit(frame, tap) for each image frame that frame n of the votes reads or,
  // without kVotes, for each frame of the votes that reads frame n of the image.
  template <bool kVotes, typename Visit>
  __device__ void ForTaps(int n, const Visit& visit) const {
    const int size = kVotes ? image.count : image.read;
    const int all = n + (kVotes ? first : first_read), number = all / size;
    const int begin =
        kVotes ? number * image.read - first_read : number * image.count - first;
    for (int tap = 0; tap < image.taps; ++tap) {
      const int at = kVotes ? image.Read(all - number * size, tap)
                            : image.Reader(all - number * size, tap);
      if (at == kNone) continue;
      const int frame = begin + at;
      if (kVotes || (frame >= 0 && frame < count)) visit(frame, tap);
    }
  }
};

// Calls visit(frame, row, z_tap, y_tap) for what a tile reads. With kVotes, the tile
// has `several` rows of the votes from row `row` of frame `frame` on, and visit() gets
// the image row that the first of them reads, which may lie above the image if only a
// later one reads something. Without kVotes, it has `several` image rows, y.stride
// apart, and visit() gets the row of the votes that Reader() returns for them.
template <bool kVotes, typename Visit>
__device__ void ForTaps(const FrameAxis& z, const TapAxis& y, int frame, int row,
                        int several, const Visit& visit) {
  z.ForTaps<kVotes>(frame, [&](int from, int z_tap) {
    for (int y_tap = 0; y_tap < y.taps; ++y_tap) {
      const int line =
          kVotes ? y.Read(row, y_tap, several) : y.Reader(row, y_tap, several);
      if (line != kNone) visit(from, line, z_tap, y_tap);
    }
  });
}
// Returns how often ForTaps calls visit().
template <bool kVotes>
__device__ int CountTaps(const FrameAxis& z, const TapAxis& y, int frame, int row,
                         int several) {
  int frames = 0, rows = 0;
  z.ForTaps<kVotes>(frame, [&](int, int) { ++frames; });
  for (int tap = 0; tap < y.taps; ++tap) {
    rows += (kVotes ? y.Read(row, tap, several) : y.Reader(row, tap, several)) != kNone;
  }
  return frames * rows;
}

// Whether the windows of a phase cover the whole axis: each of the `size` positions of
// the image is in a window, at a tap or in a gap between taps.
inline bool Spans(const AxisPhase& axis, int64_t size) {
  const int64_t reach = (axis.taps - 1) * axis.dilation + 1;
  return axis.taps > 0 && axis.pad >= 0 && axis.stride <= reach &&
         (axis.out.count - 1) * axis.stride - axis.pad + reach >= size;
}

// The offset in the input of the first row that a slab reads.
inline int64_t FirstRow(const Problem& p, const Slab& slab) {
  return (Patch(p, slab).begin_frame() * p.in_height + slab.band.read) * InRow(p);
}
// Whether the axis is so small that its coordinates fit in an int.
inline bool IsSmall(const AxisPhase& axis) {
  constexpr int64_t kMost = 1 << 20;
  return std::abs(axis.pad) < kMost && axis.dilation < kMost && axis.stride < kMost &&
         axis.taps * axis.dilation < kMost;
}

}  // namespace capsops::capsule_conv_routing::slabs
