// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Weight gradient of the family `planes` (capsule_conv.h): inner products of planes of
// the input with planes of grad, over the lanes of all pixels. Pixels are divided into
// chunks, and chunks into blocks whose planes fit in the L2 cache. A task computes one
// chunk for some input channels, and adds block after block to the chunk's array of
// sums. Another step adds the arrays of all chunks in a fixed order.
#pragma once

#include <cstdint>
#include <cstring>

#include "cc/cpu/capsule_conv_axis.h"
#include "cc/cpu/capsule_conv_blocks.h"
#include "cc/cpu/capsule_conv_strip.h"
#include "cc/cpu/register_tile.h"

namespace capsops::capsule_conv::CAPSOPS_ISA {

// The planes of a block fit into the L2 cache, and the planes of a tile into the L1.
constexpr int64_t kInputBytes = 256 << 10;  // bytes of a block's input planes
constexpr int64_t kGradBytes = 512 << 10;   // bytes of a block's grad planes
constexpr int64_t kBlockVectors = 48;       // most vectors per grad plane
constexpr int64_t kRowVectors = 16;         // most vectors per row of a grad plane
constexpr int64_t kSumsBytes = 32 << 20;    // bytes of the sums of all chunks, at most

// The division into tasks and blocks. The gradient is computed in tiles of kInnerRows
// rows (input planes) and kInnerColumns columns (grad planes).
template <typename A>
struct WeightsPlan {
  explicit WeightsPlan(const Problem& problem)
      : p(problem),
        input(InputImage(p)),
        output(OutputImage(p)),
        y_axis(ForwardAxis(Vertical(p))),
        x_axis(ForwardAxis(Horizontal(p))),
        grad_axis{p.out_width, 0, 1, 1, 0, 1, 1, 0, 1},
        taps(p.kernel_height * p.kernel_width),
        row_tiles(CeilDivide(input.channels * input.columns, kInnerRows)),
        column_tiles(CeilDivide(output.channels * output.columns, kInnerColumns)),
        blocks(p.batch, p.out_height, p.out_width, 1) {
    chunk = p.pose_depth * taps * row_tiles * column_tiles * kInnerTile;
    const int64_t samples = SamplesOfTask(p, p.out_width, kLanes<A>, 8);
    blocks.samples = CeilDivide(p.batch, samples);
    const int64_t vectors = CeilDivide(p.out_width * samples * p.pose_rows, kLanes<A>);
    blocks.columns = CeilDivide(vectors, kRowVectors);
    const int64_t fit = kBlockVectors / CeilDivide(vectors, blocks.columns);
    blocks.rows = CeilDivide(p.out_height, Max(fit, 1));
    rows = CeilDivide(p.out_height, blocks.rows);
    in_rows = (rows - 1) * y_axis.step + y_axis.reach() + 1;

    const Block most{0, CeilDivide(p.batch, blocks.samples),    0, rows,
                     0, CeilDivide(p.out_width, blocks.columns)};
    const int64_t channel_bytes = in_rows * InputStrip(most, 0, 4).row / 4 * sizeof(A);
    channels = Fit(input.channels, kInputBytes / Max(channel_bytes, 1));
    channel_parts = CeilDivide(input.channels, channels);
    const int64_t grad_bytes = rows * GradStrip(most, 0, 4).row / 4 * sizeof(A);
    grad_channels = Fit(output.channels, kGradBytes / Max(grad_bytes, 1));
    chunks = Min(CeilDivide(kTasks, channel_parts), blocks.count());
    chunks = Max(Min(chunks, kSumsBytes / (chunk * int64_t{sizeof(A)})), 1);
    input_size = in_rows * InputStrip(most, 0, channels).row;
    grad_size = rows * GradStrip(most, 0, grad_channels).row;
    copy_size = rows * kInnerColumns * GradStrip(most, 0, grad_channels).length;
  }

