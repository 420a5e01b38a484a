// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Forward convolution of poses of one row, and the gradient of the input. Such images
// hold the rows of a matrix product as they lie in memory, pixel by pixel, so lanes are
// columns of the product and nothing is copied. Each tap multiplies the pixels that it
// reads inside the image, and adds to the pixels that these contribute to.
#ifndef CAPSOPS_CC_CPU_CAPSULE_CONV_COLUMNS_H_
#define CAPSOPS_CC_CPU_CAPSULE_CONV_COLUMNS_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/cpu/capsule_conv_axis.h"
#include "cc/cpu/capsule_conv_blocks.h"
#include "cc/cpu/column_tile.h"

namespace capsops::capsule_conv::CAPSOPS_ISA {

constexpr int64_t kBlockPixels = 256;       // of a task, that use a weight
constexpr int64_t kFewestPixels = 64;       // the same, where there are few tasks
constexpr int64_t kBlockBytes = 512 << 10;  // of a task's sums: the second-level cache

// How a sum is divided into parts, which are added up in registers. A part has some
// terms of a run, or all terms of several runs.
struct Runs {
  // Returns the runs of pixels that all taps contribute to from inside the image, or of
  // the other pixels. The former have parts of several taps. What a row of taps reads
  // then lies side by side in memory, as the weights do.
  template <bool kGradient>
  static Runs Of(const Problem& p, int64_t channels, bool is_inside) {
    const int64_t all = p.kernel_height * p.kernel_width;
    Runs runs;
    runs.taps = is_inside && !kGradient && p.dilation_width == 1 ? p.kernel_width : 1;
    runs.count = all / runs.taps;
    runs.length = runs.taps * channels;
    const int64_t terms = TermsOfPart(all * channels);
    runs.part = CeilDivide(runs.length, CeilDivide(Max(runs.length, 1), terms));
    runs.together =
        is_inside ? Max(Min(terms / Max(runs.length, 1), runs.count), 1) : 1;
    return runs;
  }

  int64_t taps;            // of a run
  int64_t count;           // of all runs
  int64_t length;          // terms of a run
  int64_t part, together;  // terms of a run and runs, of a part
};

// How the work is divided into tasks. A task computes a group of columns of a block of
// pixels.
template <typename A, bool kGradient>
struct ColumnsPlan {
  explicit ColumnsPlan(const Problem& problem)
      : p(problem),
        from(kGradient ? OutputImage(p) : InputImage(p)),
        to(kGradient ? InputImage(p) : OutputImage(p)),
        channels(from.channels * from.columns),
        columns(to.channels * to.columns),
        vectors(CeilDivide(columns, kLanes<A>)),
        taps(p.kernel_height * p.kernel_width),
        blocks(1, 1, 1, 1) {
    // With a stride, taps contribute to different pixels of the input.
    if (!kGradient || (p.stride_height == 1 && p.stride_width == 1)) {
      y_inside = InsideOf<kGradient>(Vertical(p));
      x_inside = InsideOf<kGradient>(Horizontal(p));
    }
    if (taps > 0) {
      inside = Runs::Of<kGradient>(p, channels, true);
      outside = Runs::Of<kGradient>(p, channels, false);
    }
    if (p.batch * to.height * to.width * columns == 0) return;

    const int64_t reuse =
        kGradient ? Min(p.stride_height, to.height) * Min(p.stride_width, to.width) : 1;
    const int64_t work =
        p.batch * p.out_height * p.out_width * columns * Max(taps * channels, 1);
    int64_t pixels = kBlockPixels;
    for (group = Min(vectors, kGroupVectors);;) {
      const int64_t fit = kBlockBytes / (group * kVectorBytes);
      blocks = Blocks(p.batch, to.height, to.width, Min(pixels * reuse, fit));
      groups = CeilDivide(vectors, group);
      tasks = groups * blocks.count();
      if (tasks >= kTasks || work / tasks < 2 * kTaskWork) break;
      if (pixels > kFewestPixels) {
        pixels /= 2;
      } else if (group > 2) {
        group = CeilDivide(group, 4) * 2;
      } else {
        break;
      }
    }
  }

