// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Divides the output of CapsuleConvRouting into slabs, whose votes fit into caches:
// some whole frames, or a band of rows of one frame. A frame is one image or, of a
// volume, one slice of it.
//
// The votes of a slab are a capsule convolution of two dimensions that has one output
// channel: its pose columns are the parents' numbers, and its pose rows the types or,
// if each type has its own weights, its pose depth the types. So weights and images are
// operands as they are. Of a volume, the frames that an output frame reads become
// channels: frames and taps of depth are copied for that. The votes of a transposed
// convolution are the input gradient of a convolution that reads votes; its weights are
// transposed.
#ifndef CAPSOPS_CC_LAUNCH_CAPSULE_CONV_SLABS_H_
#define CAPSOPS_CC_LAUNCH_CAPSULE_CONV_SLABS_H_

#include <algorithm>
#include <cstdint>

#include "cc/launch/capsule_conv.h"
#include "cc/launch/capsule_conv_routing.h"
#include "cc/launch/round.h"
#include "cc/launch/taps.h"

namespace capsops::capsule_conv_routing {

// These functions are static for the same reason as those of round.h.
static inline int64_t Columns(const Problem& p) { return p.parents * p.out_dim; }
static inline int64_t Groups(const Problem& p) {
  return p.shared_weights ? 1 : p.types;
}
// The elements of a row of votes, and those of a row of the input.
static inline int64_t VotesRow(const Problem& p) {
  return p.out_width * p.types * Columns(p);
}
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
// Whether the output is empty.
static inline bool IsEmpty(const Problem& p) {
  return std::min({p.batch, p.out_depth, p.out_height, p.out_width, p.parents,
                   p.out_dim}) == 0;
}

// Output frames that have the same taps of depth: frame first + q * step of an image,
// for q < frames. Its channel c is tap `tap` + c * tap_step, which reads frame
// q * read_step + c * read_tap + read of the input, or zeros if there is no such frame.
struct Phase {
  int64_t first, step, frames;
  int64_t channels, tap, tap_step;
  int64_t read, read_step, read_tap;
};

static inline int64_t CountPhases(const Problem& p) {
  return p.transposed ? std::min(p.stride_depth, p.out_depth) : 1;
}

static inline Phase PhaseOf(const Problem& p, int64_t phase) {
  using capsule_conv::AxisProblem;
  if (p.transposed) {
    const AxisProblem depth = {p.out_depth,    p.in_depth,       p.kernel_depth,
                               p.stride_depth, p.dilation_depth, p.pad_front};
    const auto taps = capsule_conv::TapsOfPhase(depth, phase);
    return {phase,
            p.stride_depth,
            CeilDivide(p.out_depth - phase, p.stride_depth),
            taps.count,
            taps.first,
            taps.every,
            taps.offset,
            1,
            -taps.step};
  }
  const AxisProblem depth = {p.in_depth,     p.out_depth,      p.kernel_depth,
                             p.stride_depth, p.dilation_depth, p.pad_front};
  const capsule_conv::Taps taps(depth);
  return {0, 1,         p.out_depth,    taps.count,      taps.first,
          1, -taps.pad, p.stride_depth, p.dilation_depth};
}

// Rows of an output frame, the rows of the input frame that they read, and the zeros
// above these that the first row reads.
struct Band {
  int64_t begin, rows;
  int64_t read, read_rows, pad;
};

static inline Band BandOf(const Problem& p, int64_t begin, int64_t rows) {
  if (rows == p.out_height) return {0, rows, 0, p.in_height, p.pad_top};
  const int64_t zero = 0, reach = (p.kernel_height - 1) * p.dilation_height;
  const int64_t stride = p.stride_height, last = begin + rows - 1;
  if (p.transposed) {
    // Row y of the input adds to rows y * stride - pad_top to y * stride - pad_top +
    // reach. A row that adds to none above `begin` keeps the padding positive.
    const int64_t first = std::min(CeilDivide(begin + p.pad_top - reach, stride),
                                   (begin + p.pad_top) / stride);
    const int64_t read = std::max(first, zero);
    const int64_t end = std::min(p.in_height, (last + p.pad_top) / stride + 1);
    return {begin, rows, read, std::max(end - read, zero),
            p.pad_top + begin - read * stride};
  }
  const int64_t first = begin * stride - p.pad_top;
  const int64_t read = std::max(first, zero);
  const int64_t end = std::min(p.in_height, last * stride - p.pad_top + reach + 1);
  return {begin, rows, read, std::max(end - read, zero), read - first};
}

// A slab: `frames` frames of a phase, from number `first` on over all images, and a
// band of their rows. Only slabs of one frame have a band of less than all rows.
struct Slab {
  Phase phase;
  int64_t first, frames;
  Band band;