  // Returns the number of channels per part if `fit` channels fit: a multiple of 4, so
  // that the planes of a part are whole tiles.
  static int64_t Fit(int64_t channels, int64_t fit) {
    const int64_t parts = CeilDivide(channels, Max(fit / 4 * 4, 4));
    return RoundUp(CeilDivide(channels, parts), 4);
  }
  Strip<A> InputStrip(const Block& block, int64_t first, int64_t count) const {
    return StripOf(input, x_axis, block, first, count);
  }
  Strip<A> GradStrip(const Block& block, int64_t first, int64_t count) const {
    return StripOf(output, grad_axis, block, first, count);
  }
  Strip<A> StripOf(const Image& image, const Axis& axis, const Block& block,
                   int64_t first, int64_t count) const {
    return Strip<A>(p, image, axis, block.x_begin, block.x_end, block.sample,
                    block.samples, first, Min(count, image.channels - first));
  }

  const Problem& p;
  Image input, output;
  Axis y_axis, x_axis, grad_axis;  // grad_axis: one tap, which reads the pixel itself
  int64_t taps;
  int64_t row_tiles, column_tiles;  // tiles of weights, per depth and tap
  int64_t chunk;                    // sums per chunk
  Blocks blocks;
  int64_t channel_parts, chunks;
  int64_t rows, in_rows;            // most rows per block
  int64_t channels, grad_channels;  // channels whose planes are filled at a time
  int64_t input_size, grad_size;    // elements of these planes
  int64_t copy_size;                // elements of the grad planes of a tile
};

// A row or column of taps within a block: where it begins to read in the input planes
// and, for a row of taps, the range of grad rows that read inside the image.
struct TapOfBlock {
  int64_t from;
  int64_t begin, end;
};

template <typename T>
Division DivideWeights(const Problem& p) {
  using A = Accumulator<T>;
  const WeightsPlan<A> plan(p);
  Division d;
  d.workspace = plan.chunks * plan.chunk * sizeof(A);
  d.scratch = (plan.input_size + plan.grad_size + plan.copy_size) * sizeof(A) +
              (plan.y_axis.taps + plan.x_axis.taps) * sizeof(TapOfBlock);
  d.tasks = plan.channel_parts * plan.chunks;
  d.weights_tasks = p.pose_depth * plan.taps * plan.row_tiles;
  return d;
}

// Planes of grad for some channels of a block.
template <typename A>
struct Grads {
  Strip<A> strip;
  const A* planes;
  int64_t column_tile;  // first column tile of the sums for these planes
  bool finite;          // whether grad is finite, or no tap reads outside the image
  A* copy;              // space for the planes of one column tile
};

// Copies a tile's planes of grad, with zeros in the lanes in which tap j reads outside
// the image. The input is zero in these lanes, but zero times an infinite or NaN
// gradient is NaN.
template <typename A>
Planes<A> MaskOutside(const Strip<A>& in, int64_t j, const Grads<A>& grads,
                      const Planes<A>& from, int64_t rows) {
  const Planes<A> to{grads.copy, from.stride, kInnerColumns * from.stride};
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t n = 0; n < kInnerColumns; ++n) {
      const A* const x = from.first + row * from.row + n * from.stride;
      A* const y = grads.copy + row * to.row + n * to.stride;
      for (int64_t lane = 0; lane < grads.strip.filled; ++lane) {
        const bool inside = lane >= in.InsideBegin(j) && lane < in.InsideEnd(j);
        y[lane] = inside ? x[lane] : A{0};
      }
    }
  }
  return to;
}

// Fills the tables of a block's rows and columns of taps.
template <typename A>
void FindTaps(const WeightsPlan<A>& plan, const Block& block, const Strip<A>& in,
              TapOfBlock* rows, TapOfBlock* columns) {
  const Axis& axis = plan.y_axis;
  const int64_t count = block.y_end - block.y_begin, height = plan.input.height;
  for (int64_t i = 0; i < axis.taps; ++i) {
    const int64_t y = block.y_begin * axis.step + axis.offset + i * axis.delta;
    const int64_t begin = y < 0 ? CeilDivide(-y, axis.step) : 0;
    const int64_t end = y < height ? Min(CeilDivide(height - y, axis.step), count) : 0;
    rows[i] = {(begin * axis.step + i * axis.delta) * in.row, begin, end};
  }
  for (int64_t j = 0; j < plan.x_axis.taps; ++j) columns[j] = {in.TapBegin(j), 0, 0};
}

