// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The layout of the planes of a high-order convolution in a task's scratch, and the
// division of the work into tasks. Every dilation_height-th row belongs to the same
// phase: a dilated window reads consecutive rows of one phase. Taps that lie outside
// the image for every pixel are left out.
#pragma once

#include <cstdint>
#include <cstring>

#include "cc/cpu/high_order_conv_planes.h"
#include "cc/cpu/high_order_conv_tiles.h"

namespace capsops::high_order_conv::CAPSOPS_ISA {

constexpr int64_t kFilterBytes = 32 << 10;   // filters of a step, in the L1 cache
constexpr int64_t kWindowBytes = 256 << 10;  // rows that filters read, in the L2 cache
constexpr int64_t kChannelBytes = 4 << 20;   // all planes of channels, at most
constexpr int64_t kTasks = 32;               // number of tasks to aim for
constexpr int64_t kStreamBytes = 16 << 20;   // larger outputs bypass the caches

// A part of the problem: groups, columns of pixels and, within a phase, rows. A group
// of too many channels is a task of its own, which computes some channels at a time.
struct Task {
  int64_t n, phase;
  int64_t group_begin, group_end;
  int64_t channel_begin, channel_end;
  int64_t x_begin, x_end;
  int64_t row_begin, row_end;
};

// Sizes and strides of planes, in elements of A. Element r * pitch + u of a plane is
// column x_begin + u of row r. `lead` elements precede the first plane.
template <typename A>
struct Plan {
  Plan(const Problem& p, bool backward) : p(p) {
    phases = Min(p.dilation_height, p.height);
    rows = CeilDivide(p.height, phases);
    reach_y = Min(p.kernel_height / 2, rows - 1);
    reach_x = Min(p.kernel_width / 2, (p.width - 1) / p.dilation_width);
    halo = reach_x * p.dilation_width;
    kernel_rows = 2 * reach_y + 1;
    kernel_columns = 2 * reach_x + 1;
    taps = kernel_rows * kernel_columns;
    group_channels = p.channels / p.groups;

    // Groups whose weights or channels are contiguous stay together in a task until
    // they form a long contiguous run.
    const int64_t size = sizeof(A);
    const int64_t group_window = group_channels * kernel_rows * (p.width + halo) * size;
    const int64_t least =
        p.channels_first
            ? 1
            : Min(CeilDivide(4096, p.kernel_height * p.kernel_width * size), p.groups);
    const int64_t fit = kWindowBytes / Max(group_window, 1);
    const int64_t spread =
        kTasks / Max(p.batch * phases, 1);  // tasks that share the groups
    task_groups = Max(Min(Min(p.groups, fit), CeilDivide(p.groups, Max(spread, 1))), 1);
    task_groups = Max(task_groups, least);
    channels = task_groups * group_channels;

    const int64_t column = Max(taps * size, channels * kernel_rows * size);
    tile = Max(Max(kWindowBytes / column, 2 * halo), 4 * kLanes<A>);
    tile = Min(RoundUp(CeilDivide(p.width, CeilDivide(p.width, tile)), kLanes<A>),
               p.width);
    tiles = CeilDivide(p.width, tile);
    // Between whole rows, the same zeros pad the end of one and the beginning of the
    // next.
    pitch = tiles == 1 ? p.width + halo : tile + 2 * halo;
    const int64_t line = taps * pitch * size;
    step_groups = Max(Min(task_groups, kFilterBytes / line), 1);
    step_rows = Max(Min(rows, kFilterBytes / (line * step_groups)), 1);

    lead = RoundUp(halo, kLanes<A>);
    const int64_t tail = halo + kMostVectors * kLanes<A>;
    line_stride = Stride(lead + step_rows * pitch + tail);
    window_stride = Stride(lead + (step_rows + 2 * reach_y) * pitch + tail);
    const int64_t channel_bytes =
        (line_stride + (backward ? 2 : 1) * window_stride) * size;
    const int64_t most = RoundUp(kChannelBytes / channel_bytes + 1, kMostChannels);
    part_channels = Min(group_channels, most);
    task_groups = Min(task_groups, Max(most / Max(group_channels, 1), 1));
    parts = Max(CeilDivide(group_channels, Max(part_channels, 1)), 1);
    channels = task_groups * part_channels;
    step_groups = Min(step_groups, task_groups);

    const int64_t others = p.batch * phases * CeilDivide(p.groups, task_groups) * tiles;
    const int64_t row_tasks = CeilDivide(kTasks, others);
    task_rows = Max(CeilDivide(rows, row_tasks), backward ? 16 * reach_y : 2 * reach_y);
    // The filter gradient is summed over parts, for the rows of one step.
    if (backward && parts > 1) task_rows = step_rows;
    task_rows = Min(RoundUp(task_rows, step_rows), rows);
    staging = RoundUp(Max(StagingSize<A>(channels), StagingSize<A>(step_groups * taps)),
                      64 / size);
  }

