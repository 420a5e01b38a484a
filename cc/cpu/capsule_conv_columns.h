// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Forward convolution and input gradient of the family `columns` (capsule_conv.h), for
// poses of one row. Pixels are the rows of the matrix product and are read in place;
// lanes are columns. A register tile has a few pixels and one panel of weights, that is
// two vectors of columns. A task computes a group of panels for some pixels. `numbers`
// counts the elements of a pixel.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/cpu/capsule_conv_strip.h"
#include "cc/cpu/capsule_conv_tile.h"

namespace capsops::capsule_conv::CAPSOPS_ISA {

constexpr int64_t kMostTaps = 128;           // most taps per partial sum
constexpr int64_t kMostPanels = 8;           // most panels per task
constexpr int64_t kPanelsBytes = 640 << 10;  // a task's panels in the L2 cache
// If the panels do not fit there, they stream through the cache once per block of
// pixels.
constexpr int64_t kBlockPixels = 256;    // most pixels per block
constexpr int64_t kBlockPanels = 4;      // most panels per task
constexpr int64_t kMinBlockPixels = 64;  // fewest pixels per task
constexpr int64_t kBlockTiles = 32;      // most tiles per block
constexpr int64_t kMinNumbers = 16;      // fewest numbers of a pixel for `by_pixel`
// Most samples of a tile if `by_pixel`; more would compete for cache sets.
constexpr int64_t kMostSamples = kTileRows < 8 ? kTileRows : 8;

// The fewest terms of a partial sum over one tap, and over several. The gradient has
// shorter partial sums so as to be as accurate as plain TensorFlow, which sums each tap
// separately.
struct SumTerms {
  int64_t of_tap, of_taps;
};
template <bool kGradient>
constexpr SumTerms kSumTerms = {256, kGradient ? 128 : 256};

// The division into tasks, and of each sum into partial sums. The input gradient
// divides the input into phases, whose pixels use the same taps; the convolution has
// one phase. `place` is the index of a phase.
template <typename A, bool kGradient>
struct ColumnsPlan {
  static constexpr int64_t kPanel = 2 * kLanes<A>;

  ColumnsPlan(const Problem& problem, const SumTerms& least)
      : p(problem),
        from(Size(kGradient ? OutputImage(p) : InputImage(p))),
        to(Size(kGradient ? InputImage(p) : OutputImage(p))),
        taps(p.kernel_height * p.kernel_width),
        panels(CeilDivide(to.numbers, kPanel)),
        y_phases(kGradient ? Min(p.stride_height, to.height) : 1),
        x_phases(kGradient ? Min(p.stride_width, to.width) : 1) {
    // Rounding errors grow with the terms of a partial sum and with the number of
    // partial sums, so both are kept near the square root of all terms.
    int64_t terms = least.of_tap, tap_terms = least.of_taps;
    for (; terms * terms < taps * from.numbers; terms *= 2) tap_terms *= 2;
    const int64_t number_parts = Max(CeilDivide(from.numbers, terms), 1);
    zeros = number_parts > 1 ? from.numbers : from.numbers * p.kernel_width;
    part_numbers = Max(CeilDivide(from.numbers, number_parts), 1);
    part_taps = Min(Max(tap_terms / part_numbers, 1), kMostTaps);
    // Prefer whole rows of taps, unless that needs more partial sums.
    const int64_t row_taps = part_taps - part_taps % Max(p.kernel_width, 1);
    if (row_taps > 0 && CeilDivide(taps, row_taps) == CeilDivide(taps, part_taps)) {
      part_taps = row_taps;
    }
    fits = CeilDivide(taps, part_taps) * number_parts <= terms;

    const int64_t panel_bytes = Max(kPanel * taps * from.numbers * sizeof(A), 1);
    const int64_t phases = y_phases * x_phases;
    const int64_t pixels = p.batch * CeilDivide(to.height, Max(y_phases, 1)) *
                           CeilDivide(to.width, Max(x_phases, 1));
    streams = 2 * panel_bytes > kPanelsBytes && panels > 1;
    // If by_pixel, the rows of a tile have the same taps inside the image, so that it
    // can skip the others. But each tile then needs its own pointers, which are
    // expensive to find if taps have few terms.
    by_pixel = p.batch > 1 && from.numbers >= kMinNumbers;
    samples = p.batch;
    if (by_pixel) samples = CeilDivide(p.batch, CeilDivide(p.batch, kMostSamples));
    // At the edges of small images, tiles that have all samples of each of their pixels
    // multiply fewer zeros.
    const bool small = 8 * (p.kernel_width - 1) * p.dilation_width >= to.width;
    rows = by_pixel && kGradient && small ? kTileRows / samples * samples : kTileRows;
    int64_t most =
        streams ? kBlockPanels : Min(Max(kPanelsBytes / panel_bytes, 1), kMostPanels);
    if (streams) {
      const auto tasks = [&](int64_t fewest) {
        return phases * CeilDivide(panels, most) * CeilDivide(pixels, fewest);
      };
      if (tasks(kBlockPixels) < kTasks) most /= 2;
      if (tasks(kMinBlockPixels) < kTasks) most = 1;
    }
    groups = CeilDivide(panels, most);
    if (phases * groups == 0) return;
    group = CeilDivide(panels, groups);
    const int64_t work = pixels * group * kPanel * Max(from.numbers * taps, 1);
    parts = Min(CeilDivide(kTasks, phases * groups), work / kTaskWork);
    const int64_t fewest = streams ? kMinBlockPixels : kTileRows;
    parts = Max(Min(parts, CeilDivide(pixels, fewest)), 1);
  }