  // Returns how many numbers a vector of columns has in the weights, which are packed
  // as [vector][tap][channel][lane].
  int64_t stride() const { return taps * channels * kLanes<A>; }
  int64_t sums() const { return tasks == 0 ? 0 : blocks.most() * group * kLanes<A>; }

  // Return how many runs the rows of a tile have, and how many numbers, at most.
  int64_t most_runs() const { return kTileRows * Max(inside.together, 1); }
  int64_t most_numbers() const {
    return kTileRows * Max(inside.together * inside.part, outside.part);
  }

  const Problem& p;
  Image from, to;
  int64_t channels, columns;  // of a pixel that is read, and of one that is written
  int64_t vectors, taps;
  Range y_inside = {}, x_inside = {};  // pixels that have the runs `inside`
  Runs inside = {}, outside = {};
  Blocks blocks;
  int64_t group = 0, groups = 0;  // vectors of a group, and groups of vectors
  int64_t tasks = 0;
};

template <typename T, bool kGradient>
Division DivideColumns(const Problem& p) {
  using A = Accumulator<T>;
  const ColumnsPlan<A, kGradient> plan(p);
  Division d;
  d.fits = p.pose_rows == 1 && p.pose_depth == 1 &&
           plan.vectors * kLanes<A> <= 2 * plan.columns;
  d.workspace = plan.vectors * plan.stride() * sizeof(A);
  d.scratch = plan.sums() * sizeof(A) + plan.most_runs() * sizeof(const A*) +
              (std::is_same_v<T, A> ? 0 : plan.most_numbers() * sizeof(A));
  d.tasks = plan.tasks;
  d.weights_tasks = plan.tasks == 0 ? 0 : plan.taps * plan.vectors;
  return d;
}

// Packs one vector of columns of one tap.
template <typename T, bool kGradient>
void PackColumns(const Problem& p, int64_t task, const T* weights, void* workspace) {
  using A = Accumulator<T>;
  const ColumnsPlan<A, kGradient> plan(p);
  const int64_t tap = task % plan.taps, vector = task / plan.taps;
  PackTile<T, kGradient, kLanes<A>>(p, weights, 0, vector * kLanes<A>,
                                    static_cast<A*>(workspace) +
                                        vector * plan.stride() +
                                        tap * plan.channels * kLanes<A>);
}

// A task's memory, beside the weights.
template <typename A>
struct Memory {
  A* sums;         // [pixel of the task's block][vector][lane]
  const A** rows;  // of a tile
  A* wide;         // what these rows point to, where images are not of type A
};

// Finds what a row of a tile reads in `count` runs from run `first` on: `length` terms,
// which begin at `from` for the first of these runs.
template <typename T, typename A, bool kGradient>
void FindRow(const ColumnsPlan<A, kGradient>& plan, const Runs& runs, int64_t first,
             int64_t count, int64_t length, const T* from, A* wide, const A** row) {
  const Problem& p = plan.p;
  const auto tap_at = [&](int64_t run) {
    const int64_t tap = run * runs.taps;
    const int64_t down = tap / p.kernel_width * p.dilation_height;
    const int64_t right = tap % p.kernel_width * p.dilation_width;
    const int64_t at = (down * plan.from.width + right) * plan.channels;
    return kGradient ? -at : at;
  };
  for (int64_t run = first; run < first + count; ++run, row += kTileRows) {
    const T* const numbers = from + tap_at(run) - tap_at(first);
    if constexpr (std::is_same_v<T, A>) {
      *row = numbers;
    } else {
      for (int64_t k = 0; k < length; ++k) wide[k] = Widen(numbers[k]);
      *row = wide;
      wide += length;
    }
  }
}

// Adds `length` terms of each of `count` runs, from run `first` and term `term` on, to
// the sums of the pixels in `part` of a block.
template <typename T, typename A, bool kGradient>
void AddPart(const ColumnsPlan<A, kGradient>& plan, const Block& block,
             const Block& part, const Runs& runs, int64_t first, int64_t count,
             int64_t term, int64_t length, const T* from, const A* weights,
             int64_t vectors, const Memory<A>& memory) {
  const int64_t tap = first * runs.taps;
  weights += (tap * plan.channels + term) * kLanes<A>;
  Pairs pairs = Pairs::Of<kGradient>(plan.p, tap, part);
  const int64_t tiles = CeilDivide(pairs.count, kTileRows);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t rows =
        PartBegin(pairs.count, tile + 1, tiles) - PartBegin(pairs.count, tile, tiles);
    A* to[kTileRows];
    for (int64_t n = 0; n < rows; ++n, pairs.Next()) {
      const int64_t y =
          (block.sample + pairs.sample) * plan.from.height + pairs.FromY();
      FindRow(plan, runs, first, count, length,
              from + (y * plan.from.width + pairs.FromX()) * plan.channels + term,
              memory.wide + n * count * length, memory.rows + n);
      to[n] = memory.sums + block.PlaceOf(pairs.sample, pairs.ToY(), pairs.ToX()) *
                                vectors * kLanes<A>;
    }
    const AddRowsFunction<A> two = AddRowsOf<A, 2>(rows), one = AddRowsOf<A, 1>(rows);
    for (int64_t v = 0; v < vectors; v += 2) {
      (v + 1 < vectors ? two : one)({memory.rows, count, length},
                                    weights + v * plan.stride(), plan.stride(), to);
      for (int64_t n = 0; n < rows; ++n) to[n] += 2 * kLanes<A>;
    }
  }
}

