// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Weight gradient of the family `columns` (capsule_conv.h): a sum, over pixels and pose
// rows, of outer products of the input elements that a tap reads with elements of grad.
// Rows of the result are (tap, channel, pose inner). Lanes are its columns, which are
// elements of grad. A task computes some rows and columns for one chunk of the pixels,
// block by block. Another step adds the sums of all chunks in a fixed order.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/cpu/capsule_conv_axis.h"
#include "cc/cpu/capsule_conv_blocks.h"
#include "cc/cpu/capsule_conv_copy.h"
#include "cc/cpu/column_tile.h"

namespace capsops::capsule_conv::CAPSOPS_ISA {

constexpr int64_t kOuterRows = 1024;  // most rows per task
constexpr int64_t kPanelRows = 12;    // whole tiles of 12 or 6 rows
constexpr int64_t kFewRows = 64;  // fewest rows of a tap per task, if poses are copied
constexpr int64_t kReduceColumns = 64;     // columns that `reduce` adds at a time
constexpr int64_t kReduceRows = 64;        // rows per task of `reduce`
constexpr int64_t kChunkBytes = 32 << 20;  // bytes of the sums of all chunks, at most

// The division into tasks. Neighboring taps that read contiguous elements form a run;
// a run is divided into pieces of rows, and the columns into groups of vectors.
template <typename A>
struct OuterPlan {
  explicit OuterPlan(const Problem& problem)
      : p(problem),
        channels(p.in_channels * p.pose_inner),
        columns(p.out_channels * p.pose_columns),
        vectors(CeilDivide(columns, kLanes<A>)),
        taps(p.kernel_height * p.kernel_width),
        blocks(1, 1, 1, 1) {
    const bool rows_lie_together = p.pose_rows == 1 && p.dilation_width == 1;
    const bool together = rows_lie_together && p.kernel_width * channels <= kOuterRows;
    run_taps = together ? p.kernel_width : 1;
    runs = taps / run_taps;
    length = run_taps * channels;
    rows = taps * channels;
    // Each element that a task copies should be used in many products.
    const int64_t most =
        p.pose_rows == 1 ? kOuterRows : Max(kOuterRows / taps, kFewRows);
    piece = RoundUp(CeilDivide(length, CeilDivide(length, most)), 4);
    pieces = CeilDivide(length, piece);
    panel = p.pose_rows == 1 ? piece : kPanelRows;
    task_runs = Max(Min(kOuterRows / piece, runs), 1);
    task_runs = CeilDivide(runs, CeilDivide(runs, task_runs));
    group = Min(vectors, p.pose_rows == 1 ? kGroupVectors : kGroupVectors / 2);
    groups = CeilDivide(vectors, group);
    parts = CeilDivide(runs, task_runs) * pieces * groups;
    const int64_t terms = p.batch * p.out_height * p.out_width * p.pose_rows;
    blocks = Blocks(p.batch, p.out_height, p.out_width,
                    Max(TermsOfPart(terms) / p.pose_rows, 1));
    chunks =
        Min(CeilDivide(kTasks, parts), terms * rows * columns / (parts * kTaskWork));
    chunks = Min(chunks, kChunkBytes / (sums() * int64_t{sizeof(A)}));
    chunks = Max(Min(chunks, blocks.count()), 1);
  }

  // Returns whether a gradient of type A can hold the sums of the only chunk.
  bool in_place() const {
    return chunks == 1 && columns % kLanes<A> == 0 &&
           (p.pose_inner == 1 || p.out_channels == 1);
  }
  // Returns the most elements of a pixel's pose row that a task reads.
  int64_t patch() const { return Min(piece, channels); }
  // Return how many panels `count` rows have, and the first row of a panel. Capsules of
  // four columns are not split.
  int64_t panels(int64_t count) const { return CeilDivide(count, panel); }
  int64_t panel_begin(int64_t index, int64_t count) const {
    const int64_t whole = count % 4 == 0 ? 4 : 1;
    return PartBegin(count / whole, index, panels(count)) * whole;
  }
  // Returns the number of sums of a chunk, laid out as [tap, channel][vector][lane].
  int64_t sums() const { return rows * vectors * kLanes<A>; }

