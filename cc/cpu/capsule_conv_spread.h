// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Input gradient for poses of one row, if a pixel of the input has too few elements to
// fill the lanes. Lanes are the columns of all taps: a matrix product computes the
// contribution of each pixel of grad to every element that its window reads, and these
// products are then added to the image. A row of taps reads contiguous elements, so
// whole vectors are added.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/cpu/capsule_conv_axis.h"
#include "cc/cpu/capsule_conv_blocks.h"
#include "cc/cpu/capsule_conv_copy.h"
#include "cc/cpu/column_tile.h"
#include "cc/cpu/lanes.h"
#include "cc/cpu/register_tile.h"

namespace capsops::capsule_conv::CAPSOPS_ISA {

constexpr int64_t kSpreadChannels = 16;      // fewest channels of grad
constexpr int64_t kSpreadPixels = 512;       // most pixels of grad per block
constexpr int64_t kSpreadBytes = 256 << 10;  // bytes of grad per block
constexpr int64_t kSpreadAcross = 32;        // widest block, in pixels of grad
constexpr int64_t kSpreadTaskPixels = 128;   // fewest pixels of grad per task

// A task computes some rows of the images of some samples. It multiplies all pixels of
// grad whose windows read these rows, block by block.
template <typename A>
struct SpreadPlan {
  explicit SpreadPlan(const Problem& problem)
      : p(problem),
        channels(p.out_channels * p.pose_columns),
        columns(p.in_channels * p.pose_inner),
        taps(p.kernel_height * p.kernel_width),
        vectors(CeilDivide(taps * columns, kLanes<A>)) {
    const int64_t right = (p.out_width - 1) * p.stride_width - p.pad_left +
                          (p.kernel_width - 1) * p.dilation_width;
    left = Max(p.pad_left, 0);
    width = left + Max(p.in_width, right + 1);
    const int64_t pixels = p.out_height * p.out_width;
    const int64_t samples = Min(Max(kSpreadTaskPixels / pixels, 1), p.batch);
    sample_parts = CeilDivide(p.batch, samples);
    // Rows of grad that two tasks read are multiplied twice, so tasks have many rows.
    const int64_t again = (p.kernel_height - 1) * p.dilation_height;
    const int64_t bytes = samples * p.in_height * width * columns * sizeof(A);
    y_parts = Min(Max(CeilDivide(kTasks, sample_parts), bytes / kBlockBytes),
                  samples * pixels * channels * taps * columns / kTaskWork);
    y_parts = Max(Min(y_parts, p.in_height / Max(6 * again, 1)), 1);
    rows = CeilDivide(p.in_height, y_parts);
    const int64_t fit = kSpreadBytes / (channels * int64_t{sizeof(A)});
    block = Min(kSpreadPixels, Max(fit, kTileRows));
    part = CeilDivide(channels, CeilDivide(channels, TermsOfPart(taps * channels)));
    run = (p.dilation_width == 1 ? p.kernel_width : 1) * columns;
  }

  // Return the number of elements of a task's sums and of a block's products.
  int64_t sums() const {
    return CeilDivide(p.batch, sample_parts) * rows * width * columns + kLanes<A>;
  }
  int64_t products() const { return (2 * block + 1) * kLanes<A>; }
  int64_t tasks() const { return sample_parts * y_parts; }

