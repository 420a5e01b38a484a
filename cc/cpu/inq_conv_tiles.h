// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// A convolution whose lanes are channels of the written image. A tile has a few pixels
// and the channels of two vectors, and its sums stay in registers. For each tap, a tile
// has pointers to the pixels that it reads; for a pixel outside the image the pointer
// leads to zeros. So no image is copied, for any padding, strides and dilations.
#ifndef CAPSOPS_CC_CPU_INQ_CONV_TILES_H_
#define CAPSOPS_CC_CPU_INQ_CONV_TILES_H_

#include <cstdint>
#include <cstring>

#include "cc/cpu/capsule_conv_axis.h"
#include "cc/cpu/inq_conv.h"
#include "cc/cpu/inq_conv_taps.h"

namespace capsops::inq_conv::CAPSOPS_ISA {

using capsule_conv::CAPSOPS_ISA::Axis;
using capsule_conv::CAPSOPS_ISA::ImageAxis;
using capsule_conv::CAPSOPS_ISA::PartBegin;

constexpr int64_t kTerms = 320;     // added up in registers, where a sum has few terms
constexpr int64_t kMostTaps = 128;  // of one part of a sum
constexpr int64_t kMostPanels = 4;  // of one task
constexpr int64_t kPanelsBytes = 640 << 10;  // of a task's panels, if it has several
constexpr int64_t kPackChannels = 64;        // of one task
constexpr int64_t kTasks = 32;               // wanted, if each has enough work
constexpr int64_t kTaskWork = 1 << 18;       // multiply-adds that are worth a task

// Sizes of an image.
struct Image {
  int64_t height, width, channels;
};

// How the sums of a convolution are divided, or with kGradient those of the gradient of
// the input. As in cc/cpu/capsule_conv_image.h, a phase is called `place`.
template <typename A, bool kGradient>
struct Plan {
  explicit Plan(const Problem& problem)
      : p(problem),
        from(kGradient ? Image{p.out_height, p.out_width, p.out_channels}
                       : Image{p.in_height, p.in_width, p.in_channels}),
        to(kGradient ? Image{p.in_height, p.in_width, p.in_channels}
                     : Image{p.out_height, p.out_width, p.out_channels}),
        taps(p.kernel_height * p.kernel_width),
        panels(CeilDivide(to.channels, kPanel)),
        y_places(kGradient ? Min(p.stride_height, to.height) : 1),
        x_places(kGradient ? Min(p.stride_width, to.width) : 1) {
    // Rounding errors grow with the terms of a part and with the number of parts, so
    // both are kept near the square root of all terms.
    int64_t terms = kTerms;
    while (terms * terms < taps * from.channels) terms *= 2;
    const int64_t channel_parts = Max(CeilDivide(from.channels, terms), 1);
    zeros = channel_parts > 1 ? from.channels : from.channels * p.kernel_width;
    part_channels = Max(CeilDivide(from.channels, channel_parts), 1);
    part_taps = Min(terms / part_channels, kMostTaps);
    fits = CeilDivide(taps, part_taps) * channel_parts <= terms;

    const int64_t panel_bytes = Max(kPanel * taps * from.channels * sizeof(A), 1);
    groups = CeilDivide(panels, Min(Max(kPanelsBytes / panel_bytes, 1), kMostPanels));
    const int64_t pieces = y_places * x_places * groups;
    if (pieces == 0) return;
    group = CeilDivide(panels, groups);
    const int64_t pixels =
        p.batch * CeilDivide(to.height, y_places) * CeilDivide(to.width, x_places);
    const int64_t work = pixels * group * kPanel * Max(from.channels * taps, 1);
    parts = Min(CeilDivide(kTasks, pieces), work / kTaskWork);
    parts = Max(Min(parts, CeilDivide(pixels, kPixels)), 1);
  }