  int64_t tasks() const {
    return p.batch * phases * CeilDivide(p.groups, task_groups) * tiles *
           CeilDivide(rows, task_rows);
  }
  Task task(int64_t index) const {
    Task task;
    const int64_t row_tasks = CeilDivide(rows, task_rows);
    task.row_begin = index % row_tasks * task_rows;
    index /= row_tasks;
    task.x_begin = index % tiles * tile;
    index /= tiles;
    const int64_t group_tasks = CeilDivide(p.groups, task_groups);
    task.group_begin = index % group_tasks * task_groups;
    index /= group_tasks;
    task.phase = index % phases;
    task.n = index / phases;
    task.x_end = Min(task.x_begin + tile, p.width);
    task.group_end = Min(task.group_begin + task_groups, p.groups);
    task.row_end = Min(task.row_begin + task_rows, PhaseRows(task.phase));
    SetPart(0, &task);
    return task;
  }
  void SetPart(int64_t part, Task* task) const {
    task->channel_begin = task->group_begin * group_channels + part * part_channels;
    task->channel_end = parts == 1 ? task->group_end * group_channels
                                   : Min(task->channel_begin + part_channels,
                                         task->group_end * group_channels);
  }
  Kernel kernel() const {
    return {kernel_rows, kernel_columns, pitch, p.dilation_width};
  }
  int64_t PhaseRows(int64_t phase) const {
    return CeilDivide(p.height - phase, phases);
  }
  int64_t Y(const Task& task, int64_t row) const { return task.phase + row * phases; }

  // Returns row `row` of the task's phase from pixel x on, in a tensor of `total`
  // columns, from column `first` on.
  template <typename T>
  PixelRow<T> Row(const Task& task, int64_t row, int64_t x, T* data, int64_t total,
                  int64_t first) const {
    const int64_t plane = p.height * p.width;
    T* const sample = data + task.n * plane * total;
    T* const end = data + p.batch * plane * total;
    const int64_t pixel = Y(task, row) * p.width + x;
    if (p.channels_first) return {sample + first * plane + pixel, plane, 1, end};
    return {sample + pixel * total + first, 1, total, end};
  }

  // Calls visit(column of filters, plane, count) for each run of contiguous taps of
  // `groups` groups from first_group on.
  template <typename Visit>
  void ForRuns(int64_t first_group, int64_t groups, const Visit& visit) const {
    const int64_t size = p.kernel_height * p.kernel_width;
    const int64_t skip_y = p.kernel_height / 2 - reach_y;
    const int64_t skip_x = p.kernel_width / 2 - reach_x;
    if (skip_y == 0 && skip_x == 0) return visit(first_group * size, 0, groups * size);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t from = (first_group + g) * size + skip_y * p.kernel_width + skip_x;
      if (skip_x == 0) {
        visit(from, g * taps, taps);
        continue;
      }
      for (int64_t kh = 0; kh < kernel_rows; ++kh) {
        visit(from + kh * p.kernel_width, g * taps + kh * kernel_columns,
              kernel_columns);
      }
    }
  }

