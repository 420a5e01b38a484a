// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// A convolution whose lanes are channels of the written image. A tile has a few pixels
// and two vectors of channels, and its sums stay in registers. For each tap, a tile has
// pointers to the pixels that it reads; for a pixel outside the image it points to
// zeros. So no image is copied, for any padding, strides and dilations.
#pragma once

#include <cstdint>
#include <cstring>

#include "cc/cpu/capsule_conv_axis.h"
#include "cc/cpu/column_tile.h"
#include "cc/cpu/inq_conv.h"

namespace capsops::inq_conv::CAPSOPS_ISA {

using namespace capsops::CAPSOPS_ISA;  // NOLINT: this unit's instruction set
using capsule_conv::CAPSOPS_ISA::Axis;
using capsule_conv::CAPSOPS_ISA::ImageAxis;
using capsule_conv::CAPSOPS_ISA::PartBegin;

constexpr int64_t kTerms = 320;     // terms per partial sum in registers, at least
constexpr int64_t kMostTaps = 128;  // most taps per partial sum
constexpr int64_t kMostPanels = 8;  // most panels per task
constexpr int64_t kPanelsBytes = 640 << 10;  // a task's panels, if several
constexpr int64_t kPackChannels = 64;        // input channels per task of `pack`
constexpr int64_t kTasks = 32;  // number of tasks to aim for, if each has enough work
constexpr int64_t kTaskWork = 1 << 18;  // fewest multiply-adds per task

// Sizes of an image.
struct Image {
  int64_t height, width, channels;
};

// The division of the sums and of the work of a convolution or, with kGradient, of its
// input gradient. As in cc/cpu/capsule_conv_image.h, `place` is the index of a phase.
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
        y_phases(kGradient ? Min(p.stride_height, to.height) : 1),
        x_phases(kGradient ? Min(p.stride_width, to.width) : 1) {
    // Rounding errors grow with the terms of a partial sum and with the number of
    // partial sums, so both are kept near the square root of all terms.
    int64_t terms = kTerms;
    while (terms * terms < taps * from.channels) terms *= 2;
    const int64_t channel_parts = Max(CeilDivide(from.channels, terms), 1);
    zeros = channel_parts > 1 ? from.channels : from.channels * p.kernel_width;
    part_channels = Max(CeilDivide(from.channels, channel_parts), 1);
    part_taps = Min(terms / part_channels, kMostTaps);
    // Prefer whole rows of taps, if that makes no more partial sums.
    const int64_t row_taps = part_taps - part_taps % Max(p.kernel_width, 1);
    if (row_taps > 0 && CeilDivide(taps, row_taps) == CeilDivide(taps, part_taps)) {
      part_taps = row_taps;
    }
    fits = CeilDivide(taps, part_taps) * channel_parts <= terms;

    const int64_t panel_bytes = Max(kPanel * taps * from.channels * sizeof(A), 1);
    groups = CeilDivide(panels, Min(Max(kPanelsBytes / panel_bytes, 1), kMostPanels));
    const int64_t pieces = y_phases * x_phases * groups;
    if (pieces == 0) return;
    group = CeilDivide(panels, groups);
    const int64_t pixels =
        p.batch * CeilDivide(to.height, y_phases) * CeilDivide(to.width, x_phases);
    const int64_t work = pixels * group * kPanel * Max(from.channels * taps, 1);
    parts = Min(CeilDivide(kTasks, pieces), work / kTaskWork);
    parts = Max(Min(parts, CeilDivide(pixels, kTileRows)), 1);
  }