  // The position of frame `i` of the slab among all output frames.
  int64_t OutFrame(const Problem& p, int64_t i) const {
    const int64_t frame = first + i;
    return frame / phase.frames * p.out_depth + phase.first +
           frame % phase.frames * phase.step;
  }
  int64_t Pixels(const Problem& p) const { return frames * band.rows * p.out_width; }
  int64_t Votes(const Problem& p) const { return frames * band.rows * VotesRow(p); }
  // The elements of the channels that the slab reads.
  int64_t Image(const Problem& p) const {
    return frames * band.read_rows * phase.channels * InRow(p);
  }
};

// Returns the number of types that are pixels next to each other in the convolution of
// a slab, instead of pose rows: all if `across`, for kernels that are faster for poses
// of one row, and if types share weights and strides allow it.
static inline int64_t TypesAcross(const Problem& p, bool across) {
  return across && p.shared_weights && p.stride_width == 1 && p.types > 0 ? p.types : 1;
}

// The convolution that makes the slab's votes or, if transposed, that reads them.
static inline capsule_conv::Problem ConvOf(const Problem& p, const Slab& slab,
                                           bool across) {
  const int64_t types = TypesAcross(p, across);
  capsule_conv::Problem conv;
  conv.batch = slab.frames;
  conv.in_height = slab.band.read_rows;
  conv.in_width = p.in_width * types;
  conv.in_channels = slab.phase.channels;
  conv.kernel_height = p.kernel_height;
  conv.kernel_width = p.kernel_width;
  conv.out_height = slab.band.rows;
  conv.out_width = p.out_width * types;
  conv.out_channels = 1;
  conv.stride_height = p.stride_height;
  conv.stride_width = p.stride_width;
  conv.dilation_height = p.dilation_height;
  conv.dilation_width = p.dilation_width * types;
  conv.pad_top = slab.band.pad;
  conv.pad_left = p.pad_left * types;
  conv.pose_depth = Groups(p);
  conv.pose_rows = p.shared_weights ? p.types / types : 1;
  conv.pose_inner = p.in_dim;
  conv.pose_columns = Columns(p);
  if (p.transposed) {
    std::swap(conv.in_height, conv.out_height);
    std::swap(conv.in_width, conv.out_width);
    std::swap(conv.in_channels, conv.out_channels);
    std::swap(conv.pose_inner, conv.pose_columns);
  }
  return conv;
}

// The size of slabs: `frames` whole frames, or one frame and a band of `rows` rows.
struct Division {
  int64_t frames, rows;

  // Votes of a slab, with elements of `element` bytes, take at most `bytes` bytes or
  // are those of one row. Without types, the output counts.
  Division(const Problem& p, int64_t element, int64_t bytes) {
    const int64_t row =
        p.out_width * std::max<int64_t>(p.types, 1) * Columns(p) * element;
    const int64_t most = std::max<int64_t>(bytes / std::max<int64_t>(row, 1), 1);
    frames = std::max<int64_t>(most / p.out_height, 1);
    const int64_t bands = CeilDivide(p.out_height, std::min(most, p.out_height));
    rows = CeilDivide(p.out_height, bands);
    // Bands of whole strides read alike.
    if (p.transposed && bands > 1 && rows > p.stride_height) {
      rows -= rows % p.stride_height;
    }
  }
  bool smallest() const { return frames == 1 && rows == 1; }
};

// Calls visit(slab) for each slab, in order, until it returns an error.
template <typename Visit>
LaunchError ForEachSlab(const Problem& p, const Division& d, const Visit& visit) {
  for (int64_t number = 0; number < CountPhases(p); ++number) {
    const Phase phase = PhaseOf(p, number);
    const int64_t all = p.batch * phase.frames;
    for (int64_t first = 0; first < all; first += d.frames) {
      for (int64_t begin = 0; begin < p.out_height; begin += d.rows) {
        const Band band = BandOf(p, begin, std::min(d.rows, p.out_height - begin));
        LaunchError error =
            visit(Slab{phase, first, std::min(d.frames, all - first), band});
        if (!error.empty()) return error;
      }
    }
  }
  return {};
}

// The copy of a slab's channels, [frames][rows][width][channels][pixel], and where they
// are in the input, [images][depth][height][width][pixel].
struct Patch {
  int64_t first, frames, per_image;
  int64_t channels, read, read_step, read_tap;
  int64_t depth, height, row, rows, width, pixel;

  Patch(const Problem& p, const Slab& slab, bool across)
      : first(slab.first),
        frames(slab.frames),
        per_image(slab.phase.frames),
        channels(slab.phase.channels),
        read(slab.phase.read),
        read_step(slab.phase.read_step),
        read_tap(slab.phase.read_tap),
        depth(p.in_depth),
        height(p.in_height),
        row(slab.band.read),
        rows(slab.band.read_rows),
        width(p.in_width * TypesAcross(p, across)),
        pixel(p.types / TypesAcross(p, across) * p.in_dim) {}

  // Return the range of the input's frames, over all images, that the slab may read.
  int64_t begin_frame() const {
    return first / per_image * depth + (OneImage() ? Clamped(Least()) : 0);
  }
  int64_t end_frame() const {
    return (first + frames - 1) / per_image * depth +
           (OneImage() ? Clamped(Most() + 1) : depth);
  }

 private:
  bool OneImage() const {
    return first / per_image == (first + frames - 1) / per_image;
  }
  int64_t Clamped(int64_t frame) const { return std::clamp(frame, int64_t{0}, depth); }
  int64_t Least() const {
    return first % per_image * read_step + read +
           std::min<int64_t>((channels - 1) * read_tap, 0);
  }
  int64_t Most() const {
    return (first + frames - 1) % per_image * read_step + read +
           std::max<int64_t>((channels - 1) * read_tap, 0);
  }
};

// The copy of a phase's weights, [taps][channels][groups][in_dim][columns] or, if
// transposed, [taps][channels][groups][columns][in_dim], from [depth][taps][groups]
// [in_dim][columns].
struct Relay {
  int64_t taps, groups, rows, columns;
  int64_t channels, tap, tap_step;
  bool transposed;

  Relay(const Problem& p, const Phase& phase)
      : taps(p.kernel_height * p.kernel_width),
        groups(Groups(p)),
        rows(p.in_dim),
        columns(Columns(p)),
        channels(phase.channels),
        tap(phase.tap),
        tap_step(phase.tap_step),
        transposed(p.transposed) {}

  constexpr int64_t matrices() const { return taps * channels * groups; }
  int64_t elements() const { return matrices() * rows * columns; }
};

}  // namespace capsops::capsule_conv_routing

#endif  // CAPSOPS_CC_LAUNCH_CAPSULE_CONV_SLABS_H_