  const Problem& p;
  int64_t channels, columns;  // elements of a pose row, in the input and in grad
  int64_t vectors, taps;
  int64_t run_taps, runs;         // contiguous taps of a run, and number of runs
  int64_t length, rows;           // rows of the result: of a run, and in total
  int64_t pieces = 0, piece = 0;  // pieces per run, and rows per piece
  int64_t panel = 0;              // most rows per panel
  int64_t task_runs = 0;          // runs per task
  int64_t group = 0, groups = 0;  // vectors per group, and number of groups
  int64_t parts = 0;              // tasks per chunk
  int64_t chunks = 0;             // chunks of pixels
  Blocks blocks;
};

// The input elements that a block's pixels read, in the image or in a copy laid out as
// [panel][sample][y][x][pose row][row of the panel]. Poses of one row have a single
// panel, in which the elements that a row of taps reads are contiguous.
template <typename A>
struct Read {
  const A* first;  // read by the block's first pixel and the first tap
  int64_t panel, sample, y, x, pose_row;  // strides in elements
  int64_t tap_y, tap_x;
};

// The scratch of a task.
template <typename A>
struct OuterScratch {
  A* grad;          // [pair of vectors][pixel of a block][pose row][lane]
  const A** left;   // left factors, one per pair of pixels and pose row
  const A** right;  // right factors, in the first panel of `grad`
  A* patch;         // copy of the elements that a block reads
  int64_t bytes;
};

// Returns whether the images can be read in place.
template <typename T>
bool IsInPlace(const Problem& p) {
  return std::is_same_v<T, Accumulator<T>> && p.pose_rows == 1;
}

// Lays out the scratch of a task. Without `scratch`, only computes its size.
template <typename T, typename A>
OuterScratch<A> CarveScratch(const OuterPlan<A>& plan, void* scratch = nullptr) {
  const Problem& p = plan.p;
  int64_t bytes = 0;
  const auto next = [&](int64_t count, int64_t size) {
    char* const place = static_cast<char*>(scratch) + bytes;
    bytes += RoundUp(count * size, 64);
    return place;
  };
  const Blocks& blocks = plan.blocks;
  const int64_t pairs = blocks.most() * p.pose_rows;
  const int64_t samples = CeilDivide(p.batch, blocks.samples);
  const Patch y(Vertical(p), 0, CeilDivide(p.out_height, blocks.rows));
  const Patch x(Horizontal(p), 0, CeilDivide(p.out_width, blocks.columns));
  const int64_t width = plan.panels(plan.patch()) * Min(plan.panel, plan.patch());
  const int64_t patch =
      IsInPlace<T>(p) ? 0 : samples * p.pose_rows * y.size * x.size * width;
  OuterScratch<A> memory;
  memory.grad =
      reinterpret_cast<A*>(next(pairs * RoundUp(plan.group, 2) * kLanes<A>, sizeof(A)));
  memory.left = reinterpret_cast<const A**>(next(pairs, sizeof(const A*)));
  memory.right = reinterpret_cast<const A**>(next(pairs, sizeof(const A*)));
  memory.patch = reinterpret_cast<A*>(next(patch, sizeof(A)));
  memory.bytes = bytes;
  return memory;
}

template <typename T>
Division DivideOuter(const Problem& p) {
  using A = Accumulator<T>;
  const OuterPlan<A> plan(p);
  const int64_t lanes = plan.vectors * kLanes<A>;
  Division d;
  // The kernels over planes leave no lanes idle if poses have several rows, and are
  // faster with short vectors.
  d.fits =
      p.pose_depth == 1 && (p.pose_rows == 1 ? lanes <= 2 * plan.columns
                                             : kVectorBytes > 16 && plan.vectors > 1 &&
                                                   7 * lanes <= 8 * plan.columns);
  if (!d.fits) return d;
  d.in_place = std::is_same_v<T, A> && plan.in_place();
  d.workspace = plan.chunks * plan.sums() * sizeof(A);
  d.scratch = CarveScratch<T>(plan).bytes;
  d.tasks = plan.chunks * plan.parts;
  d.weights_tasks = plan.taps * CeilDivide(plan.channels, kReduceRows);
  return d;
}

// Returns the elements that the pixels of a block read, `count` of each pose row from
// element `first` on: in the image if possible, and otherwise in `copy`.
template <typename T, typename A>
Read<A> ReadBlock(const OuterPlan<A>& plan, const Block& block, int64_t first,
                  int64_t count, const T* input, A* copy) {
  const Problem& p = plan.p;
  const Patch y(Vertical(p), block.y_begin, block.y_end);
  const Patch x(Horizontal(p), block.x_begin, block.x_end);
  const Image image = InputImage(p);
  const int64_t size = image.channels * CapsuleSize(p, image);
  if constexpr (std::is_same_v<T, A>) {
    if (IsInPlace<T>(p)) {
      const int64_t line = p.in_width * size, sample = p.in_height * line;
      return {
          input + block.sample * sample + y.Pixel(0) * line + x.Pixel(0) * size + first,
          0,
          sample,
          p.stride_height * line,
          p.stride_width * size,
          0,
          p.dilation_height * line,
          p.dilation_width * size};
    }
  }
  const int64_t width = Min(plan.panel, count), pixel = p.pose_rows * width;
  const int64_t line = x.size * pixel, sample = y.size * line;
  const int64_t panel = block.samples * sample;
  for (int64_t n = 0; n < block.samples; ++n) {
    for (int64_t i = 0; i < y.size; ++i) {
      const int64_t from_y = (block.sample + n) * p.in_height + y.Pixel(i);
      if (y.Pixel(i) < 0 || y.Pixel(i) >= p.in_height) continue;
      for (int64_t k = 0; k < plan.panels(count); ++k) {
        const int64_t begin = plan.panel_begin(k, count);
        const int64_t used = plan.panel_begin(k + 1, count) - begin;
        A* to = copy + k * panel + n * sample + i * line;
        for (int64_t j = 0; j < x.size; ++j, to += pixel) {
          if (x.Pixel(j) < 0 || x.Pixel(j) >= p.in_width) continue;
          CopyPose(input + (from_y * p.in_width + x.Pixel(j)) * size, p.pose_rows,
                   image.columns, first + begin, used, to, width);
        }
      }
    }
  }
  return {copy,
          panel,
          sample,
          y.step * line,
          x.step * pixel,
          width,
          p.dilation_height * line,
          p.dilation_width * pixel};
}

// Stores pointers to both operands of each pair of an input pixel and a pixel of grad
// that a tap connects, with the pixel of grad in `part` of a block. Each pose row is a
// pair. Returns the number of pairs.
template <typename A>
int64_t FindPairs(const Problem& p, const Block& block, const Block& part, int64_t tap,
                  const Read<A>& read, const OuterScratch<A>& memory) {
  const int64_t i = tap / p.kernel_width, j = tap % p.kernel_width;
  const TapSpan y = TapSpanOf<false>(Vertical(p), i, part.y_begin, part.y_end);
  const TapSpan x = TapSpanOf<false>(Horizontal(p), j, part.x_begin, part.x_end);
  int64_t count = 0;
  for (int64_t n = 0; n < part.samples; ++n) {
    for (int64_t to_y = y.to; to_y < y.to + y.count; ++to_y) {
      const A* left = read.first + n * read.sample + (to_y - block.y_begin) * read.y +
                      (x.to - block.x_begin) * read.x + i * read.tap_y + j * read.tap_x;
      const A* right =
          memory.grad + block.IndexOf(n, to_y, x.to) * p.pose_rows * 2 * kLanes<A>;
      for (int64_t k = 0; k < x.count; ++k, left += read.x) {
        for (int64_t row = 0; row < p.pose_rows; ++row, ++count) {
          memory.left[count] = left + row * read.pose_row;
          memory.right[count] = right;
          right += 2 * kLanes<A>;
        }
      }
    }
  }
  return count;
}

// Adds the outer products of `count` pairs to `rows` rows of the result, from row `row`
// of a tap on, or sets the rows to them, for each `step`-th tap from first_tap on. The
// pairs belong to first_tap; for other taps the left factors are offset.
template <typename A>
void AddTaps(const OuterPlan<A>& plan, int64_t first_tap, int64_t end_tap, int64_t step,
             int64_t count, int64_t row, int64_t rows, int64_t vectors,
             const Read<A>& read, const OuterScratch<A>& memory, int64_t grad_panel,
             bool add, A* sums) {
  const Problem& p = plan.p;
  const int64_t width = plan.vectors * kLanes<A>;
  const int64_t y = first_tap / p.kernel_width, x = first_tap % p.kernel_width;
  for (int64_t panel = 0; panel < plan.panels(rows); ++panel) {
    const int64_t begin = plan.panel_begin(panel, rows);
    const int64_t size = plan.panel_begin(panel + 1, rows) - begin;
    const int64_t tiles = CeilDivide(size, kTileRows);
    for (int64_t tap = first_tap; tap < end_tap; tap += step) {
      const int64_t offset = panel * read.panel +
                             (tap / p.kernel_width - y) * read.tap_y +
                             (tap % p.kernel_width - x) * read.tap_x;
      A* const to = sums + (tap * plan.channels + row + begin) * width;
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t first = PartBegin(size, tile, tiles);
        const int64_t height = PartBegin(size, tile + 1, tiles) - first;
        const AddOuterFunction<A> two = AddOuterOf<A, 2>(height);
        const AddOuterFunction<A> one = AddOuterOf<A, 1>(height);
        for (int64_t v = 0; v < vectors; v += 2) {
          (v + 1 < vectors ? two : one)(memory.left, memory.right, offset + first,
                                        v / 2 * grad_panel, count, add,
                                        to + first * width + v * kLanes<A>, width);
        }
      }
    }
  }
}