  static Pixmap Size(const Image& image) {
    return {image.height, image.width, image.channels * image.columns};
  }
  Axis AxisY(int64_t place) const { return ImageAxis<kGradient>(Vertical(p), place); }
  Axis AxisX(int64_t place) const { return ImageAxis<kGradient>(Horizontal(p), place); }

  // Return the offset of a panel in [panel][tap][number][lane], and its width. The last
  // panel may have one vector instead of two.
  int64_t panel(int64_t index) const { return index * kPanel * taps * from.numbers; }
  int64_t vectors(int64_t panel) const {
    return Min(CeilDivide(to.numbers - panel * kPanel, kLanes<A>), 2);
  }
  // The panels are followed by zeros, which replace pixels outside the image, and by a
  // flag for each panel and tap that is not zero if a weight is not finite.
  int64_t packed() const { return flags(panels); }
  int64_t flags(int64_t index) const { return panel(panels) + zeros + index * taps; }
  bool AreFinite(const A* packed, int64_t first_panel, int64_t count) const {
    A any = 0;
    for (int64_t n = flags(first_panel); n < flags(first_panel + count); ++n) {
      any += packed[n];
    }
    return any == 0;
  }
  // Returns whether sums can be stored directly in a written image of type A.
  bool in_place() const { return to.numbers % kLanes<A> == 0; }
  // Returns how many pixels a task sums at a time, at most.
  int64_t block() const { return streams ? kBlockPixels : kTileRows; }

