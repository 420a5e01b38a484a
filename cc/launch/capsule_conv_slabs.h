// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Divides the phases of CapsuleConvRouting's output into slabs, so that the votes of a
// slab fit in a cache. A slab is a few whole frames, or a band of rows of one frame. A
// frame is an image or, in volumes, one slice along the depth.
//
// The votes of a slab are a 2D capsule convolution with one output channel:
//   pose columns  the numbers of all parents
//   pose rows     the types, if they share weights
//   pose depth    the types, if each has its own weights
//   channels      the input frames that an output frame reads, if images are volumes
// To turn frames into channels, the frames (Patch) and the depth taps of the weights
// (Relay) are copied, unless the device has product kernels that read them in place.
// The weights of phases that lack some taps are copied, too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "cc/launch/capsule_conv.h"
#include "cc/launch/capsule_conv_phases.h"
#include "cc/launch/capsule_conv_routing.h"
#include "cc/launch/round.h"

namespace capsops::capsule_conv_routing {

// Functions are static for the reason that round.h gives.
static inline int64_t Columns(const Problem& p) { return p.parents * p.out_dim; }
static inline int64_t Groups(const Problem& p) {
  return p.shared_weights ? 1 : p.types;
}
// The elements of an image row of the input.
static inline int64_t InRow(const Problem& p) {
  return p.in_width * p.types * p.in_dim;
}

static inline int64_t InputSize(const Problem& p) {
  return p.batch * p.in_depth * p.in_height * InRow(p);
}
static inline int64_t WeightsSize(const Problem& p) {
  return p.kernel_depth * p.kernel_height * p.kernel_width * Groups(p) * p.in_dim *
         Columns(p);
}
static inline bool IsEmpty(const Problem& p) {
  return std::min({p.batch, p.out_depth, p.out_height, p.out_width, p.parents,
                   p.out_dim}) == 0;
}

// Returns the problem with one iteration if there is a single parent: its coefficients
// are then 1 in every iteration.
static inline Problem Shortened(Problem p) {
  if (p.parents == 1 && !p.leaky) p.iterations = 1;
  return p;
}

// Rows [begin, begin + rows) of a phase's frames, the input rows [read, read +
// read_rows) that they read, and the number of padding rows above these.
struct Band {
  int64_t begin, rows;
  int64_t read, read_rows, pad;

  Band(const Problem& p, const AxisPhase& y, int64_t begin, int64_t rows)
      : begin(begin), rows(rows), read(0), read_rows(p.in_height), pad(y.pad) {
    if (rows == y.out.count) return;
    const int64_t first = begin * y.stride - y.pad;
    const int64_t reach = (rows - 1) * y.stride + (y.taps - 1) * y.dilation + 1;
    read = std::clamp(first, int64_t{0}, p.in_height);
    read_rows = std::clamp(first + reach, read, p.in_height) - read;
    pad = read - first;
  }
};

// A band of rows of `frames` frames of a phase, starting with frame `first`, where
// frames are numbered over all images. With several frames, the band has all rows.
struct Slab {
  Phase phase;
  int64_t first, frames;
  Band band;

  int64_t Pixels() const { return frames * band.rows * phase.x.out.count; }
  int64_t Votes(const Problem& p) const { return Pixels() * p.types * Columns(p); }
  // The number of input elements that the slab reads: its channels.
  int64_t Image(const Problem& p) const {
    return frames * band.read_rows * phase.depth.taps * InRow(p);
  }
  // Whether the slab reads anything. Its votes are zeros otherwise.
  bool Reads(const Problem& p) const {
    return phase.y.taps > 0 && phase.x.taps > 0 && Image(p) > 0;
  }
  bool IsFirstOfPhase() const { return first == 0 && band.begin == 0; }
  bool IsLastOfPhase(const Problem& p) const {
    return first + frames == p.batch * phase.depth.out.count &&
           band.begin + band.rows == phase.y.out.count;
  }
};

// Whether each frame of a phase reads only the input frame of the same number.
static inline bool ReadsFrames(const Problem& p, const AxisPhase& depth) {
  return depth.taps == 1 && depth.stride == 1 && depth.pad == 0 &&
         depth.out.count == p.in_depth;
}

// The offset in the input of the first row that a slab reads, if ReadsFrames.
static inline int64_t InputOffset(const Problem& p, const Slab& slab) {
  return (slab.first * p.in_height + slab.band.read) * InRow(p);
}

// Returns the convolution that computes the slab's votes.
static inline capsule_conv::Problem ConvOf(const Problem& p, const Slab& slab) {
  const AxisPhase &y = slab.phase.y, &x = slab.phase.x;
  capsule_conv::Problem conv;
  conv.batch = slab.frames;
  conv.in_height = slab.band.read_rows;
  conv.in_width = p.in_width;
  conv.in_channels = slab.phase.depth.taps;
  conv.kernel_height = y.taps;
  conv.kernel_width = x.taps;
  conv.out_height = slab.band.rows;
  conv.out_width = x.out.count;
  conv.out_channels = 1;
  conv.stride_height = y.stride;
  conv.stride_width = x.stride;
  conv.dilation_height = y.dilation;
  conv.dilation_width = x.dilation;
  conv.pad_top = slab.band.pad;
  conv.pad_left = x.pad;
  conv.pose_depth = Groups(p);
  conv.pose_rows = p.shared_weights ? p.types : 1;
  conv.pose_inner = p.in_dim;
  conv.pose_columns = Columns(p);
  return conv;
}

// Calls visit(slab) for each slab, in order, until it returns an error. The votes of a
// slab, of `element` bytes each, take at most `bytes` bytes, unless a single row takes
// more. If there are no types, the output of a slab counts instead of its votes.
template <typename Visit>
LaunchError ForEachSlab(const Problem& p, int64_t element, int64_t bytes,
                        const Visit& visit) {
  return ForEachPhase(p, [&](const Phase& phase) -> LaunchError {
    const auto even = [](int64_t all, int64_t most) {
      return CeilDivide(all, CeilDivide(all, std::min(all, most)));
    };
    const int64_t row = phase.x.out.count * std::max<int64_t>(p.types, 1) * Columns(p);
    const int64_t height = phase.y.out.count, all = p.batch * phase.depth.out.count;
    const int64_t most =
        std::max<int64_t>(bytes / std::max<int64_t>(row * element, 1), 1);
    const int64_t rows = even(height, most);
    const int64_t frames = even(all, std::max<int64_t>(most / height, 1));
    for (int64_t first = 0; first < all; first += frames) {
      for (int64_t begin = 0; begin < height; begin += rows) {
        const Band band(p, phase.y, begin, std::min(rows, height - begin));
        LaunchError error =
            visit(Slab{phase, first, std::min(frames, all - first), band});
        if (!error.empty()) return error;
      }
    }
    return {};
  });
}

// Maps a slab's pixels to the output: pixel n < pixels of the slab is output pixel
// At(n). `contiguous` if these follow each other.
struct Places {
  Positions depth, y, x;
  int64_t pixels, rows, row, frame, out_depth, out_height, out_width;
  bool contiguous;

