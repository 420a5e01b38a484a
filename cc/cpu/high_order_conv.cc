// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// High-order convolution, which has a separate filter for every pixel, and its
// gradients. Filters dominate the memory traffic and the time. A task computes the rows
// of its part of a sample from top to bottom, in steps of a few rows. It transposes the
// filters of a step to planes in its own cache, so that lanes are neighboring pixels
// for both tensor layouts. The image rows that these filters read stay in a sliding
// window of planes.
#include "cc/cpu/high_order_conv.h"

#include "cc/cpu/high_order_conv_plan.h"

namespace capsops::high_order_conv::CAPSOPS_ISA {
namespace {

// Lays out the scratch of a task. `lines` holds rows of the output or of grad.
template <typename A>
struct TaskScratch {
  TaskScratch(const Plan<A>& plan, bool backward, void* scratch)
      : plan(plan), next(static_cast<A*>(scratch)) {
    const int64_t weights = plan.step_groups * plan.taps;
    window = Take(plan.channels, plan.window_stride);
    filters = Take(weights, plan.line_stride);
    lines = Take(plan.channels, plan.line_stride);
    if (backward) {
      grad_input = Take(plan.channels, plan.window_stride);
      before_sums = Bytes(scratch);
      grad_filters = Take(weights, plan.line_stride);
    }
    staging = next;
    next += plan.staging;
    bytes = Bytes(scratch);
  }
  int64_t Bytes(void* scratch) const {
    return (next - static_cast<A*>(scratch)) * sizeof(A);
  }
  Planes<A> Take(int64_t planes, int64_t stride) {
    A* const first = next + plan.lead;
    next += planes * stride;
    return {first, stride};
  }