  // Returns how many numbers the panels [panel][tap][channel][lane] have.
  int64_t packed() const { return panels * kPanel * taps * from.channels; }
  // Returns how many vectors wide a panel is. The last panel may have 1 instead of 2.
  int64_t vectors(int64_t panel) const {
    return Min(CeilDivide(to.channels - panel * kPanel, kLanes<A>), 2);
  }
  // Writes the zeros that stand for pixels outside the image, which come after the
  // panels.
  void SetZeros(A* weights) const {
    for (int64_t c = 0; c < zeros; ++c) weights[packed() + c] = 0;
  }
  // Returns the offset at which a panel begins.
  int64_t panel(int64_t index) const { return index * kPanel * taps * from.channels; }

  Axis AxisY(int64_t place) const { return ImageAxis<kGradient>(Vertical(p), place); }
  Axis AxisX(int64_t place) const { return ImageAxis<kGradient>(Horizontal(p), place); }

  static constexpr int64_t kPanel = 2 * kLanes<A>;

  const Problem& p;
  Image from, to;
  int64_t taps, panels;
  int64_t groups, group = 0;         // groups of panels, and panels of a group
  int64_t y_places, x_places;        // phases along each axis
  int64_t part_channels, part_taps;  // of a sum that stays in registers
  int64_t zeros;                     // numbers that one Tap reads for a pixel
  bool fits;                         // whether parts are no more than a part's terms
  int64_t parts = 0;                 // of the pixels of a phase, for each group
};

// The pixels of a tile, which follow one another in the order of the pixels of one
// phase.
template <typename A>
struct Tile {
  template <bool kGradient>
  Tile(const Plan<A, kGradient>& plan, const Axis& y_axis, const Axis& x_axis,
       int64_t pixel, int64_t count)
      : count(count) {
    int64_t tx = pixel % x_axis.count;
    int64_t ty = pixel / x_axis.count % y_axis.count;
    int64_t sample = pixel / x_axis.count / y_axis.count;
    for (int64_t n = 0; n < kSlots; ++n) {
      y[n] = x[n] = uint64_t{1} << 62;  // so far away that no tap reads the image
      from[n] = 0;
    }
    for (int64_t n = 0; n < count; ++n) {
      y[n] = ty * y_axis.step + y_axis.offset;
      x[n] = tx * x_axis.step + x_axis.offset;
      from[n] = ((sample * plan.from.height + y[n]) * plan.from.width + x[n]) *
                plan.from.channels * sizeof(A);
      to[n] = ((sample * plan.to.height + y_axis.first + ty * y_axis.stride) *
                   plan.to.width +
               x_axis.first + tx * x_axis.stride) *
              plan.to.channels;
      if (++tx < x_axis.count) continue;
      tx = 0;
      if (++ty < y_axis.count) continue;
      ty = 0;
      ++sample;
    }
  }

  // Sets `pixels` to the addresses of the pixels that lie `down` and `right` of those
  // that the first tap reads, or to `zeros` for pixels outside the image. Returns
  // whether any pixel is inside.
  bool Find(const Image& image, uint64_t down, uint64_t right, const A* numbers,
            const A* zeros, const A** pixels) const {
    using Numbers = Vector<uint64_t>;
    const uint64_t height = image.height, width = image.width;
    const uint64_t first = reinterpret_cast<uintptr_t>(numbers) +
                           (down * image.width + right) * image.channels * sizeof(A);
    const uint64_t outside = reinterpret_cast<uintptr_t>(zeros);
    Numbers any = {};
    for (int n = 0; n < kSlots; n += kLanes<uint64_t>) {
      const Numbers inside =
          (Numbers)((Load(y + n) + down < height) & (Load(x + n) + right < width));
      const Numbers found = ((Load(from + n) + first) & inside) | (outside & ~inside);
      std::memcpy(pixels + n, &found, sizeof(found));
      any |= inside;
    }
    return Sum<uint64_t>(any) != 0;
  }