  // Returns the number of elements of the panels [panel][tap][channel][lane].
  int64_t packed() const { return panels * kPanel * taps * from.channels; }
  // Returns the width of a panel in vectors. The last panel may have 1 instead of 2.
  int64_t vectors(int64_t panel) const {
    return Min(CeilDivide(to.channels - panel * kPanel, kLanes<A>), 2);
  }
  // Returns the number of lanes of `count` panels.
  int64_t WidthOf(int64_t first, int64_t count) const {
    return (count - 1) * kPanel + vectors(first + count - 1) * kLanes<A>;
  }
  // Writes the zeros that stand for pixels outside the image. They follow the panels.
  void SetZeros(A* weights) const {
    for (int64_t c = 0; c < zeros; ++c) weights[packed() + c] = 0;
  }
  // Returns the offset of a panel.
  int64_t panel(int64_t index) const { return index * kPanel * taps * from.channels; }

  Axis AxisY(int64_t place) const { return ImageAxis<kGradient>(Vertical(p), place); }
  Axis AxisX(int64_t place) const { return ImageAxis<kGradient>(Horizontal(p), place); }

  static constexpr int64_t kPanel = 2 * kLanes<A>;

  const Problem& p;
  Image from, to;
  int64_t taps, panels;
  int64_t groups, group = 0;         // groups of panels, and panels per group
  int64_t y_phases, x_phases;        // number of phases along each axis
  int64_t part_channels, part_taps;  // channels and taps per partial sum
  int64_t zeros;                     // most elements that a run reads per pixel
  bool fits;          // whether the number of partial sums is at most their length
  int64_t parts = 0;  // parts of the pixels of a phase, for each group
};

// Returns whether any lane is not zero.
CAPSOPS_INLINE bool Any(Vector<uint64_t> v) {
  uint64_t lanes[kLanes<uint64_t>], any = 0;
  Store(lanes, v);
  for (uint64_t lane : lanes) any |= lane;
  return any != 0;
}

// Consecutive pixels of one phase. They are the rows of a register tile.
template <typename A>
struct Tile {
  // One integer per pixel, modulo 2^64.
  using Numbers = Vector<uint64_t>;
  static constexpr int kVectors = kTileSlots / kLanes<uint64_t>;

  template <bool kGradient>
  Tile(const Plan<A, kGradient>& plan, const Axis& y_axis, const Axis& x_axis,
       int64_t pixel, int64_t count)
      : count(count) {
    const uint64_t rows = y_axis.count, columns = x_axis.count;
    const uint64_t row = pixel / x_axis.count;
    for (int v = 0; v < kVectors; ++v) {
      uint64_t index[kLanes<uint64_t>];
      for (int n = 0; n < kLanes<uint64_t>; ++n) index[n] = v * kLanes<uint64_t> + n;
      const Numbers slot = Load(index);
      Numbers tx = slot + (pixel - row * columns), ty = Numbers{} + row % rows;
      Numbers sample = Numbers{} + row / rows;
      while (Any((Numbers)(tx >= columns))) {
        const Numbers next_row = (Numbers)(tx >= columns);
        tx -= next_row & columns;
        ty -= next_row;
        const Numbers next_sample = (Numbers)(ty >= rows);
        ty -= next_sample & rows;
        sample -= next_sample;
      }
      y[v] = ty * y_axis.step + y_axis.offset;
      x[v] = tx * x_axis.step + x_axis.offset;
      from[v] = ((sample * plan.from.height + y[v]) * plan.from.width + x[v]) *
                (plan.from.channels * sizeof(A));
      const Numbers place =
          ((sample * plan.to.height + ty * y_axis.stride + y_axis.first) *
               plan.to.width +
           tx * x_axis.stride + x_axis.first) *
          plan.to.channels;
      Store(to + v * kLanes<uint64_t>, place);
      // Unused slots get a row so far away that no tap reads the image.
      const Numbers used = (Numbers)(slot < count);
      y[v] = (y[v] & used) | (~used & uint64_t{1} << 62);
      x[v] &= used;
    }
  }

