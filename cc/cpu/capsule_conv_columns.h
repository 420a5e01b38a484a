// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Forward convolution and input gradient for poses of one row. The pixels of such an
// image are the rows of the matrix product, so lanes are columns of the product, and
// rows are read in place. Each tap multiplies the pixels that it reads inside the
// image, and adds the products to the pixels that they contribute to.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/cpu/capsule_conv_axis.h"
#include "cc/cpu/capsule_conv_blocks.h"
#include "cc/cpu/column_tile.h"

namespace capsops::capsule_conv::CAPSOPS_ISA {

constexpr int64_t kBlockPixels = 256;    // pixels of a task that share each weight
constexpr int64_t kMinBlockPixels = 64;  // fewest such pixels, if there are few tasks

// The division of a sum into partial sums, which stay in registers. The terms of a sum
// form `count` runs; a run has the terms of `taps` neighboring taps, which are
// contiguous in the image and in the weights. A partial sum covers some terms of one
// run, or all terms of several runs.
struct Runs {
  // Returns the runs of pixels whose taps are all inside the image, or of the other
  // pixels. Inside, a run is a whole row of taps where these are contiguous, and a
  // partial sum may cover several runs.
  template <bool kGradient>
  static Runs Of(const Problem& p, int64_t channels, bool is_inside) {
    const int64_t all = p.kernel_height * p.kernel_width;
    Runs runs;
    runs.taps = is_inside && !kGradient && p.dilation_width == 1 ? p.kernel_width : 1;
    runs.count = all / runs.taps;
    runs.length = runs.taps * channels;
    const int64_t terms = TermsOfPart(all * channels);
    runs.part = CeilDivide(runs.length, CeilDivide(Max(runs.length, 1), terms));
    // Plain TensorFlow sums each tap of the gradient separately, which is exact if taps
    // have few terms, so sums are shorter here.
    const int64_t most = kGradient ? terms / 2 : terms;
    runs.together = is_inside ? Max(Min(most / Max(runs.length, 1), runs.count), 1) : 1;
    return runs;
  }

  int64_t taps;            // taps per run
  int64_t count;           // number of runs
  int64_t length;          // terms per run
  int64_t part, together;  // terms and runs per partial sum
};

// The division into tasks, each a group of column vectors for a block of pixels.
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
    // With a stride, pixels of the input have different taps, so none counts as inside.
    if (!kGradient || (p.stride_height == 1 && p.stride_width == 1)) {
      y_inside = InsideOf<kGradient>(Vertical(p));
      x_inside = InsideOf<kGradient>(Horizontal(p));
    }
    inside = Runs::Of<kGradient>(p, channels, true);
    outside = Runs::Of<kGradient>(p, channels, false);
    const int64_t reuse =
        kGradient ? Min(p.stride_height, to.height) * Min(p.stride_width, to.width) : 1;
    const int64_t work =
        p.batch * p.out_height * p.out_width * columns * taps * channels;
    int64_t pixels = kBlockPixels;
    for (group = Min(vectors, kGroupVectors);;) {
      const int64_t fit = kBlockBytes / (group * kVectorBytes);
      blocks = Blocks(p.batch, to.height, to.width, Min(pixels * reuse, fit));
      groups = CeilDivide(vectors, group);
      tasks = groups * blocks.count();
      if (tasks >= kTasks || work / tasks < 2 * kTaskWork) break;
      if (group > 4) {
        group = 4;
      } else if (pixels > kMinBlockPixels) {
        pixels /= 2;
      } else if (group > 2) {
        group = 2;
      } else {
        break;
      }
    }
  }

  // Returns the elements from one vector of columns to the next in the packed weights
  // [panel][tap][channel][lane]. A panel has two vectors; the last may have one.
  int64_t stride() const { return taps * channels * kLanes<A>; }
  // Returns whether the sums can be stored directly in a written image of type A.
  bool in_place() const { return columns % kLanes<A> == 0; }

  // Return the most runs of a partial sum, and the most elements it reads per pixel.
  int64_t most_runs() const { return Max(inside.together, 1); }
  int64_t most_numbers() const {
    return Max(inside.together * inside.part, outside.part);
  }

  const Problem& p;
  Image from, to;
  int64_t channels, columns;  // elements of a pixel: read, and written
  int64_t vectors, taps;
  Range y_inside = {}, x_inside = {};  // pixels that use the runs `inside`
  Runs inside = {}, outside = {};
  Blocks blocks;
  int64_t group = 0, groups = 0;  // vectors per group, and number of groups
  int64_t tasks = 0;
};

// The scratch of a task.
template <typename A>
struct TaskScratch {
  A* sums;           // [pixel of the task's block][vector][lane]
  int64_t* offsets;  // offset of run r's pixels from those of a partial sum's first run
  int64_t* at;       // offset of run r's weights from those of that run, in rows
  const A** rows;    // pointers to the rows of a tile
  A* wide;           // copies of these rows, converted to A
  int64_t bytes;
};