  // Returns whether, for each pixel of the tile, the pixels `down` below what the first
  // tap reads, and up to `reach` to the right, are either all inside the image or in a
  // row outside.
  bool AreWhole(const Image& image, uint64_t down, uint64_t reach) const {
    using Numbers = Vector<uint64_t>;
    const uint64_t height = image.height, width = image.width;
    Numbers whole = ~Numbers{};
    for (int n = 0; n < kSlots; n += kLanes<uint64_t>) {
      const Numbers first = Load(x + n);
      whole &= (Numbers)((Load(y + n) + down >= height) |
                         ((first < width) & (first + reach < width)));
    }
    return Sum<uint64_t>(whole >> 63) == kLanes<uint64_t>;
  }

  // Writes the first `lanes` of each pixel's `width` sums to the channels of the image
  // from `first` on.
  void Write(const A* sums, int64_t width, int64_t first, int64_t lanes,
             A* numbers) const {
    for (int64_t n = 0; n < count; ++n, sums += width) {
      A* const pixel = numbers + to[n] + first;
      int64_t lane = 0;
      for (; lane + kLanes<A> <= lanes; lane += kLanes<A>) {
        Store(pixel + lane, Load(sums + lane));
      }
      for (; lane < lanes; ++lane) pixel[lane] = sums[lane];
    }
  }