  // Sets `pixels` to the addresses of the pixels that are `down` and `right` of those
  // that the first tap reads, or to `zeros` for pixels outside the image. Returns
  // whether any pixel is inside.
  bool Find(const Image& image, uint64_t down, uint64_t right, const A* numbers,
            const A* zeros, const A** pixels) const {
    const uint64_t height = image.height, width = image.width;
    const uint64_t first = reinterpret_cast<uintptr_t>(numbers) +
                           (down * image.width + right) * image.channels * sizeof(A);
    const uint64_t outside = reinterpret_cast<uintptr_t>(zeros);
    Numbers any = {};
    for (int v = 0; v < kVectors; ++v) {
      const Numbers inside = (Numbers)((y[v] + down < height) & (x[v] + right < width));
      const Numbers found = ((from[v] + first) & inside) | (outside & ~inside);
      std::memcpy(pixels + v * kLanes<uint64_t>, &found, sizeof(found));
      any |= inside;
    }
    return Any(any);
  }

  // Returns whether, for all pixels, the columns from the one that the first tap reads
  // to `reach` further right are inside the image.
  bool AreInsideRow(const Image& image, uint64_t reach) const {
    const uint64_t width = image.width;
    Numbers beyond = {};
    for (int v = 0; v < kVectors; ++v) {
      beyond |= (Numbers)((x[v] >= width) | (x[v] + reach >= width));
    }
    return !Any(beyond);
  }

  int64_t count;
  Numbers y[kVectors], x[kVectors];  // the pixel that the first tap reads
  Numbers from[kVectors];            // byte offset of this pixel
  uint64_t to[kTileSlots];           // offset of the written pixel in elements
};

// Returns for how many pixels, starting with pixel t of an axis, all taps read inside
// an image of `size` pixels.
inline int64_t PixelsInside(const Axis& axis, int64_t size, int64_t t) {
  const int64_t lowest = t * axis.step + axis.lowest();
  if (lowest < 0) return 0;
  const int64_t last = (size - 1 - lowest - axis.reach()) / axis.step;
  return Min(Max(last + 1, 0), axis.count - t);
}

// Computes the sums over all taps for `span` tiles and some panels. The sums of a pixel
// of the first tile begin at to[pixel]. The other tiles follow it in the same row; for
// these, no tap may read left or right of the image.
template <typename A, bool kGradient>
void AddTiles(const Plan<A, kGradient>& plan, const Axis& y_axis, const Axis& x_axis,
              const Tile<A>& tile, int64_t span, int64_t first_panel, int64_t panels,
              const A* from, const A* packed, A* const* to) {
  const AddRowsFunction<A> add_rows[] = {AddRowsOf<A, 1>(tile.count),
                                         AddRowsOf<A, 2>(tile.count)};
  const A* const zeros = packed + plan.packed();
  const int64_t channels = plan.from.channels;
  const int64_t count = y_axis.taps * x_axis.taps;
  // If the taps of a row read contiguous pixels, a row of taps is one run.
  const bool rows_of_taps =
      x_axis.delta == 1 && x_axis.tap_step == 1 && plan.part_channels == channels &&
      (count <= plan.part_taps || plan.part_taps % x_axis.taps == 0) &&
      tile.AreInsideRow(plan.from, x_axis.reach());
  const int64_t taps = rows_of_taps ? x_axis.taps : 1;
  // Distances from one tile to the next, in the image that is read and the written one.
  const int64_t read = tile.count * x_axis.step * channels;
  const int64_t written = tile.count * x_axis.stride * plan.to.channels;
  const A* rows[kMostTaps * kTileSlots];
  int64_t at[kMostTaps];
  bool add = false;
  int64_t i = 0, j = 0;
  for (int64_t begin = 0; begin < count; begin += plan.part_taps) {
    int64_t runs = 0;
    for (int64_t n = Min(plan.part_taps, count - begin); n > 0; n -= taps) {
      at[runs] = ((y_axis.tap_first + i * y_axis.tap_step) * plan.p.kernel_width +
                  x_axis.tap_first + j * x_axis.tap_step) *
                 channels;
      if (tile.Find(plan.from, i * y_axis.delta, j * x_axis.delta, from, zeros,
                    rows + runs * kTileSlots)) {
        ++runs;
      }
      j += taps;
      if (j == x_axis.taps) ++i, j = 0;
    }
    if (runs == 0) continue;
    for (int64_t first = 0; first < channels; first += plan.part_channels) {
      const int64_t length = Min(taps * plan.part_channels, taps * channels - first);
      // Prefetches what the next tile writes.
      const int64_t step = CeilDivide(written, Max(panels * runs * length, 1));
      for (int64_t s = 0; s < span; ++s) {
        const A* next = to[0] + (s + 1) * written;
        for (int64_t n = first_panel; n < first_panel + panels; ++n) {
          const int64_t width = plan.vectors(n) * kLanes<A>;
          add_rows[plan.vectors(n) - 1]({rows, at, runs, s * read + first, length},
                                        packed + plan.panel(n) + first * width, next,
                                        step, add, to,
                                        s * written + (n - first_panel) * plan.kPanel);
          next += runs * length * step;
        }
      }
      add = true;
    }
  }
  if (add) return;
  const int64_t bytes = plan.WidthOf(first_panel, panels) * sizeof(A);
  for (int64_t n = 0; n < tile.count * span; ++n) {
    std::memset(to[n % tile.count] + n / tile.count * written, 0, bytes);
  }
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
  d.tasks = p.batch == 0 ? 0 : plan.y_phases * plan.x_phases * plan.groups * plan.parts;
  return d;
}