  const Problem& p;
  int64_t channels, columns;  // elements of a pixel of grad, and of one of the input
  int64_t taps, vectors;      // vectors that hold the columns of all taps
  int64_t sample_parts, y_parts;  // division of the images into tasks
  int64_t rows;                   // most rows per task
  int64_t block;                  // most pixels per block
  int64_t part;                   // channels per partial sum
  int64_t left, width;  // pixels of a row of sums: padding on the left, and in total
  int64_t run = 0;      // columns that are contiguous in the image
};

template <typename T>
Division DivideSpread(const Problem& p) {
  using A = Accumulator<T>;
  const SpreadPlan<A> plan(p);
  Division d;
  // The kernels over planes compute at least kFewColumns columns for each tap.
  d.fits = p.pose_rows == 1 && p.pose_depth == 1 && plan.channels >= kSpreadChannels &&
           plan.vectors * kLanes<A> < plan.taps * RoundUp(plan.columns, kFewColumns);
  const int64_t wide = std::is_same_v<T, A> ? 0 : plan.block * plan.channels;
  d.workspace = plan.vectors * plan.channels * kVectorBytes;
  d.scratch = (plan.sums() + plan.products() + wide) * sizeof(A);
  d.tasks = plan.tasks();
  d.weights_tasks = plan.taps;
  return d;
}

// Packs a tap's weights as [panel][channel][lane], where lanes are the columns of all
// taps. The last panel may be half as wide.
template <typename T>
void PackSpread(const Problem& p, int64_t tap, const T* weights, void* workspace) {
  using A = Accumulator<T>;
  constexpr int64_t kPanel = 2 * kLanes<A>;
  const SpreadPlan<A> plan(p);
  const int64_t last = plan.vectors * kLanes<A>;
  const int64_t end = tap + 1 < plan.taps ? (tap + 1) * plan.columns : last;
  for (int64_t lane = tap * plan.columns; lane < end; ++lane) {
    const int64_t panel = lane / kPanel * kPanel, size = Min(last - panel, kPanel);
    A* to = static_cast<A*>(workspace) + panel * plan.channels + lane % kPanel;
    const int64_t column = lane - tap * plan.columns;
    for (int64_t k = 0; k < plan.channels; ++k, to += size) {
      const int64_t capsule =
          column / p.pose_inner * p.out_channels + k / p.pose_columns;
      const int64_t row = capsule * p.pose_inner + column % p.pose_inner;
      *to = column < plan.columns
                ? Widen(weights[row * p.pose_columns + k % p.pose_columns])
                : A{0};
    }
  }
}

// Returns the pixels of a block of grad, copied and converted if grad is not of type A.
template <typename T, typename A>
PixelView<const A> ViewGrad(const SpreadPlan<A>& plan, const Block& block,
                            const T* grad, A* copy) {
  const Problem& p = plan.p;
  if constexpr (std::is_same_v<T, A>) {
    const int64_t row = p.out_width * plan.channels, sample = p.out_height * row;
    return {grad + block.sample * sample + block.y_begin * row +
                block.x_begin * plan.channels,
            sample, row, plan.channels};
  } else {
    CopyPixels(p, OutputImage(p), block, 0, plan.channels, plan.channels, grad, copy);
    const int64_t row = (block.x_end - block.x_begin) * plan.channels;
    return {copy, (block.y_end - block.y_begin) * row, row, plan.channels};
  }
}

// Multiplies a block's pixels by one panel of weights, into products [pixel][lane].
template <typename A, int V>
void MultiplyBlock(const SpreadPlan<A>& plan, const Block& block,
                   const PixelView<const A>& grad, const A* panel, A* products) {
  const int64_t height = block.y_end - block.y_begin;
  const int64_t width = block.x_end - block.x_begin;
  const int64_t tiles = CeilDivide(block.pixels(), kTileRows);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t begin = PartBegin(block.pixels(), tile, tiles);
    const int64_t end = PartBegin(block.pixels(), tile + 1, tiles);
    const A* from[kTileRows];
    A* to[kTileRows];
    for (int64_t n = begin; n < end; ++n) {
      from[n - begin] = grad.At(n / width / height, n / width % height, n % width);
      to[n - begin] = products + n * V * kLanes<A>;
    }
    const AddRowsFunction<A> add_rows = AddRowsOf<A, V>(end - begin);
    const int64_t at = 0;
    for (int64_t k = 0; k < plan.channels; k += plan.part) {
      const A* const weights = panel + k * V * kLanes<A>;
      add_rows({from, &at, 1, k, Min(plan.part, plan.channels - k)}, weights, weights,
               0, k > 0, to, 0);
    }
  }
}