// Lays out the scratch. Images of type A need no copies and maybe no sums.
template <typename T, typename A, bool kGradient>
TaskScratch<A> CarveScratch(const ColumnsPlan<A, kGradient>& plan,
                            void* scratch = nullptr) {
  constexpr bool kSame = std::is_same_v<T, A>;
  int64_t bytes = 0;
  const auto next = [&](int64_t count, int64_t size) {
    char* const place = static_cast<char*>(scratch) + bytes;
    bytes += RoundUp(count * size, 64);
    return place;
  };
  const int64_t sums =
      kSame && plan.in_place() ? 0 : plan.blocks.most() * plan.group * kLanes<A>;
  TaskScratch<A> memory;
  memory.sums = reinterpret_cast<A*>(next(sums, sizeof(A)));
  memory.offsets = reinterpret_cast<int64_t*>(next(plan.most_runs(), sizeof(int64_t)));
  memory.at = reinterpret_cast<int64_t*>(next(plan.most_runs(), sizeof(int64_t)));
  memory.rows = reinterpret_cast<const A**>(
      next(kTileSlots * plan.most_runs(), sizeof(const A*)));
  memory.wide = reinterpret_cast<A*>(
      next(kSame ? 0 : kTileRows * plan.most_numbers(), sizeof(A)));
  memory.bytes = bytes;
  return memory;
}

// Sets `fits` only if at least half of the lanes are used.
template <typename T, bool kGradient>
Division DivideColumns(const Problem& p) {
  using A = Accumulator<T>;
  const ColumnsPlan<A, kGradient> plan(p);
  Division d;
  d.fits = p.pose_rows == 1 && p.pose_depth == 1 &&
           plan.vectors * kLanes<A> <= 2 * plan.columns;
  d.workspace = plan.vectors * plan.stride() * sizeof(A);
  d.scratch = CarveScratch<T>(plan).bytes;
  d.tasks = plan.tasks;
  d.weights_tasks = plan.taps * CeilDivide(plan.vectors, 2);
  return d;
}

// Packs one panel of the columns of one tap.
template <typename T, bool kGradient>
void PackColumns(const Problem& p, int64_t task, const T* weights, void* workspace) {
  using A = Accumulator<T>;
  constexpr int kPanel = 2 * kLanes<A>;
  const ColumnsPlan<A, kGradient> plan(p);
  const int64_t tap = task % plan.taps, v = task / plan.taps * 2;
  A* const panel = static_cast<A*>(workspace) + v * plan.stride();
  const int64_t row = tap * plan.channels;
  if (v + 1 < plan.vectors) {
    PackTile<T, kGradient, kPanel>(p, weights, 0, v * kLanes<A>, panel + row * kPanel);
  } else {
    PackTile<T, kGradient, kLanes<A>>(p, weights, 0, v * kLanes<A>,
                                      panel + row * kLanes<A>);
  }
}

// A partial sum: `length` terms from `term` on of each of `runs` runs from `run` on.
struct Part {
  int64_t run, runs;
  int64_t term, length;
};

// Adds a partial sum to the sums of the pixels in `block`, or sets them to it.
template <typename T, typename A, bool kGradient>
void AddPart(const ColumnsPlan<A, kGradient>& plan, const Block& block,
             const Runs& runs, const Part& part, bool add, const T* from,
             const A* weights, int64_t vectors, const TaskScratch<A>& memory,
             const PixelView<A>& sums) {
  const Problem& p = plan.p;
  const int64_t tap = part.run * runs.taps;
  for (int64_t run = 0; run < part.runs; ++run) {
    const int64_t other = tap + run * runs.taps;
    const int64_t down = other / p.kernel_width - tap / p.kernel_width;
    const int64_t right = other % p.kernel_width - tap % p.kernel_width;
    const int64_t at =
        (down * p.dilation_height * plan.from.width + right * p.dilation_width) *
        plan.channels;
    memory.offsets[run] = kGradient ? -at : at;
    memory.at[run] = run * part.length;
  }
  const int64_t terms = part.runs * part.length;
  const int64_t begin = tap * plan.channels + part.term;
  Pairs pairs = Pairs::Of<kGradient>(p, tap, block);
  const int64_t tiles = CeilDivide(pairs.count, kTileRows);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t rows =
        PartBegin(pairs.count, tile + 1, tiles) - PartBegin(pairs.count, tile, tiles);
    A* to[kTileRows];
    A* wide = memory.wide;
    for (int64_t n = 0; n < rows; ++n, pairs.Next()) {
      const int64_t y =
          (block.sample + pairs.sample) * plan.from.height + pairs.FromY();
      const T* const pixel =
          from + (y * plan.from.width + pairs.FromX()) * plan.channels + part.term;
      for (int64_t run = 0; run < part.runs; ++run) {
        const T* const numbers = pixel + memory.offsets[run];
        if constexpr (std::is_same_v<T, A>) {
          memory.rows[run * kTileSlots + n] = numbers;
        } else {
          for (int64_t k = 0; k < part.length; ++k) wide[k] = Widen(numbers[k]);
          memory.rows[run * kTileSlots + n] = wide;
          wide += part.length;
        }
      }
      to[n] = sums.At(pairs.sample, pairs.ToY(), pairs.ToX());
    }
    const AddRowsFunction<A> two = AddRowsOf<A, 2>(rows), one = AddRowsOf<A, 1>(rows);
    for (int64_t v = 0; v < vectors; v += 2) {
      const int64_t width = Min(vectors - v, 2) * kLanes<A>;
      const A* const panel = weights + v * plan.stride() + begin * width;
      // While the tiles multiply this part of the weights, they prefetch the next.
      (width > kLanes<A> ? two : one)(
          {memory.rows, memory.at, part.runs, 0, part.length}, panel,
          panel + (terms + terms * tile / tiles) * width, CeilDivide(width, tiles), add,
          to, v * kLanes<A>);
    }
  }
}