// Computes a group of panels for some pixels of a phase: one task.
template <typename A, bool kGradient>
void Run(const Problem& p, int64_t task, const A* from, const void* workspace, A* to) {
  const Plan<A, kGradient> plan(p);
  const int64_t part = task % plan.parts;
  task /= plan.parts;
  const int64_t place = task % (plan.y_phases * plan.x_phases);
  const int64_t panel = task / (plan.y_phases * plan.x_phases) * plan.group;
  const int64_t panels = Min(plan.group, plan.panels - panel);
  const Axis y_axis = plan.AxisY(place / plan.x_phases);
  const Axis x_axis = plan.AxisX(place % plan.x_phases);
  const int64_t pixels = p.batch * y_axis.count * x_axis.count;
  const int64_t begin = PartBegin(pixels, part, plan.parts);
  const int64_t end = PartBegin(pixels, part + 1, plan.parts);
  if (begin == end) return;
  const int64_t step = CeilDivide(end - begin, CeilDivide(end - begin, kTileRows));
  // Sums are stored directly in the image if it holds whole vectors of them.
  const bool in_place = plan.to.channels % kLanes<A> == 0;
  constexpr int64_t kWidth = kMostPanels * Plan<A, kGradient>::kPanel;
  alignas(64) A sums[kTileRows * kWidth];
  const int64_t channel = panel * plan.kPanel;
  const int64_t used = Min(panels * plan.kPanel, plan.to.channels - channel);
  for (int64_t first = begin, count; first < end; first += count) {
    const Tile<A> tile(plan, y_axis, x_axis, first, Min(step, end - first));
    A* rows[kTileRows];
    for (int64_t n = 0; n < tile.count; ++n) {
      rows[n] = in_place ? to + tile.to[n] + channel : sums + n * kWidth;
    }
    const int64_t inside =
        in_place ? PixelsInside(x_axis, plan.from.width, first % x_axis.count) : 0;
    const int64_t span = Max(Min(inside, end - first) / tile.count, 1);
    AddTiles(plan, y_axis, x_axis, tile, span, panel, panels, from,
             static_cast<const A*>(workspace), rows);
    count = tile.count * span;
    if (in_place) continue;
    for (int64_t n = 0; n < tile.count; ++n) {
      std::memcpy(to + tile.to[n] + channel, rows[n], used * sizeof(A));
    }
  }
}

}  // namespace capsops::inq_conv::CAPSOPS_ISA
