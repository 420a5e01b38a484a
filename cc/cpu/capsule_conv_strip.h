// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Copies rows of images to planes and back, for the family `planes` (capsule_conv.h).
// In an image, the elements of a capsule are contiguous. A plane has one element of
// each pose row, and the pose rows of neighboring pixels and samples are contiguous.
#pragma once

#include <cstdint>

#include "cc/cpu/capsule_conv_axis.h"
#include "cc/cpu/lanes.h"

namespace capsops::capsule_conv::CAPSOPS_ISA {

// Returns whether the poses of an image are 4 x 4 and a vector holds whole pose rows.
// Such images are copied with vector instructions.
template <typename A>
bool IsVectorized4x4(const Problem& p, const Image& image) {
  return kLanes<A> >= 4 && p.pose_rows == 4 && image.columns == 4;
}

// A part of an image row, for some samples and channels, as planes
// [phase][depth][channel, column][position, sample, pose row]. A tap reads every
// step-th pixel, which are contiguous within a phase. Two taps share a phase if one
// reads for an output pixel what the other reads for a later output pixel.
template <typename A>
struct Strip {
  // The strip holds all pixels that t = begin, ..., end - 1 of an axis read.
  Strip(const Problem& p, const Image& image, const Axis& axis, int64_t begin,
        int64_t end, int64_t first_sample, int64_t samples, int64_t first_channel,
        int64_t channels)
      : first_sample(first_sample),
        samples(samples),
        first_channel(first_channel),
        channels(channels),
        width(image.width),
        first_x(begin * axis.step + axis.lowest()),
        step(axis.step),
        spacing(axis.spacing()),
        reversed(axis.delta < 0),
        taps(axis.taps),
        phases(Max(Min(axis.taps, axis.period()), 1)),
        pixel(samples * p.pose_rows),
        lanes((end - begin) * pixel) {
    const int64_t furthest = Max(taps - 1, 0) / phases * phases * spacing / step;
    positions = end - begin + furthest;
    filled = RoundUp(furthest * pixel + RoundUp(lanes, kLanes<A>), kLanes<A>);
    planes = RoundUp(channels * image.columns, 4);
    // An odd number of cache lines, so that planes do not compete for cache sets.
    const int64_t line = 64 / sizeof(A);
    length = RoundUp(filled, line) / line % 2 == 1 ? RoundUp(filled, line)
                                                   : RoundUp(filled, line) + line;
    phase = p.pose_depth * planes * length;
    row = phases * phase;
  }

  // Returns the offset in a row of planes at which tap j begins to read.
  int64_t TapBegin(int64_t j) const {
    const int64_t place = reversed ? taps - 1 - j : j;
    return place % phases * phase + place / phases * phases * spacing / step * pixel;
  }
  // Return the range of lanes in which tap j reads pixels of the image.
  int64_t InsideBegin(int64_t j) const { return Inside(j, 0); }
  int64_t InsideEnd(int64_t j) const { return Inside(j, width); }
  bool InsideEverywhere() const { return Outside() == 0; }
  // Returns how many lanes read outside the image, over all taps.
  int64_t Outside() const {
    int64_t sum = 0;
    for (int64_t j = 0; j < taps; ++j) sum += lanes - (InsideEnd(j) - InsideBegin(j));
    return sum;
  }

  int64_t first_sample, samples, first_channel, channels;
  int64_t width;  // width of the image
  int64_t first_x, step, spacing;
  bool reversed;
  int64_t taps, phases;
  int64_t pixel;      // lanes per pixel
  int64_t lanes;      // lanes of the results; planes have more
  int64_t positions;  // pixels per phase
  int64_t filled;     // lanes of a plane that are written, including zeros at the end
  int64_t planes;     // planes per depth, rounded up to a multiple of 4
  int64_t length;     // elements from one plane to the next
  int64_t phase;      // elements of a phase
  int64_t row;        // elements of all phases