  int64_t count;
  uint64_t y[kSlots], x[kSlots];  // pixel that the first tap reads, modulo 2^64
  uint64_t from[kSlots];          // offset of this pixel in bytes
  int64_t to[kSlots];             // offset of the written pixel in numbers
};

// Collects the memory to prefetch for a tile: what its farthest tap reads, which no
// tile before has read yet, and what it writes.
template <typename A, bool kGradient>
void Collect(const Plan<A, kGradient>& plan, const Axis& y_axis, const Axis& x_axis,
             const Tile<A>& tile, int64_t panel, int64_t panels, const A* from,
             const A* to, Lines* lines) {
  constexpr int64_t kMost = 16 * Lines::kBytes;
  const A* last[kSlots];
  tile.Find(plan.from, y_axis.delta > 0 ? y_axis.reach() : 0,
            x_axis.delta > 0 ? x_axis.reach() : 0, from, from, last);
  const int64_t first = panel * plan.kPanel;
  const int64_t written = Min(panels * plan.kPanel, plan.to.channels - first);
  for (int64_t n = 0; n < tile.count; ++n) {
    lines->Add(last[n], Min(plan.from.channels * int64_t{sizeof(A)}, kMost));
    lines->Add(to + tile.to[n] + first, written * int64_t{sizeof(A)});
  }
  const int64_t parts = CeilDivide(plan.from.channels, plan.part_channels);
  const int64_t times = y_axis.taps * x_axis.taps * parts * panels;
  lines->each = CeilDivide(lines->count, Max(times, 1));
}

// How many sums a tile has for each panel.
template <typename A>
constexpr int64_t kSums = kPixels * 2 * kLanes<A>;

// Computes the sums of a tile over all taps, for some panels, as [panel][pixel][lane]
// with kSums numbers from one panel to the next.
template <typename A, bool kGradient>
void AddTile(const Plan<A, kGradient>& plan, const Axis& y_axis, const Axis& x_axis,
             const Tile<A>& tile, int64_t first_panel, int64_t panels, const A* from,
             const A* packed, A* sums, Lines* lines) {
  const AddTapsFunction<A> add_taps[] = {AddTapsOf<A, 1>(tile.count),
                                         AddTapsOf<A, 2>(tile.count)};
  const A* const zeros = packed + plan.packed();
  const int64_t channels = plan.from.channels;
  const int64_t count = y_axis.taps * x_axis.taps;
  Tap<A> taps[kMostTaps];
  // Whether the taps of a row read pixels that lie side by side, as their weights do.
  const bool neighbours =
      x_axis.delta == 1 && x_axis.tap_step == 1 && plan.part_channels == channels;
  bool add = false;
  int64_t i = 0, j = 0;
  for (int64_t begin = 0; begin < count; begin += plan.part_taps) {
    int64_t used = 0;
    for (int64_t n = Min(plan.part_taps, count - begin); n > 0;) {
      Tap<A>& tap = taps[used];
      const int64_t down = i * y_axis.delta;
      const bool row = neighbours && j == 0 && n >= x_axis.taps &&
                       tile.AreWhole(plan.from, down, x_axis.reach());
      tap.tap = (y_axis.tap_first + i * y_axis.tap_step) * plan.p.kernel_width +
                x_axis.tap_first + j * x_axis.tap_step;
      tap.count = row ? x_axis.taps : 1;
      used += tile.Find(plan.from, down, j * x_axis.delta, from, zeros, tap.pixels);
      n -= tap.count;
      j += tap.count;
      if (j == x_axis.taps) ++i, j = 0;
    }
    if (used == 0) continue;
    for (int64_t first = 0; first < channels; first += plan.part_channels) {
      const int64_t end = Min(first + plan.part_channels, channels);
      for (int64_t n = 0; n < panels; ++n) {
        add_taps[plan.vectors(first_panel + n) - 1](
            taps, used, packed + plan.panel(first_panel + n), channels, first, end, add,
            sums + n * kSums<A>, lines);
      }
      add = true;
    }
  }
  if (!add) std::memset(sums, 0, panels * kSums<A> * sizeof(A));
}

template <typename A, bool kGradient>
Division Divide(const Problem& p) {
  const Plan<A, kGradient> plan(p);
  const int64_t lanes = RoundUp(plan.to.channels, kLanes<A>);
  Division d;
  d.fits = plan.fits && lanes <= 2 * plan.to.channels;
  d.workspace = (plan.packed() + plan.zeros) * sizeof(A);
  d.pack_tasks =
      plan.taps *
      (kGradient ? plan.panels : CeilDivide(plan.from.channels, kPackChannels));
  d.tasks = p.batch == 0 ? 0 : plan.y_places * plan.x_places * plan.groups * plan.parts;
  return d;
}

template <typename A, bool kGradient>
void Run(const Problem& p, int64_t task, const A* from, const void* workspace, A* to) {
  const Plan<A, kGradient> plan(p);
  const int64_t part = task % plan.parts;
  task /= plan.parts;
  const int64_t place = task % (plan.y_places * plan.x_places);
  const int64_t panel = task / (plan.y_places * plan.x_places) * plan.group;
  const int64_t panels = Min(plan.group, plan.panels - panel);
  const Axis y_axis = plan.AxisY(place / plan.x_places);
  const Axis x_axis = plan.AxisX(place % plan.x_places);
  const int64_t pixels = p.batch * y_axis.count * x_axis.count;
  const int64_t begin = PartBegin(pixels, part, plan.parts);
  const int64_t end = PartBegin(pixels, part + 1, plan.parts);
  if (begin == end) return;
  const int64_t step = CeilDivide(end - begin, CeilDivide(end - begin, kPixels));
  alignas(64) A sums[kMostPanels * kSums<A>];
  const auto tile_at = [&](int64_t first) {
    return Tile<A>(plan, y_axis, x_axis, first, Min(step, end - first));
  };
  Tile<A> next = tile_at(begin);
  for (int64_t first = begin; first < end; first += step) {
    const Tile<A> tile = next;
    Lines lines;
    if (first + step < end) {
      next = tile_at(first + step);
      Collect(plan, y_axis, x_axis, next, panel, panels, from, to, &lines);
    }
    AddTile(plan, y_axis, x_axis, tile, panel, panels, from,
            static_cast<const A*>(workspace), sums, &lines);
    for (int64_t n = 0; n < panels; ++n) {
      const int64_t lane = (panel + n) * plan.kPanel;
      const int64_t width = plan.vectors(panel + n) * kLanes<A>;
      tile.Write(sums + n * kSums<A>, width, lane, Min(plan.to.channels - lane, width),
                 to);
    }
  }
}

}  // namespace capsops::inq_conv::CAPSOPS_ISA

#endif  // CAPSOPS_CC_CPU_INQ_CONV_TILES_H_