  const Plan<A>& plan;
  A* next;
  Planes<A> window, filters, lines, grad_input, grad_filters;
  A* staging;
  int64_t before_sums = 0, bytes;  // bytes before grad_filters, and in total
};

template <typename T, bool kBackward>
Division Divide(const Problem& p) {
  const Plan<Accumulator<T>> plan(p, kBackward);
  const TaskScratch<Accumulator<T>> memory(plan, kBackward, nullptr);
  return {memory.bytes, plan.tasks()};
}

// Computes the output of a task for one part of its channels.
template <typename T>
void ForwardPart(const Plan<Accumulator<T>>& plan, const Task& task, const T* input,
                 const T* filters, T* output, void* scratch) {
  using A = Accumulator<T>;
  const Problem& p = plan.p;
  const TaskScratch<A> memory(plan, false, scratch);
  std::memset(scratch, 0, memory.bytes);
  const Kernel kernel = plan.kernel();
  const int64_t channels = task.channel_end - task.channel_begin;
  const int64_t per_group = channels / (task.group_end - task.group_begin);
  const bool stream = UseStreamingStores<T>(p, p.channels);
  int64_t before = 0;
  for (int64_t row = task.row_begin; row < task.row_end; row += before) {
    const int64_t rows = Min(plan.step_rows, task.row_end - row);
    AdvanceWindow(plan, task, before, row, rows, input, memory.window, memory.staging);
    before = rows;
    for (int64_t g = task.group_begin; g < task.group_end; g += plan.step_groups) {
      const int64_t groups = Min(plan.step_groups, task.group_end - g);
      FillFilters(plan, task, g, groups, row, rows, task.x_begin, task.x_end, filters,
                  memory.filters, memory.staging);
      Prefetcher ahead = PrefetchNextFilters(plan, task, g + groups, row, rows,
                                             task.row_end, 1, filters);
      for (int64_t n = 0; n < groups; ++n) {
        const int64_t first = (g + n - task.group_begin) * per_group;
        ForChannels(per_group, [&](auto count, int64_t c) {
          Apply<A, decltype(count)::value>(
              kernel, memory.window.From(first + c, -plan.halo),
              memory.filters.From(n * plan.taps), rows * plan.pitch, ahead,
              memory.lines.From(first + c));
        });
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      WriteRow(plan, task, row + r, memory.lines.From(0, r * plan.pitch), channels,
               stream, output, p.channels, task.channel_begin, memory.staging);
    }
  }
  if (stream) StreamFence();
}

template <typename T>
void Forward(const Problem& p, int64_t index, const T* input, const T* filters,
             T* output, void* scratch) {
  const Plan<Accumulator<T>> plan(p, false);
  Task task = plan.task(index);
  for (int64_t part = 0; part < plan.parts; ++part) {
    plan.SetPart(part, &task);
    ForwardPart(plan, task, input, filters, output, scratch);
  }
}

// Computes both gradients of a task's rows. It also visits the rows above and below
// whose filters read these rows, as they contribute to the input gradient. This is
// accumulated in a sliding window of sums, always in the same order, so that results do
// not depend on the division into tasks.
template <typename T>
class Backward {
 public:
  using A = Accumulator<T>;

  Backward(const Problem& p, int64_t index, const T* grad, const T* input,
           const T* filters, T* grad_input, T* grad_filters, void* scratch)
      : p_(p),
        plan_(p, true),
        task_(plan_.task(index)),
        memory_(plan_, true, scratch),
        kernel_(plan_.kernel()),
        scratch_(scratch),
        rows_(plan_.PhaseRows(task_.phase)),
        stream_(UseStreamingStores<T>(p, p.groups * p.kernel_height * p.kernel_width)),
        grad_(grad),
        input_(input),
        filters_(filters),
        grad_input_(grad_input),
        grad_filters_(grad_filters) {}

  void Run() {
    for (part_ = 0; part_ < plan_.parts; ++part_) RunPart();
    if (stream_) StreamFence();
  }

 private:
  void RunPart() {
    // The filter gradient is summed over all parts, so it is cleared only once.
    std::memset(scratch_, 0, part_ == 0 ? memory_.bytes : memory_.before_sums);
    plan_.SetPart(part_, &task_);
    channels_ = task_.channel_end - task_.channel_begin;
    per_group_ = channels_ / (task_.group_end - task_.group_begin);
    RunSteps(Max(task_.row_begin - plan_.reach_y, 0), task_.row_begin, false);
    RunSteps(task_.row_begin, task_.row_end, true);
    const int64_t end = Min(task_.row_end + plan_.reach_y, rows_);
    RunSteps(task_.row_end, end, false);
    // The last rows of the image are still in the window of sums.
    WriteInput(end, plan_.reach_y);
  }

  // Visits rows [begin, end). If `own` is false, they are outside the task, and only
  // add to its input gradient.
  void RunSteps(int64_t begin, int64_t end, bool own) {
    int64_t before = 0;
    for (int64_t row = begin; row < end; row += before) {
      const int64_t rows = Min(plan_.step_rows, end - row);
      if (own) {
        AdvanceWindow(plan_, task_, before, row, rows, input_, memory_.window,
                      memory_.staging);
      }
      before = rows;
      RunStep(row, rows, own);
      WriteInput(row, rows);
      ShiftSums(rows);
    }
  }

  // Adds a step's rows to the input gradient, and own rows to the filter gradient.
  void RunStep(int64_t row, int64_t rows, bool own) {
    const int64_t x_begin = Max(task_.x_begin - plan_.halo, 0);
    const int64_t x_end = Min(task_.x_end + plan_.halo, p_.width);
    for (int64_t r = 0; r < rows; ++r) {
      FillRow(plan_, task_, row + r, x_begin, x_end, grad_, p_.channels,
              task_.channel_begin, channels_, memory_.lines.From(0, r * plan_.pitch),
              memory_.staging);
    }
    ClearAfter(memory_.lines, channels_, rows);
    for (int64_t g = task_.group_begin; g < task_.group_end; g += plan_.step_groups) {
      const int64_t groups = Min(plan_.step_groups, task_.group_end - g);
      FillFilters(plan_, task_, g, groups, row, rows, x_begin, x_end, filters_,
                  memory_.filters, memory_.staging);
      ClearAfter(memory_.filters, groups * plan_.taps, rows);
      Prefetcher ahead = PrefetchNextFilters(plan_, task_, g + groups, row, rows,
                                             Min(task_.row_end + plan_.reach_y, rows_),
                                             plan_.kernel_rows, filters_);
      for (int64_t n = 0; n < groups; ++n) {
        const int64_t first = (g + n - task_.group_begin) * per_group_;
        AddToInput(row, rows, n, first, ahead);
        if (own) CorrelateGroup(rows, n, first);
      }
      if (own && part_ + 1 == plan_.parts) WriteFilters(row, rows, g, groups);
    }
  }

  // Clears the elements that vectors read after the last row of a shorter step.
  void ClearAfter(const Planes<A>& planes, int64_t count, int64_t rows) {
    if (rows == plan_.step_rows) return;
    ClearPlanes(planes.From(0, rows * plan_.pitch - plan_.halo), count,
                2 * plan_.halo + kMostVectors * kLanes<A>);
  }

  // Adds a group's contributions to the window of sums.
  void AddToInput(int64_t row, int64_t rows, int64_t group, int64_t first,
                  Prefetcher& ahead) {
    // The loop begins with the last row of taps, so that each input row receives the
    // contributions of grad from top to bottom.
    for (int64_t kh = plan_.kernel_rows - 1; kh >= 0; --kh) {
      const int64_t to = row + kh - plan_.reach_y;
      if (to + rows <= task_.row_begin || to >= task_.row_end) continue;
      ForChannels(per_group_, [&](auto count, int64_t c) {
        Gather<A, decltype(count)::value>(
            kernel_, memory_.lines.From(first + c, plan_.halo),
            memory_.filters.From(group * plan_.taps + kh * plan_.kernel_columns,
                                 plan_.halo),
            rows * plan_.pitch, ahead,
            memory_.grad_input.From(first + c, kh * plan_.pitch));
      });
    }
  }

  // Adds a group's contributions to the filter gradient.
  void CorrelateGroup(int64_t rows, int64_t group, int64_t first) {
    const Planes<A> to = memory_.grad_filters.From(group * plan_.taps);
    const int64_t count = rows * plan_.pitch;
    if (per_group_ == 0) ClearPlanes(to, plan_.taps, count);
    ForChannels(per_group_, [&](auto channels, int64_t c) {
      Correlate<A, decltype(channels)::value>(
          kernel_, memory_.window.From(first + c, -plan_.halo),
          memory_.lines.From(first + c), count, part_ > 0 || c > 0, to);
    });
  }

  // Stores the filter gradient of a step, with zeros for taps that no pixel uses.
  void WriteFilters(int64_t row, int64_t rows, int64_t first_group, int64_t groups) {
    const int64_t size = p_.kernel_height * p_.kernel_width;
    for (int64_t r = 0; r < rows; ++r) {
      const Planes<A> from = memory_.grad_filters.From(0, r * plan_.pitch);
      for (int64_t g = 0; g < groups; ++g) {
        ClearOutside(plan_, task_, row + r, task_.x_begin, task_.x_end,
                     from.From(g * plan_.taps));
      }
      if (plan_.taps < size) {
        ZeroPixels(plan_.Row(task_, row + r, task_.x_begin, grad_filters_,
                             p_.groups * size, first_group * size),
                   groups * size, task_.x_end - task_.x_begin);
      }
      plan_.ForRuns(
          first_group, groups, [&](int64_t column, int64_t plane, int64_t columns) {
            WriteRow(plan_, task_, row + r, from.From(plane), columns, stream_,
                     grad_filters_, p_.groups * size, column, memory_.staging);
          });
    }
  }

  // Writes the first `rows` rows of the window, which begins reach_y rows before `row`.
  void WriteInput(int64_t row, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = row - plan_.reach_y + r;
      if (at < task_.row_begin || at >= task_.row_end) continue;
      WriteRow(plan_, task_, at, memory_.grad_input.From(0, r * plan_.pitch), channels_,
               false, grad_input_, p_.channels, task_.channel_begin, memory_.staging);
    }
  }

  // Shifts the window of sums by `rows` rows.
  void ShiftSums(int64_t rows) {
    const int64_t all = plan_.window_stride - plan_.lead;
    const int64_t gone = rows * plan_.pitch;
    for (int64_t c = 0; c < channels_; ++c) {
      A* const to = memory_.grad_input[c];
      std::memmove(to, to + gone, (all - gone) * sizeof(A));
      std::memset(to + all - gone, 0, gone * sizeof(A));
    }
  }

  const Problem& p_;
  const Plan<A> plan_;
  Task task_;
  const TaskScratch<A> memory_;
  const Kernel kernel_;
  void* const scratch_;
  const int64_t rows_;  // rows of the phase
  int64_t part_ = 0;
  int64_t channels_ = 0, per_group_ = 0;  // channels of the part
  const bool stream_;
  const T* const grad_;
  const T* const input_;
  const T* const filters_;
  T* const grad_input_;
  T* const grad_filters_;
};

template <typename T>
void RunBackward(const Problem& p, int64_t index, const T* grad, const T* input,
                 const T* filters, T* grad_input, T* grad_filters, void* scratch) {
  Backward<T>(p, index, grad, input, filters, grad_input, grad_filters, scratch).Run();
}

}  // namespace

template <typename T>
CpuKernels<T> Kernels() {
  return {Divide<T, false>, Forward<T>, Divide<T, true>, RunBackward<T>};
}
CAPSOPS_INSTANTIATE_KERNELS

}  // namespace capsops::high_order_conv::CAPSOPS_ISA