 private:
  // Returns the first lane in which tap j reads pixel x or a later one.
  int64_t Inside(int64_t j, int64_t x) const {
    const int64_t first = first_x + (reversed ? taps - 1 - j : j) * spacing;
    return Min(x <= first ? 0 : CeilDivide(x - first, step) * pixel, lanes);
  }
};

// Returns whether all elements are finite: only then is the sum of 0 * x zero, not NaN.
template <typename A>
bool AreFinite(const A* numbers, int64_t count) {
  constexpr int kSums = 4;  // independent partial sums, to hide latency
  Vector<A> sum[kSums] = {};
  int64_t n = 0;
  for (; n + kSums * kLanes<A> <= count; n += kSums * kLanes<A>) {
    for (int k = 0; k < kSums; ++k) sum[k] += A{0} * Load(numbers + n + k * kLanes<A>);
  }
  A rest = Sum<A>(sum[0] + sum[1] + sum[2] + sum[3]);
  for (; n < count; ++n) rest += A{0} * numbers[n];
  return rest == 0;
}

// Iterates over the pixels of a strip in the order of its lanes.
template <typename T, typename A>
class Pixels {
 public:
  Pixels(const Problem& p, const Image& image, const Strip<A>& strip, int64_t phase,
         const T* from, int64_t y)
      : image_(image),
        strip_(strip),
        size_(image.channels * CapsuleSize(p, image)),
        sample_(image.height * image.width * size_),
        from_(from + strip.first_sample * sample_ + y * image.width * size_ +
              strip.first_channel * CapsuleSize(p, image)),
        x_(strip.first_x + phase * strip.spacing) {}

  // Returns the next pixel's address in the image, or null if the pixel is outside the
  // image or past the end of the strip.
  const T* Next() {
    const bool inside = position_ < strip_.positions && 0 <= x_ && x_ < image_.width;
    const T* const pixel = inside ? from_ + n_ * sample_ + x_ * size_ : nullptr;
    if (++n_ == strip_.samples) {
      n_ = 0;
      ++position_;
      x_ += strip_.step;
    }
    return pixel;
  }