// Adds the products of a block, for V vectors of columns from column `first` on, to the
// input rows [y_begin, y_end) in `sums`, which begins with sample first_sample.
template <typename A, int V>
void AddProducts(const SpreadPlan<A>& plan, const Block& block, int64_t first,
                 const A* products, int64_t first_sample, int64_t y_begin,
                 int64_t y_end, A* sums) {
  const Problem& p = plan.p;
  const int64_t height = block.y_end - block.y_begin;
  const int64_t width = block.x_end - block.x_begin;
  const int64_t line = plan.width * plan.columns;
  const int64_t apart = CeilDivide(kLanes<A>, p.stride_width * plan.columns);
  const int64_t end = Min(first + V * kLanes<A>, plan.taps * plan.columns);
  for (int64_t column = first; column < end;) {
    const int64_t tap = column / plan.columns, x = tap % p.kernel_width;
    const int64_t count =
        Min(Min(plan.run - column % plan.run, end - column), kLanes<A>);
    const TapSpan rows =
        TapSpanOf<true>(Vertical(p), tap / p.kernel_width, y_begin, y_end);
    const int64_t begin_row = Max(rows.from, block.y_begin);
    const int64_t end_row = Min(rows.from + rows.count, block.y_end);
    const Vector<Integer<A>> mask =
        (Vector<Integer<A>>)KeepLanes<A>(count, (Vector<A>)~Vector<Integer<A>>{});
    const int64_t first_row =
        rows.to + (begin_row - rows.from) * rows.to_step - y_begin;
    const int64_t offset =
        (plan.left - p.pad_left + x * p.dilation_width) * plan.columns +
        column % plan.columns;
    for (int64_t n = 0; n < block.samples; ++n) {
      const int64_t sample = block.sample + n - first_sample;
      // The windows of neighboring pixels overlap, and loading a vector that is still
      // being stored stalls. So consecutive iterations use vectors that do not overlap.
      for (int64_t first_x = 0; first_x < apart; ++first_x) {
        for (int64_t i = first_x; i < width; i += apart) {
          A* to = sums + (sample * plan.rows + first_row) * line + offset +
                  (block.x_begin + i) * p.stride_width * plan.columns;
          const A* from =
              products + column - first +
              ((n * height + begin_row - block.y_begin) * width + i) * V * kLanes<A>;
          for (int64_t y = begin_row; y < end_row; ++y) {
            const Vector<A> kept = (Vector<A>)((Vector<Integer<A>>)Load(from) & mask);
            Store(to, Load(to) + kept);
            to += rows.to_step * line;
            from += width * V * kLanes<A>;
          }
        }
      }
    }
    column += count;
  }
}

// Computes some rows of the input gradient of some samples: one task.
template <typename T>
void RunSpread(const Problem& p, int64_t task, const T* grad, const void* workspace,
               T* to, void* scratch) {
  using A = Accumulator<T>;
  const SpreadPlan<A> plan(p);
  const int64_t sample_part = task / plan.y_parts, y_part = task % plan.y_parts;
  const int64_t sample = PartBegin(p.batch, sample_part, plan.sample_parts);
  const int64_t samples =
      PartBegin(p.batch, sample_part + 1, plan.sample_parts) - sample;
  const int64_t y_begin = PartBegin(p.in_height, y_part, plan.y_parts);
  const int64_t y_end = PartBegin(p.in_height, y_part + 1, plan.y_parts);
  A* const sums = static_cast<A*>(scratch);
  A* const products = sums + plan.sums();
  A* const copy = products + plan.products();
  std::memset(sums, 0, plan.sums() * sizeof(A));

  // Find the rows of grad whose windows read rows of this task.
  int64_t begin = p.out_height, end = 0;
  for (int64_t tap = 0; tap < p.kernel_height; ++tap) {
    const TapSpan rows = TapSpanOf<true>(Vertical(p), tap, y_begin, y_end);
    if (rows.count == 0) continue;
    begin = Min(begin, rows.from);
    end = Max(end, rows.from + rows.count);
  }
  if (begin < end) {
    const Blocks blocks(samples, end - begin, p.out_width, plan.block,
                        Min(plan.block, kSpreadAcross));
    const A* const packed = static_cast<const A*>(workspace);
    for (int64_t n = 0; n < blocks.count(); ++n) {
      Block block = blocks.At(n);
      block.sample += sample;
      block.y_begin += begin;
      block.y_end += begin;
      const PixelView<const A> places = ViewGrad(plan, block, grad, copy);
      for (int64_t v = 0; v < plan.vectors; v += 2) {
        const A* const panel = packed + v * kLanes<A> * plan.channels;
        const int64_t first = v * kLanes<A>;
        if (v + 1 < plan.vectors) {
          MultiplyBlock<A, 2>(plan, block, places, panel, products);
          AddProducts<A, 2>(plan, block, first, products, sample, y_begin, y_end, sums);
        } else {
          MultiplyBlock<A, 1>(plan, block, places, panel, products);
          AddProducts<A, 1>(plan, block, first, products, sample, y_begin, y_end, sums);
        }
      }
    }
  }
  const int64_t line = p.in_width * plan.columns;
  for (int64_t n = 0; n < samples; ++n) {
    for (int64_t y = y_begin; y < y_end; ++y) {
      const A* const from =
          sums +
          ((n * plan.rows + y - y_begin) * plan.width + plan.left) * plan.columns;
      T* const row = to + ((sample + n) * p.in_height + y) * line;
      for (int64_t k = 0; k < line; ++k) Narrow(from[k], row + k);
    }
  }
}

}  // namespace capsops::capsule_conv::CAPSOPS_ISA