  Problem p;
  int64_t phases, rows;      // most rows per phase
  int64_t reach_y, reach_x;  // taps on each side of the center
  int64_t halo;              // pixels that reach_x taps span
  int64_t kernel_rows, kernel_columns, taps;
  int64_t group_channels, channels;  // channels per group, and per task at a time
  int64_t part_channels, parts;      // channels per part, and parts per group
  int64_t task_groups, step_groups;  // groups per task, and groups filled at a time
  int64_t tile, tiles;           // columns of pixels per task, and number of such tiles
  int64_t task_rows, step_rows;  // rows per task, and per step
  int64_t pitch, lead;           // elements per row, and before the first one
  int64_t line_stride, window_stride;  // plane strides for step_rows; with margins
  int64_t staging;

 private:
  // An odd number of cache lines, so that planes do not compete for cache sets.
  static int64_t Stride(int64_t numbers) {
    const int64_t line = 64 / sizeof(A);
    return (CeilDivide(numbers, line) | 1) * line;
  }
};

template <typename T>
bool UseStreamingStores(const Problem& p, int64_t columns) {
  const int64_t size = sizeof(T);
  return p.batch * p.height * p.width * columns * size > kStreamBytes;
}

// Copies columns [first, first + columns) of pixels [x_begin, x_end) of a row to
// planes. The tensor has `total` columns (channels or taps). The pixels may extend
// beyond the task.
template <typename T, typename A>
void FillRow(const Plan<A>& plan, const Task& task, int64_t row, int64_t x_begin,
             int64_t x_end, const T* data, int64_t total, int64_t first,
             int64_t columns, const Planes<A>& to, A* staging) {
  FillPlanes<T, A>(plan.Row(task, row, x_begin, data, total, first), columns,
                   x_end - x_begin, to.first + (x_begin - task.x_begin), to.stride,
                   staging);
}

// Copies the task's pixels of a row from planes to a tensor.
template <typename T, typename A>
void WriteRow(const Plan<A>& plan, const Task& task, int64_t row, const Planes<A>& from,
              int64_t columns, bool stream, T* data, int64_t total, int64_t first,
              A* staging) {
  WritePlanes<T, A>(from.first, from.stride, columns, task.x_end - task.x_begin, stream,
                    plan.Row(task, row, task.x_begin, data, total, first), staging);
}

// Clears the first `numbers` elements of each of `count` planes.
template <typename A>
void ClearPlanes(const Planes<A>& planes, int64_t count, int64_t numbers) {
  for (int64_t n = 0; n < count; ++n) std::memset(planes[n], 0, numbers * sizeof(A));
}

// Clears the filters, or filter gradients, of taps outside the image: in the planes of
// one group and row, for pixels [x_begin, x_end).
template <typename A>
void ClearOutside(const Plan<A>& plan, const Task& task, int64_t row, int64_t x_begin,
                  int64_t x_end, const Planes<A>& planes) {
  const int64_t rows = plan.PhaseRows(task.phase);
  A* to = planes.first - task.x_begin;
  for (int64_t kh = 0; kh < plan.kernel_rows; ++kh) {
    const int64_t y = row + kh - plan.reach_y;
    const bool inside = y >= 0 && y < rows;
    for (int64_t kw = 0; kw < plan.kernel_columns; ++kw, to += planes.stride) {
      const int64_t shift = (kw - plan.reach_x) * plan.p.dilation_width;
      const int64_t left = inside ? Min(Max(-shift, x_begin), x_end) : x_end;
      const int64_t right = Max(Min(plan.p.width - shift, x_end), left);
      for (int64_t x = x_begin; x < left; ++x) to[x] = 0;
      for (int64_t x = right; x < x_end; ++x) to[x] = 0;
    }
  }
}

