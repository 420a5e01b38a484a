// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The gradient of the weights of poses of one row: a sum over pixels of outer products
// of what a tap reads with grad. Lanes are columns of grad. A task has some rows and
// columns of the result, and adds up a chunk of the pixels; the sums of all chunks are
// added last, in order.
#ifndef CAPSOPS_CC_CPU_CAPSULE_CONV_OUTER_H_
#define CAPSOPS_CC_CPU_CAPSULE_CONV_OUTER_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/cpu/capsule_conv_axis.h"
#include "cc/cpu/capsule_conv_blocks.h"
#include "cc/cpu/column_tile.h"

namespace capsops::capsule_conv::CAPSOPS_ISA {

constexpr int64_t kOuterRows = 1024;       // of a task, at most
constexpr int64_t kReduceColumns = 64;     // that `reduce` adds up at a time
constexpr int64_t kReduceRows = 64;        // of a task of `reduce`
constexpr int64_t kChunkBytes = 32 << 20;  // of the sums of all chunks

template <typename A>
struct OuterPlan {
  explicit OuterPlan(const Problem& problem)
      : p(problem),
        channels(p.in_channels * p.pose_inner),
        columns(p.out_channels * p.pose_columns),
        vectors(CeilDivide(columns, kLanes<A>)),
        taps(p.kernel_height * p.kernel_width),
        blocks(1, 1, 1, 1) {
    const bool together =
        p.dilation_width == 1 && p.kernel_width * channels <= kOuterRows;
    run_taps = together ? p.kernel_width : 1;
    runs = taps / run_taps;
    length = run_taps * channels;
    rows = taps * channels;
    pieces = CeilDivide(length, kOuterRows);
    piece = CeilDivide(length, pieces);
    task_runs = Max(Min(kOuterRows / length, runs), 1);
    group = Min(vectors, kGroupVectors);
    groups = CeilDivide(vectors, group);
    parts = CeilDivide(runs, task_runs) * pieces * groups;
    const int64_t pixels = p.batch * p.out_height * p.out_width;
    blocks = Blocks(p.batch, p.out_height, p.out_width, TermsOfPart(pixels));
    chunks =
        Min(CeilDivide(kTasks, parts), pixels * rows * columns / (parts * kTaskWork));
    chunks = Min(chunks, kChunkBytes / (sums() * int64_t{sizeof(A)}));
    chunks = Max(Min(chunks, blocks.count()), 1);
  }

  // Returns whether the gradient, if it is of type A, holds sums as the only chunk
  // does.
  bool in_place() const {
    return chunks == 1 && columns % kLanes<A> == 0 &&
           (p.pose_inner == 1 || p.out_channels == 1);
  }
  // Returns how many sums a chunk has, as [tap, channel][vector][lane].
  int64_t sums() const { return rows * vectors * kLanes<A>; }

  const Problem& p;
  int64_t channels, columns;  // of a pixel of the input, and of grad
  int64_t vectors, taps;
  int64_t run_taps, runs;         // taps that lie side by side, and how many such runs
  int64_t length, rows;           // rows of the result, of a run and of all
  int64_t pieces = 0, piece = 0;  // of a run, and rows of a piece
  int64_t task_runs = 0;          // runs of a task
  int64_t group = 0, groups = 0;  // vectors of a group, and groups of vectors
  int64_t parts = 0;              // in which tasks divide the result
  int64_t chunks = 0;             // in which tasks divide the pixels
  Blocks blocks;
};

template <typename T>
Division DivideOuter(const Problem& p) {
  using A = Accumulator<T>;
  const OuterPlan<A> plan(p);
  const int64_t pixels = plan.blocks.most();
  Division d;
  d.fits = p.pose_rows == 1 && p.pose_depth == 1 &&
           plan.vectors * kLanes<A> <= 2 * plan.columns;
  d.in_place = std::is_same_v<T, A> && plan.in_place();
  d.workspace = plan.chunks * plan.sums() * sizeof(A);
  const int64_t wide = std::is_same_v<T, A> ? 0 : plan.piece;
  d.scratch =
      pixels * ((plan.group * kLanes<A> + wide) * sizeof(A) + 2 * sizeof(const A*));
  d.tasks = plan.chunks * plan.parts;
  d.weights_tasks = plan.taps * CeilDivide(plan.channels, kReduceRows);
  return d;
}

// A task's memory, beside the sums.
template <typename A>
struct OuterMemory {
  A* grad;          // [pixel of a block][vector][lane]
  const A** left;   // of each pair of pixels, the rows' numbers
  const A** right;  // and its vectors
  A* wide;          // what `left` points to, where images are not of type A
};

// Adds to `rows` rows of the result, from row `row` of a tap on, what the pixels in
// `part` of a block contribute.
template <typename T, typename A>
void AddTap(const OuterPlan<A>& plan, const Block& block, const Block& part,
            int64_t tap, int64_t row, int64_t rows, int64_t vectors, const T* input,
            const OuterMemory<A>& memory, A* sums) {
  const Problem& p = plan.p;
  A* wide = memory.wide;
  Pairs pairs = Pairs::Of<false>(p, tap, part);
  for (int64_t i = 0; i < pairs.count; ++i, pairs.Next()) {
    const int64_t y = (block.sample + pairs.sample) * p.in_height + pairs.FromY();
    const T* const from =
        input + (y * p.in_width + pairs.FromX()) * plan.channels + row;
    if constexpr (std::is_same_v<T, A>) {
      memory.left[i] = from;
    } else {
      for (int64_t k = 0; k < rows; ++k) wide[k] = Widen(from[k]);
      memory.left[i] = wide;
      wide += rows;
    }
    memory.right[i] =
        memory.grad +
        block.PlaceOf(pairs.sample, pairs.ToY(), pairs.ToX()) * vectors * kLanes<A>;
  }
  sums += (tap * plan.channels + row) * plan.vectors * kLanes<A>;
  const int64_t tiles = CeilDivide(rows, kTileRows);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t first = PartBegin(rows, tile, tiles);
    const int64_t count = PartBegin(rows, tile + 1, tiles) - first;
    const AddOuterFunction<A> two = AddOuterOf<A, 2>(count);
    const AddOuterFunction<A> one = AddOuterOf<A, 1>(count);
    for (int64_t v = 0; v < vectors; v += 2) {
      (v + 1 < vectors ? two : one)(
          memory.left, memory.right, first, v * kLanes<A>, pairs.count,
          sums + (first * plan.vectors + v) * kLanes<A>, plan.vectors * kLanes<A>);
    }
  }
}