// Computes some rows and columns of the sums of one chunk: one task.
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
  const Range y_inside = InsideOf<false>(Vertical(p));
  const Range x_inside = InsideOf<false>(Horizontal(p));
  const OuterScratch<A> memory = CarveScratch<T>(plan, scratch);
  A* const sums = static_cast<A*>(workspace) + chunk * plan.sums() + first * kLanes<A>;
  const int64_t end = PartBegin(plan.blocks.count(), chunk + 1, plan.chunks);
  const int64_t begin = PartBegin(plan.blocks.count(), chunk, plan.chunks);
  for (int64_t index = begin; index < end; ++index) {
    const Block block = plan.blocks.At(index);
    const int64_t column = first * kLanes<A>;
    CopyPixels(p, OutputImage(p), block, column,
               Min(vectors * kLanes<A>, plan.columns - column), 2 * kLanes<A>, grad,
               memory.grad);
    const int64_t grad_panel = block.pixels() * p.pose_rows * 2 * kLanes<A>;
    const Read<A> read =
        ReadBlock(plan, block, row, Min(rows, plan.channels), input, memory.patch);
    // The first block sets the sums, if all taps of its pixels read inside the image.
    const bool add = index > begin || block.y_begin < y_inside.begin ||
                     block.y_end > y_inside.end || block.x_begin < x_inside.begin ||
                     block.x_end > x_inside.end;
    for (int64_t r = run; add && index == begin && r < end_run; ++r) {
      for (int64_t n = r * plan.length + row; n < r * plan.length + row + rows; ++n) {
        std::memset(sums + n * plan.vectors * kLanes<A>, 0, vectors * kVectorBytes);
      }
    }
    ForParts(block, y_inside, x_inside, [&](const Block& part, bool inside) {
      const int64_t first_tap = run * plan.run_taps, end_tap = end_run * plan.run_taps;
      if (inside) {
        // All taps read inside the image, so the pairs of different taps differ only by
        // an offset, and a run of taps reads contiguous elements.
        const int64_t count = FindPairs(p, block, part, first_tap, read, memory);
        AddTaps(plan, first_tap, end_tap, plan.run_taps, count, row, rows, vectors,
                read, memory, grad_panel, add, sums);
        return;
      }
      for (int64_t tap = first_tap; tap < end_tap; ++tap) {
        const int64_t count = FindPairs(p, block, part, tap, read, memory);
        AddTaps(plan, tap, tap + 1, 1, count, row, rows / plan.run_taps, vectors, read,
                memory, grad_panel, add, sums);
      }
    });
  }
}

// Adds the sums of all chunks and writes them to the gradient of a tap's weights. A
// task has kReduceRows rows.
template <typename T>
void ReduceOuter(const Problem& p, int64_t task, const void* workspace,
                 T* grad_weights) {
  using A = Accumulator<T>;
  const OuterPlan<A> plan(p);
  const int64_t parts = CeilDivide(plan.channels, kReduceRows);
  const int64_t tap = task / parts, begin = task % parts * kReduceRows;
  const int64_t end = Min(begin + kReduceRows, plan.channels);
  // Number of neighboring columns of the result that are contiguous in the weights.
  const bool adjacent = p.pose_inner == 1;
  const int64_t contiguous = adjacent ? plan.columns : p.pose_columns;
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
        const int64_t o = column / contiguous,
                      end = Min((o + 1) * contiguous, end_column);
        T* const place = to + o * contiguous * p.pose_inner - o * contiguous;
        for (; column < end; ++column) Narrow(sums[column - first], place + column);
      }
    }
  }
}

}  // namespace capsops::capsule_conv::CAPSOPS_ISA