template <typename T, bool kGradient>
void RunColumns(const Problem& p, int64_t task, const T* from, const void* workspace,
                T* to, void* scratch) {
  using A = Accumulator<T>;
  const ColumnsPlan<A, kGradient> plan(p);
  const Block block = plan.blocks.At(task / plan.groups);
  const int64_t first = task % plan.groups * plan.group;
  const int64_t vectors = Min(plan.group, plan.vectors - first);
  const int64_t width = vectors * kLanes<A>;
  Memory<A> memory;
  memory.sums = static_cast<A*>(scratch);
  memory.rows = reinterpret_cast<const A**>(memory.sums + plan.sums());
  memory.wide = reinterpret_cast<A*>(memory.rows + plan.most_runs());
  const A* const weights = static_cast<const A*>(workspace) + first * plan.stride();
  std::memset(memory.sums, 0, block.pixels() * width * sizeof(A));
  ForParts(block, plan.y_inside, plan.x_inside, [&](const Block& part, bool inside) {
    const Runs& runs = inside ? plan.inside : plan.outside;
    for (int64_t run = 0; run < runs.count; run += runs.together) {
      for (int64_t term = 0; term < runs.length; term += runs.part) {
        AddPart(plan, block, part, runs, run, Min(runs.together, runs.count - run),
                term, Min(runs.part, runs.length - term), from, weights, vectors,
                memory);
      }
    }
  });
  const int64_t column = first * kLanes<A>, used = Min(width, plan.columns - column);
  const A* row = memory.sums;
  for (int64_t n = block.sample; n < block.sample + block.samples; ++n) {
    for (int64_t y = block.y_begin; y < block.y_end; ++y) {
      for (int64_t x = block.x_begin; x < block.x_end; ++x, row += width) {
        T* const pixel =
            to + ((n * plan.to.height + y) * plan.to.width + x) * plan.columns + column;
        for (int64_t k = 0; k < used; ++k) Narrow(row[k], pixel + k);
      }
    }
  }
}

}  // namespace capsops::capsule_conv::CAPSOPS_ISA

#endif  // CAPSOPS_CC_CPU_CAPSULE_CONV_COLUMNS_H_