// Computes the sums of one chunk for some rows and columns of the result.
template <typename T>
void RunOuter(const Problem& p, int64_t task, const T* input, const T* grad,
              void* workspace, void* scratch) {
  using A = Accumulator<T>;
  const OuterPlan<A> plan(p);
  const int64_t chunk = task / plan.parts;
  const int64_t first = task % plan.groups * plan.group;
  const int64_t vectors = Min(plan.group, plan.vectors - first);
  task = task % plan.parts / plan.groups;
  const int64_t row = task % plan.pieces * plan.piece;
  const int64_t rows = Min(plan.piece, plan.length - row);
  const int64_t run = task / plan.pieces * plan.task_runs;
  const int64_t end_run = Min(run + plan.task_runs, plan.runs);
  const int64_t pixels = plan.blocks.most();
  const Range y_inside = InsideOf<false>(Vertical(p));
  const Range x_inside = InsideOf<false>(Horizontal(p));
  OuterMemory<A> memory;
  memory.grad = static_cast<A*>(scratch);
  memory.left =
      reinterpret_cast<const A**>(memory.grad + pixels * plan.group * kLanes<A>);
  memory.right = memory.left + pixels;
  memory.wide = reinterpret_cast<A*>(memory.right + pixels);
  A* const sums = static_cast<A*>(workspace) + chunk * plan.sums() + first * kLanes<A>;
  for (int64_t r = run; r < end_run; ++r) {
    for (int64_t n = r * plan.length + row; n < r * plan.length + row + rows; ++n) {
      std::memset(sums + n * plan.vectors * kLanes<A>, 0, vectors * kVectorBytes);
    }
  }
  const int64_t end = PartBegin(plan.blocks.count(), chunk + 1, plan.chunks);
  for (int64_t n = PartBegin(plan.blocks.count(), chunk, plan.chunks); n < end; ++n) {
    const Block block = plan.blocks.At(n);
    const int64_t width = vectors * kLanes<A>, column = first * kLanes<A>;
    CopyPixels(block, OutputImage(p), plan.columns, column,
               Min(width, plan.columns - column), width, grad, memory.grad);
    ForParts(block, y_inside, x_inside, [&](const Block& part, bool inside) {
      // Inside, what a row of taps reads lies side by side in memory.
      const int64_t taps = inside ? 1 : plan.run_taps;
      for (int64_t tap = run * taps; tap < end_run * taps; ++tap) {
        AddTap(plan, block, part, tap * plan.run_taps / taps, row, rows / taps, vectors,
               input, memory, sums);
      }
    });
  }
}

// Adds up the sums of all chunks and writes them to the gradient of a tap's weights. A
// task has kReduceRows rows.
template <typename T>
void ReduceOuter(const Problem& p, int64_t task, const void* workspace,
                 T* grad_weights) {
  using A = Accumulator<T>;
  const OuterPlan<A> plan(p);
  const int64_t parts = CeilDivide(plan.channels, kReduceRows);
  const int64_t tap = task / parts, begin = task % parts * kReduceRows;
  const int64_t end = Min(begin + kReduceRows, plan.channels);
  // Neighbouring columns of the result lie in stretches of the weights.
  const bool adjacent = p.pose_inner == 1;
  const int64_t stretch = adjacent ? plan.columns : p.pose_columns;
  const int64_t width = plan.vectors * kLanes<A>;
  for (int64_t row = begin; row < end; ++row) {
    const A* const from =
        static_cast<const A*>(workspace) + (tap * plan.channels + row) * width;
    T* const to = grad_weights + (row / p.pose_inner * p.out_channels * p.pose_inner +
                                  row % p.pose_inner) *
                                     p.pose_columns;
    for (int64_t first = 0; first < plan.columns; first += kReduceColumns) {
      A sums[kReduceColumns] = {};
      const int64_t count = Min(kReduceColumns, width - first);
      for (int64_t chunk = 0; chunk < plan.chunks; ++chunk) {
        const A* const part = from + chunk * plan.sums() + first;
        for (int64_t n = 0; n < count; n += kLanes<A>) {
          Store(sums + n, Load(sums + n) + Load(part + n));
        }
      }
      const int64_t end_column = Min(first + kReduceColumns, plan.columns);
      for (int64_t column = first; column < end_column;) {
        const int64_t o = column / stretch, end = Min((o + 1) * stretch, end_column);
        T* const place = to + o * stretch * p.pose_inner - o * stretch;
        for (; column < end; ++column) Narrow(sums[column - first], place + column);
      }
    }
  }
}

}  // namespace capsops::capsule_conv::CAPSOPS_ISA

#endif  // CAPSOPS_CC_CPU_CAPSULE_CONV_OUTER_H_