  const Problem& p;
  Pixmap from, to;
  int64_t taps, panels;
  int64_t y_phases, x_phases;       // number of phases along each axis
  int64_t part_numbers, part_taps;  // numbers of a pixel and taps per partial sum
  int64_t zeros;                    // most numbers that a run reads
  bool fits;        // whether the number of partial sums is at most their length
  bool streams;     // whether the weights of a task come from outside the L2 cache
  bool by_pixel;    // whether a tile has a pixel of several samples, then the next one
  int64_t samples;  // most samples of a tile
  int64_t rows;     // most pixels of a tile
  int64_t groups, group = 0;  // groups of panels, and panels per group
  int64_t parts = 0;          // parts of the pixels of a phase, for each group
};

// The scratch of a task: sums [pixel of a block][lane of a group], unless they are
// stored in place, and copies of a tile's pixels as type A, unless T is A.
template <typename T, typename A, bool kGradient>
int64_t SumsOf(const ColumnsPlan<A, kGradient>& plan) {
  const bool in_place = std::is_same_v<T, A> && plan.in_place();
  return in_place ? 0 : plan.block() * plan.group * plan.kPanel;
}
template <typename T, typename A, bool kGradient>
int64_t ScratchOf(const ColumnsPlan<A, kGradient>& plan) {
  const int64_t terms = plan.part_taps * plan.part_numbers;
  const int64_t wide = std::is_same_v<T, A> ? 0 : kTileRows * terms;
  return (SumsOf<T>(plan) + wide) * sizeof(A);
}

// Sets `fits` only if at least half of the lanes are used.
template <typename T, bool kGradient, const SumTerms& kTerms = kSumTerms<kGradient>>
Division DivideColumns(const Problem& p) {
  using A = Accumulator<T>;
  const ColumnsPlan<A, kGradient> plan(p, kTerms);
  Division d;
  d.fits = plan.fits && p.pose_rows == 1 && p.pose_depth == 1 &&
           RoundUp(plan.to.numbers, kLanes<A>) <= 2 * plan.to.numbers;
  d.workspace = plan.packed() * sizeof(A);
  d.scratch = ScratchOf<T>(plan);
  d.tasks = p.batch == 0 ? 0 : plan.y_phases * plan.x_phases * plan.groups * plan.parts;
  d.weights_tasks = plan.taps * plan.panels;
  return d;
}

// Packs one panel of one tap: one task.
template <typename T, bool kGradient>
void PackColumns(const Problem& p, int64_t task, const T* weights, void* workspace) {
  using A = Accumulator<T>;
  using Plan = ColumnsPlan<A, kGradient>;
  const Plan plan(p, kSumTerms<kGradient>);
  A* const packed = static_cast<A*>(workspace);
  if (task == 0) {
    std::memset(packed + plan.panel(plan.panels), 0, plan.zeros * sizeof(A));
  }
  const int64_t tap = task % plan.taps, panel = task / plan.taps;
  const int64_t width = plan.vectors(panel) * kLanes<A>;
  const int64_t first = panel * plan.kPanel;
  A* const to = packed + plan.panel(panel) + tap * plan.from.numbers * width;
  if (width == plan.kPanel) {
    PackTile<T, kGradient, Plan::kPanel>(p, weights, 0, first, to);
  } else {
    PackTile<T, kGradient, kLanes<A>>(p, weights, 0, first, to);
  }
  packed[plan.flags(panel) + tap] = !AreFinite(to, plan.from.numbers * width);
}

// The operands of a task: a group of panels, and the axes of a phase.
template <typename T, typename A>
struct Operands {
  Axis y_axis, x_axis;
  int64_t panel, panels;
  const T* from;
  const A* packed;
};

// Adds the terms of `part_taps` taps from `begin` on to the sums of a tile, or sets the
// sums if these taps are the first. The sums of a pixel begin at to[pixel]. The tile
// begins with pixel `index` of a block of `block` pixels. `wide` is scratch.
template <typename T, typename A, bool kGradient>
void AddPart(const ColumnsPlan<A, kGradient>& plan, const Operands<T, A>& task,
             const Tile<T>& tile, int64_t begin, int64_t index, int64_t block, A* wide,
             A* const* to) {
  const AddRowsFunction<A> add_rows[] = {AddRowsOf<A, 1>(tile.count),
                                         AddRowsOf<A, 2>(tile.count)};
  const Axis &y_axis = task.y_axis, &x_axis = task.x_axis;
  const int64_t numbers = plan.from.numbers;
  const int64_t count = y_axis.taps * x_axis.taps;
  const bool all_numbers = plan.part_numbers == numbers;
  // If the taps of a row read contiguous pixels, a row of taps is one long run.
  const bool rows_of_taps =
      x_axis.delta == 1 && x_axis.tap_step == 1 && all_numbers &&
      (count <= plan.part_taps || plan.part_taps % x_axis.taps == 0) &&
      tile.AreInsideRow(plan.from, x_axis.reach());
  const int64_t taps = rows_of_taps ? x_axis.taps : 1;
  // Distances from one tile to the next, in the image that is read and the written one.
  const int64_t read = tile.count * x_axis.step * numbers;
  const int64_t written = tile.count * x_axis.stride * plan.to.numbers;
  const T* pixels[kMostTaps * kTileSlots];
  int64_t at[kMostTaps], runs = 0;
  const int64_t end = Min(begin + plan.part_taps, count);
  for (int64_t tap = begin; tap < end; tap += taps) {
    const int64_t i = tap / x_axis.taps, j = tap - i * x_axis.taps;
    at[runs] = ((y_axis.tap_first + i * y_axis.tap_step) * plan.p.kernel_width +
                x_axis.tap_first + j * x_axis.tap_step) *
               numbers;
    runs +=
        tile.Find(plan.from, i * y_axis.delta, j * x_axis.delta, task.from,
                  task.packed + plan.panel(plan.panels), pixels + runs * kTileSlots);
  }
  for (int64_t first = 0; runs > 0 && first < numbers; first += plan.part_numbers) {
    const int64_t length = taps * Min(plan.part_numbers, numbers - first);
    int64_t skip = first;
    const A* const* rows;
    const A* copies[std::is_same_v<T, A> ? 1 : kMostTaps * kTileSlots];
    if constexpr (std::is_same_v<T, A>) {
      rows = pixels;
    } else {
      A* copy = wide;
      for (int64_t run = 0; run < runs; ++run) {
        for (int64_t n = 0; n < tile.count; ++n, copy += length) {
          const T* const pixel = pixels[run * kTileSlots + n] + first;
          for (int64_t k = 0; k < length; ++k) copy[k] = Widen(pixel[k]);
          copies[run * kTileSlots + n] = copy;
        }
      }
      rows = copies;
      skip = 0;
    }
    const int64_t terms = runs * length;
    for (int64_t s = 0; s < tile.span; ++s) {
      // Prefetch the sums of the next tile. If weights stream through the cache,
      // prefetch weights of the next partial sum instead, some with each tile.
      const A* ahead = to[0] + (s + 1) * written;
      int64_t step = CeilDivide(written, Max(task.panels * terms, 1));
      for (int64_t n = task.panel; n < task.panel + task.panels; ++n) {
        const int64_t width = plan.vectors(n) * kLanes<A>;
        const A* const weights = task.packed + plan.panel(n) + first * width;
        if (plan.streams) {
          ahead = weights + (at[0] + terms + terms * index / block) * width;
          step = CeilDivide(tile.count * width, block);
        }
        add_rows[plan.vectors(n) - 1]({rows, at, runs, s * read + skip, length},
                                      weights, ahead, step, begin > 0 || first > 0, to,
                                      s * written + (n - task.panel) * plan.kPanel);
        ahead += terms * step;
      }
      index += tile.count;
    }
  }
  if (runs > 0 || begin > 0) return;
  const int64_t last = task.panel + task.panels - 1;
  const int64_t width =
      (task.panels - 1) * plan.kPanel + plan.vectors(last) * kLanes<A>;
  for (int64_t n = 0; n < tile.count * tile.span; ++n) {
    std::memset(to[n % tile.count] + n / tile.count * written, 0, width * sizeof(A));
  }
}

// Computes a group of panels for some pixels of a phase: one task.
template <typename T, bool kGradient, const SumTerms& kTerms = kSumTerms<kGradient>>
void RunColumns(const Problem& p, int64_t task, const T* from, const void* workspace,
                T* to, void* scratch) {
  using A = Accumulator<T>;
  const ColumnsPlan<A, kGradient> plan(p, kTerms);
  const int64_t part = task % plan.parts;
  task /= plan.parts;
  const int64_t place = task % (plan.y_phases * plan.x_phases);
  const int64_t panel = task / (plan.y_phases * plan.x_phases) * plan.group;
  const Operands<T, A> operands{plan.AxisY(place / plan.x_phases),
                                plan.AxisX(place % plan.x_phases),
                                panel,
                                Min(plan.group, plan.panels - panel),
                                from,
                                static_cast<const A*>(workspace)};
  const Axis &y_axis = operands.y_axis, &x_axis = operands.x_axis;
  // Tasks and the parts of tasks consist of whole tiles where possible.
  const int64_t image = y_axis.count * x_axis.count, pixels = p.batch * image;
  const int64_t units = CeilDivide(pixels, plan.rows);
  const int64_t begin = Min(PartBegin(units, part, plan.parts) * plan.rows, pixels);
  const int64_t end = Min(PartBegin(units, part + 1, plan.parts) * plan.rows, pixels);
  if (begin >= end) return;
  // Products of the zeros outside the image with infinite weights would be NaN. Tiles
  // of a single pixel avoid this, because Find then skips taps outside the image.
  int64_t size = CeilDivide(end - begin, CeilDivide(end - begin, kTileRows));
  if (plan.rows < kTileRows) size = plan.rows;
  if (!plan.AreFinite(operands.packed, panel, operands.panels)) size = 1;
  const bool in_place = SumsOf<T>(plan) == 0;
  const int64_t width = plan.group * plan.kPanel, column = panel * plan.kPanel;
  A* const sums = static_cast<A*>(scratch);
  A* const wide = sums + SumsOf<T>(plan);
  const int64_t count = Max(y_axis.taps * x_axis.taps, 1);
  Tile<T> tiles[kBlockTiles];
  for (int64_t first = begin; first < end;) {
    // A block has one tile or, if weights stream through the cache, several.
    const int64_t most = plan.streams ? Min(kBlockPixels, end - first) : 1;
    int64_t tile_count = 0, block = 0;
    while (block < most && tile_count < kBlockTiles) {
      const int64_t sample = (first + block) / (plan.samples * image) * plan.samples;
      const int64_t samples = Min(plan.samples, p.batch - sample);
      const int64_t pixel = first + block - sample * image;
      const int64_t left = Min(plan.streams ? most - block : end - first - block,
                               samples * image - pixel);
      Tile<T>& tile = tiles[tile_count++];
      tile = Tile<T>(plan.from, plan.to, y_axis, x_axis, sample, samples, plan.by_pixel,
                     pixel, Min(size, left));
      if (in_place && !plan.by_pixel) {
        const int64_t inside =
            PixelsInside(x_axis, plan.from.width, pixel % x_axis.count);
        tile.span = Max(Min(inside, left) / tile.count, 1);
      }
      block += tile.count * tile.span;
    }
    const auto for_tiles = [&](const auto& visit) {
      int64_t index = 0;
      for (int64_t n = 0; n < tile_count; ++n) {
        visit(tiles[n], index);
        index += tiles[n].count * tiles[n].span;
      }
    };
    for (int64_t tap = 0; tap < count; tap += plan.part_taps) {
      for_tiles([&](const Tile<T>& tile, int64_t index) {
        A* places[kTileRows];
        for (int64_t n = 0; n < tile.count; ++n) {
          places[n] = sums + (index + n) * width;
          if constexpr (std::is_same_v<T, A>) {
            if (in_place) places[n] = to + tile.to[n] + column;
          }
        }
        AddPart(plan, operands, tile, tap, index, block, wide, places);
      });
    }
    first += block;
    if (in_place) continue;
    const int64_t used = Min(width, plan.to.numbers - column);
    for_tiles([&](const Tile<T>& tile, int64_t index) {
      for (int64_t n = 0; n < tile.count; ++n) {
        const A* const sum = sums + (index + n) * width;
        T* const pixel = to + tile.to[n] + column;
        for (int64_t k = 0; k < used; ++k) Narrow(sum[k], pixel + k);
      }
    });
  }
}

}  // namespace capsops::capsule_conv::CAPSOPS_ISA