  Places(const Problem& p, const Slab& slab)
      : depth(slab.phase.depth.out),
        y(slab.phase.y.out),
        x(slab.phase.x.out),
        pixels(slab.Pixels()),
        rows(slab.band.rows),
        row(slab.band.begin),
        frame(slab.first),
        out_depth(p.out_depth),
        out_height(p.out_height),
        out_width(p.out_width),
        contiguous(x.count == out_width && y.count == out_height &&
                   depth.count == out_depth) {}

  constexpr int64_t At(int64_t n) const {
    if (contiguous) return (frame * out_height + row) * out_width + n;
    const int64_t line = n / x.count, slice = frame + line / rows;
    const int64_t image = slice / depth.count;
    const int64_t at_depth = image * out_depth + depth.At(slice - image * depth.count);
    const int64_t at_line = at_depth * out_height + y.At(row + line % rows);
    return at_line * out_width + x.At(n - line * x.count);
  }
};

// Maps the copy of a slab's channels, [frames][rows][width][channels][pixel], to the
// input, [images][depth][height][width][pixel]. Channel c of an image's frame n is the
// input frame n * read_step + c * read_tap + read of the same image, or zeros if there
// is no such frame.
struct Patch {
  int64_t first, frames, per_image;
  int64_t channels, read, read_step, read_tap;
  int64_t depth, height, row, rows, width, pixel;

  Patch(const Problem& p, const Slab& slab)
      : first(slab.first),
        frames(slab.frames),
        per_image(slab.phase.depth.out.count),
        channels(slab.phase.depth.taps),
        read(-slab.phase.depth.pad),
        read_step(slab.phase.depth.stride),
        read_tap(slab.phase.depth.dilation),
        depth(p.in_depth),
        height(p.in_height),
        row(slab.band.read),
        rows(slab.band.read_rows),
        width(p.in_width),
        pixel(p.types * p.in_dim) {}

  int64_t elements() const { return frames * rows * width * channels * pixel; }
  // A bound on all frame numbers in index computations, within an image and over all
  // images.
  int64_t Reach() const {
    return std::max(
        {(per_image + 1) * read_step + depth + std::abs(read) + channels * read_tap,
         first + frames, end_frame()});
  }
  // Return the range of the input's frames, over all images, that the slab may read.
  int64_t begin_frame() const {
    return first / per_image * depth + Clamped(first % per_image * read_step + read);
  }
  int64_t end_frame() const {
    const int64_t last = first + frames - 1;
    const int64_t most =
        last % per_image * read_step + read + (channels - 1) * read_tap;
    return last / per_image * depth + Clamped(most + 1);
  }

 private:
  int64_t Clamped(int64_t frame) const { return std::clamp(frame, int64_t{0}, depth); }
};

// Maps the copy of a phase's weights, [y taps][x taps][channels][groups][matrix], to
// the weights, [depth][height][width][groups][matrix].
struct Relay {
  int64_t groups, matrix, height, width;
  int64_t y_taps, x_taps, channels;
  int64_t first, down, across, deep;  // the first tap, and steps from tap to tap

  Relay(const Problem& p, const Phase& phase)
      : groups(Groups(p)),
        matrix(p.in_dim * Columns(p)),
        height(p.kernel_height),
        width(p.kernel_width),
        y_taps(phase.y.taps),
        x_taps(phase.x.taps),
        channels(phase.depth.taps),
        first((phase.depth.tap * height + phase.y.tap) * width + phase.x.tap),
        down(phase.y.tap_step * width),
        across(phase.x.tap_step),
        deep(phase.depth.tap_step * height * width) {}

  constexpr int64_t matrices() const { return y_taps * x_taps * channels * groups; }
  int64_t elements() const { return matrices() * matrix; }
  // Returns the index in the weights of matrix n of the copy.
  constexpr int64_t From(int64_t n) const {
    const int64_t tap = n / groups, place = tap / channels, y = place / x_taps;
    const int64_t from = first + y * down + (place - y * x_taps) * across +
                         (tap - place * channels) * deep;
    return from * groups + n - tap * groups;
  }
  // Whether the copy would equal the weights from matrix From(0) on, so that they can
  // be read in place.
  bool IsPart(const Problem& p) const {
    if (matrices() == groups) return true;
    return matrices() == p.kernel_depth * height * width * groups && From(0) == 0 &&
           From(groups) == groups;
  }
};

}  // namespace capsops::capsule_conv_routing