// Adds the inner products of a block's planes to the sums of a chunk. `inputs` begins
// with the planes of row tile `row_tile`.
template <typename A>
void AddBlock(const WeightsPlan<A>& plan, const Strip<A>& in, const A* inputs,
              int64_t row_tile, const Grads<A>& grads, const TapOfBlock* tap_rows,
              const TapOfBlock* tap_columns, A* sums) {
  const Problem& p = plan.p;
  const Axis& y_axis = plan.y_axis;
  const Strip<A>& out = grads.strip;
  const int64_t row_tiles = CeilDivide(in.channels * plan.input.columns, kInnerRows);
  const int64_t column_tiles =
      CeilDivide(out.channels * plan.output.columns, kInnerColumns);
  for (int64_t g = 0; g < p.pose_depth; ++g) {
    for (int64_t n = 0; n < column_tiles; ++n) {
      for (int64_t k = 0; k < row_tiles; ++k) {
        for (int64_t i = 0; i < y_axis.taps; ++i) {
          const TapOfBlock& tap_row = tap_rows[i];
          if (tap_row.begin >= tap_row.end) continue;
          const int64_t rows = tap_row.end - tap_row.begin;
          const A* const x =
              inputs + tap_row.from + (g * in.planes + k * kInnerRows) * in.length;
          const Planes<A> grad{grads.planes + tap_row.begin * out.row +
                                   (g * out.planes + n * kInnerColumns) * out.length,
                               out.length, out.row};
          const int64_t tap =
              (y_axis.tap_first + i) * p.kernel_width + plan.x_axis.tap_first;
          const int64_t tile_row =
              (g * plan.taps + tap) * plan.row_tiles + row_tile + k;
          A* to = sums +
                  (tile_row * plan.column_tiles + grads.column_tile + n) * kInnerTile;
          for (int64_t j = 0; j < plan.x_axis.taps; ++j) {
            InnerProducts<A>(
                {x + tap_columns[j].from, in.length, y_axis.step * in.row},
                grads.finite ? grad : MaskOutside(in, j, grads, grad, rows), rows,
                out.lanes, to);
            to += plan.row_tiles * plan.column_tiles * kInnerTile;
          }
        }
      }
    }
  }
}