 private:
  const Image& image_;
  const Strip<A>& strip_;
  int64_t size_, sample_;
  const T* from_;
  int64_t x_, n_ = 0, position_ = 0;
};

// Fills the planes of one phase from an image of 4 x 4 poses. A vector holds one pose
// column of kLanes / 4 pixels.
template <typename T, typename A>
void FillPhase4(const Problem& p, const Strip<A>& s, Pixels<T, A> pixels, A* to) {
  constexpr int kPixels = kLanes<A> / 4;
  static const T zeros[16] = {};
  for (int64_t lane = 0; lane < s.filled; lane += kLanes<A>) {
    const T* from[kPixels];
    int64_t capsule[kPixels];
    for (int n = 0; n < kPixels; ++n) {
      const T* const pixel = pixels.Next();
      from[n] = pixel == nullptr ? zeros : pixel;
      capsule[n] = pixel == nullptr ? 0 : 16;
    }
    for (int64_t c = 0; c < s.channels; ++c) {
      for (int64_t g = 0; g < p.pose_depth; ++g) {
        Vector<A> v[4];
        for (int n = 0; n < 4; ++n) {
          v[n] = LoadWide<A>(from[n * kLanes<A> / 16] + n * kLanes<A> % 16);
        }
        RowsToColumns<A>(v);
        A* const plane = to + (g * s.planes + c * 4) * s.length + lane;
        for (int q = 0; q < 4; ++q) Store(plane + q * s.length, v[q]);
        for (int n = 0; n < kPixels; ++n) from[n] += capsule[n];
      }
    }
  }
}

// Fills the planes of one phase from an image of 1 x n poses by transposing its pixels,
// as many at a time as a vector has lanes.
template <typename T, typename A>
void FillPhase1(const Image& image, const Strip<A>& s, Pixels<T, A> pixels, A* to) {
  const int64_t columns = s.channels * image.columns;
  const int64_t whole = columns / kLanes<A> * kLanes<A>;
  for (int64_t lane = 0; lane < s.filled; lane += kLanes<A>, to += kLanes<A>) {
    const T* from[kLanes<A>];
    for (int n = 0; n < kLanes<A>; ++n) from[n] = pixels.Next();
    for (int64_t column = 0; column < whole; column += kLanes<A>) {
      Vector<A> tile[kLanes<A>];
      for (int n = 0; n < kLanes<A>; ++n) {
        tile[n] = from[n] == nullptr ? Vector<A>{} : LoadWide<A>(from[n] + column);
      }
      Transpose<A>(tile);
      for (int n = 0; n < kLanes<A>; ++n) Store(to + (column + n) * s.length, tile[n]);
    }
    for (int64_t column = whole; column < columns; ++column) {
      for (int n = 0; n < kLanes<A>; ++n) {
        to[column * s.length + n] = from[n] == nullptr ? A{0} : Widen(from[n][column]);
      }
    }
    for (int64_t column = columns; column < s.planes; ++column) {
      Store(to + column * s.length, Vector<A>{});
    }
  }
}

// Fills the planes of one phase from an image of poses of any size.
template <typename T, typename A>
void FillPhase(const Problem& p, const Image& image, const Strip<A>& s,
               Pixels<T, A> pixels, A* to) {
  const int64_t rows = p.pose_rows, columns = image.columns;
  const int64_t inside = s.positions * s.pixel;
  for (int64_t lane = 0; lane < inside; lane += rows) {
    const T* pose = pixels.Next();
    for (int64_t c = 0; c < s.channels; ++c) {
      for (int64_t g = 0; g < p.pose_depth; ++g) {
        A* plane = to + (g * s.planes + c * columns) * s.length + lane;
        for (int64_t q = 0; q < columns; ++q, plane += s.length) {
          for (int64_t row = 0; row < rows; ++row) {
            plane[row] = pose == nullptr ? A{0} : Widen(pose[row * columns + q]);
          }
        }
        if (pose != nullptr) pose += rows * columns;
      }
    }
  }
  for (int64_t plane = 0; plane < p.pose_depth * s.planes; ++plane) {
    for (int64_t lane = inside; lane < s.filled; ++lane)
      to[plane * s.length + lane] = 0;
  }
}

// Copies row y of the image, which must exist, to the s.row elements at `to`.
template <typename T, typename A>
void FillRow(const Problem& p, const Image& image, const Strip<A>& s, const T* from,
             int64_t y, A* to) {
  for (int64_t phase = 0; phase < s.phases; ++phase, to += s.phase) {
    const Pixels<T, A> pixels(p, image, s, phase, from, y);
    if constexpr (kLanes<A> >= 4) {
      if (IsVectorized4x4<A>(p, image)) {
        FillPhase4(p, s, pixels, to);
        continue;
      }
    }
    if (p.pose_depth * p.pose_rows == 1) {
      FillPhase1(image, s, pixels, to);
      continue;
    }
    FillPhase(p, image, s, pixels, to);
  }
}

// Returns whether all elements of one phase of a row of planes are finite.
template <typename A>
bool ArePlanesFinite(const Problem& p, const Image& image, const Strip<A>& s,
                     const A* planes) {
  for (int64_t plane = 0; plane < p.pose_depth * s.planes; ++plane) {
    if (plane % s.planes >= s.channels * image.columns) continue;
    if (!AreFinite(planes + plane * s.length, s.filled)) return false;
  }
  return true;
}

// The pixels of an image row to which results are written, in the order of lanes.
struct Target {
  int64_t first_sample, samples;
  int64_t y, first_x, stride;
  int64_t lanes;
};

// Writes `lanes` lanes of results, from first_lane on, to matrix g (pose depth) of the
// capsules of an image row. `sums` are [channel, column][lane].
template <typename T, typename A>
void WriteLanes(const Problem& p, const Image& image, const Target& target, int64_t g,
                int64_t first_lane, int64_t lanes, const A* sums, T* to) {
  const int64_t rows = p.pose_rows, columns = image.columns;
  const int64_t capsule = CapsuleSize(p, image), size = image.channels * capsule;
  int64_t n = first_lane / rows % target.samples;
  int64_t x = target.first_x + first_lane / rows / target.samples * target.stride;
  int64_t row = first_lane % rows;
  const auto pixel = [&] {
    return to + g * rows * columns +
           (((target.first_sample + n) * image.height + target.y) * image.width + x) *
               size;
  };
  const auto next_pixel = [&] {
    if (++n == target.samples) n = 0, x += target.stride;
  };
  const int64_t end = Min(lanes, target.lanes - first_lane);
  if constexpr (kLanes<A> >= 4) {
    if (IsVectorized4x4<A>(p, image)) {
      constexpr int kPixels = kLanes<A> / 4;
      for (int64_t lane = 0; lane < end; lane += kLanes<A>) {
        T* pixels[kPixels] = {};
        const int64_t count = Min(kPixels, (end - lane) / 4);
        for (int64_t i = 0; i < count; ++i, next_pixel()) pixels[i] = pixel();
        for (int64_t o = 0; o < image.channels; ++o) {
          Vector<A> v[4];
          for (int r = 0; r < 4; ++r) v[r] = Load(sums + (o * 4 + r) * lanes + lane);
          ColumnsToRows<A>(v);
          for (int i = 0; i < 4; ++i) {
            if (i * kLanes<A> / 16 >= count) break;
            StoreNarrow<A>(
                pixels[i * kLanes<A> / 16] + o * capsule + i * kLanes<A> % 16, v[i]);
          }
        }
      }
      return;
    }
  }
  for (int64_t lane = 0; lane < end; ++lane) {
    T* const pose = pixel() + row * columns;
    for (int64_t o = 0; o < image.channels; ++o) {
      for (int64_t r = 0; r < columns; ++r) {
        Narrow(sums[(o * columns + r) * lanes + lane], pose + o * capsule + r);
      }
    }
    if (++row == rows) {
      row = 0;
      next_pixel();
    }
  }
}

}  // namespace capsops::capsule_conv::CAPSOPS_ISA