// Copies the filters of `groups` groups in rows [row, row + count) to planes, with
// zeros for taps outside the image.
template <typename T, typename A>
void FillFilters(const Plan<A>& plan, const Task& task, int64_t first_group,
                 int64_t groups, int64_t row, int64_t count, int64_t x_begin,
                 int64_t x_end, const T* filters, const Planes<A>& to, A* staging) {
  const int64_t total = plan.p.groups * plan.p.kernel_height * plan.p.kernel_width;
  // Rows are filled in order: each is followed by zeros, which the next row overwrites.
  for (int64_t r = 0; r < count; ++r) {
    const Planes<A> line = to.From(0, r * plan.pitch);
    plan.ForRuns(first_group, groups, [&](int64_t column, int64_t at, int64_t columns) {
      FillRow(plan, task, row + r, x_begin, x_end, filters, total, column, columns,
              line.From(at), staging);
    });
    for (int64_t g = 0; g < groups; ++g) {
      ClearOutside(plan, task, row + r, x_begin, x_end, line.From(g * plan.taps));
    }
  }
}

// Returns a prefetcher for the filters that FillFilters copies next: in rows [row, row
// + count) from `group` on or, if these rows are done, those of the first groups in the
// following rows before `end`. Prefetching is spread over `times` passes over the
// channels of each group.
template <typename T, typename A>
Prefetcher PrefetchNextFilters(const Plan<A>& plan, const Task& task, int64_t group,
                               int64_t row, int64_t count, int64_t end, int64_t times,
                               const T* filters) {
  const Problem& p = plan.p;
  const int64_t vectors = times * plan.step_groups *
                          CeilDivide(plan.part_channels, kMostChannels) *
                          CeilDivide(count * plan.pitch, kLanes<A>);
  if (group == task.group_end) {
    group = task.group_begin;
    row += count;
    if (row >= end) return {nullptr, 0, 0, 0, 1};
    count = Min(count, end - row);
  }
  const int64_t size = p.kernel_height * p.kernel_width, total = p.groups * size;
  const int64_t columns = Min(plan.step_groups, task.group_end - group) * size;
  const bool whole = plan.tiles == 1 && plan.phases == 1;  // rows are contiguous
  const int64_t pixels = (task.x_end - task.x_begin) * (whole ? count : 1);
  const auto next = plan.Row(task, row, task.x_begin, filters, total, group * size);
  const int64_t bytes = sizeof(T);
  if (p.channels_first) {
    return {next.data, pixels * bytes, next.column_stride * bytes, columns, vectors};
  }
  if (columns == total) return {next.data, pixels * total * bytes, 0, 1, vectors};
  return {next.data, columns * bytes, total * bytes, pixels, vectors};
}

// Moves the window to the `count` rows of a step and the `reach_y` rows above and
// below, which their filters read. The previous step had `before` rows, 0 if there was
// none.
template <typename T, typename A>
void AdvanceWindow(const Plan<A>& plan, const Task& task, int64_t before, int64_t row,
                   int64_t count, const T* input, const Planes<A>& window, A* staging) {
  const int64_t margin = 2 * plan.reach_y, kept = before > 0 ? margin : 0;
  const int64_t channels = task.channel_end - task.channel_begin;
  for (int64_t c = 0; kept > 0 && c < channels; ++c) {
    A* const to = window[c] - plan.halo;
    std::memmove(to, to + before * plan.pitch, kept * plan.pitch * sizeof(A));
  }
  const int64_t x_begin = Max(task.x_begin - plan.halo, 0);
  const int64_t x_end = Min(task.x_end + plan.halo, plan.p.width);
  for (int64_t r = kept; r < margin + count; ++r) {
    const Planes<A> to = window.From(0, r * plan.pitch);
    const int64_t at = row - plan.reach_y + r;
    if (at < 0 || at >= plan.PhaseRows(task.phase)) {
      ClearPlanes(to.From(0, -plan.halo), channels, plan.pitch);
      continue;
    }
    FillRow(plan, task, at, x_begin, x_end, input, plan.p.channels, task.channel_begin,
            channels, to, staging);
  }
}

}  // namespace capsops::high_order_conv::CAPSOPS_ISA