// Computes the sums of one chunk for one part of the input's channels: one task.
template <typename T>
void RunWeights(const Problem& p, int64_t task, const T* input, const T* grad,
                void* workspace, void* scratch) {
  using A = Accumulator<T>;
  const WeightsPlan<A> plan(p);
  const int64_t chunk = task / plan.channel_parts;
  const int64_t channel = task % plan.channel_parts * plan.channels;
  A* const sums = static_cast<A*>(workspace) + chunk * plan.chunk;
  A* const inputs = static_cast<A*>(scratch);
  A* const grads = inputs + plan.input_size;
  A* const copy = grads + plan.grad_size;
  TapOfBlock* const tap_rows = reinterpret_cast<TapOfBlock*>(copy + plan.copy_size);
  TapOfBlock* const tap_columns = tap_rows + plan.y_axis.taps;
  const int64_t row_tile = channel * plan.input.columns / kInnerRows;
  const int64_t row_tiles =
      Min(plan.channels * plan.input.columns / kInnerRows, plan.row_tiles - row_tile);
  const int64_t tile_row = plan.column_tiles * kInnerTile;
  for (int64_t tap = 0; tap < p.pose_depth * plan.taps; ++tap) {
    std::memset(sums + (tap * plan.row_tiles + row_tile) * tile_row, 0,
                row_tiles * tile_row * sizeof(A));
  }
  const int64_t end = PartBegin(plan.blocks.count(), chunk + 1, plan.chunks);
  for (int64_t index = PartBegin(plan.blocks.count(), chunk, plan.chunks); index < end;
       ++index) {
    const Block block = plan.blocks.At(index);
    const Strip<A> in = plan.InputStrip(block, channel, plan.channels);
    FindTaps(plan, block, in, tap_rows, tap_columns);
    const int64_t rows = block.y_end - block.y_begin;
    const int64_t in_rows = (rows - 1) * plan.y_axis.step + plan.y_axis.reach() + 1;
    for (int64_t row = 0; row < in_rows; ++row) {
      const int64_t y = block.y_begin * plan.y_axis.step + plan.y_axis.offset + row;
      if (y < 0 || y >= p.in_height) continue;
      bool read = false;
      for (int64_t i = 0; i < plan.y_axis.taps && !read; ++i) {
        const int64_t from = row - i * plan.y_axis.delta;
        read =
            from >= 0 && from % plan.y_axis.step == 0 && from / plan.y_axis.step < rows;
      }
      if (read) FillRow(p, plan.input, in, input, y, inputs + row * in.row);
    }
    for (int64_t o = 0; o < p.out_channels; o += plan.grad_channels) {
      const Strip<A> out = plan.GradStrip(block, o, plan.grad_channels);
      const bool everywhere = in.InsideEverywhere();
      bool finite = true;
      for (int64_t row = 0; row < rows; ++row) {
        A* const to = grads + row * out.row;
        FillRow(p, plan.output, out, grad, block.y_begin + row, to);
        finite = finite && (everywhere || ArePlanesFinite(p, plan.output, out, to));
      }
      AddBlock(plan, in, inputs, row_tile,
               {out, grads, o * plan.output.columns / kInnerColumns, finite, copy},
               tap_rows, tap_columns, sums);
    }
  }
}

// Adds the sums of all chunks and writes them to the gradient of a tap's weights. A
// task has kInnerRows rows of one matrix.
template <typename T>
void ReduceWeights(const Problem& p, int64_t task, const void* workspace,
                   T* grad_weights) {
  using A = Accumulator<T>;
  const WeightsPlan<A> plan(p);
  const int64_t row_tile = task % plan.row_tiles;
  const int64_t g = task / plan.row_tiles / plan.taps;
  const int64_t pose = p.pose_inner * p.pose_columns;
  const int64_t rows = p.in_channels * p.pose_inner;
  const int64_t columns = p.out_channels * p.pose_columns;
  T* to[kInnerRows];
  for (int64_t i = 0; i < kInnerRows; ++i) {
    const int64_t row = Min(row_tile * kInnerRows + i, rows - 1);
    const int64_t capsule = row / p.pose_inner * p.out_channels;
    to[i] = grad_weights + (capsule * p.pose_depth + g) * pose +
            row % p.pose_inner * p.pose_columns;
  }
  const int64_t count = Min(rows - row_tile * kInnerRows, kInnerRows);
  const A* from =
      static_cast<const A*>(workspace) + task * plan.column_tiles * kInnerTile;
  for (int64_t tile = 0; tile < plan.column_tiles; ++tile, from += kInnerTile) {
    A sums[kInnerTile] = {};
    for (int64_t chunk = 0; chunk < plan.chunks; ++chunk) {
      for (int n = 0; n < kInnerTile; ++n) sums[n] += from[chunk * plan.chunk + n];
    }
    for (int64_t n = 0; n < kInnerColumns; ++n) {
      const int64_t column = tile * kInnerColumns + n;
      if (column >= columns) break;
      const int64_t offset =
          column / p.pose_columns * p.pose_depth * pose + column % p.pose_columns;
      for (int64_t i = 0; i < count; ++i) {
        Narrow(sums[i * kInnerColumns + n], to[i] + offset);
      }
    }
  }
}

}  // namespace capsops::capsule_conv::CAPSOPS_ISA