// Sets the sums of the pixels in a block to zero.
template <typename A>
void SetZero(const Block& block, int64_t width, const PixelView<A>& sums) {
  for (int64_t n = 0; n < block.samples; ++n) {
    for (int64_t y = block.y_begin; y < block.y_end; ++y) {
      for (int64_t x = block.x_begin; x < block.x_end; ++x) {
        std::memset(sums.At(n, y, x), 0, width * sizeof(A));
      }
    }
  }
}

// Computes the sums of the pixels in a block, all inside or all outside.
template <typename T, typename A, bool kGradient>
void AddBlock(const ColumnsPlan<A, kGradient>& plan, const Block& block, bool is_inside,
              const T* from, const A* weights, int64_t vectors,
              const TaskScratch<A>& memory, const PixelView<A>& sums) {
  const Runs& runs = is_inside ? plan.inside : plan.outside;
  bool add = !is_inside || runs.length == 0;
  if (add) SetZero(block, vectors * kLanes<A>, sums);
  for (int64_t run = 0; run < runs.count; run += runs.together) {
    const int64_t count = Min(runs.together, runs.count - run);
    for (int64_t term = 0; term < runs.length; term += runs.part, add = true) {
      AddPart(plan, block, runs, {run, count, term, Min(runs.part, runs.length - term)},
              add, from, weights, vectors, memory, sums);
    }
  }
}

// Computes a group of column vectors for a block of pixels: one task.
template <typename T, bool kGradient>
void RunColumns(const Problem& p, int64_t task, const T* from, const void* workspace,
                T* to, void* scratch) {
  using A = Accumulator<T>;
  const ColumnsPlan<A, kGradient> plan(p);
  const Block block = plan.blocks.At(task / plan.groups);
  const int64_t first = task % plan.groups * plan.group;
  const int64_t vectors = Min(plan.group, plan.vectors - first);
  const int64_t width = vectors * kLanes<A>, column = first * kLanes<A>;
  const TaskScratch<A> memory = CarveScratch<T>(plan, scratch);
  const A* const weights = static_cast<const A*>(workspace) + first * plan.stride();
  const int64_t row = plan.to.width * plan.columns, sample = plan.to.height * row;
  T* const image = to + block.sample * sample + column;
  PixelView<A> sums;
  bool in_place = false;
  if constexpr (std::is_same_v<T, A>) {
    in_place = plan.in_place();
    if (in_place) sums = {image, sample, row, plan.columns};
  }
  if (!in_place) {
    const int64_t columns = block.x_end - block.x_begin;
    const int64_t rows = block.y_end - block.y_begin;
    sums = {memory.sums, rows * columns * width, columns * width, width};
    sums.first -= block.y_begin * sums.row + block.x_begin * sums.pixel;
  }
  ForParts(block, plan.y_inside, plan.x_inside, [&](const Block& part, bool is_inside) {
    AddBlock(plan, part, is_inside, from, weights, vectors, memory, sums);
  });
  if (in_place) return;
  const int64_t used = Min(width, plan.columns - column);
  for (int64_t n = 0; n < block.samples; ++n) {
    for (int64_t y = block.y_begin; y < block.y_end; ++y) {
      for (int64_t x = block.x_begin; x < block.x_end; ++x) {
        T* const pixel = image + n * sample + y * row + x * plan.columns;
        const A* const sum = sums.At(n, y, x);
        for (int64_t k = 0; k < used; ++k) Narrow(sum[k], pixel + k);
      }
    }
  }
}

}  // namespace capsops::capsule_conv::CAPSOPS_ISA
