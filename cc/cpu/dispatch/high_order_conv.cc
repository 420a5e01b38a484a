// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Divides high-order convolution among threads. No sum crosses a task, and tasks do not
// depend on the number of threads.
#include "cc/cpu/high_order_conv.h"

#include <algorithm>

#include "cc/cpu/dispatch/isa.h"
#include "cc/cpu/dispatch/tasks.h"

namespace capsops::high_order_conv {
namespace {

CAPSOPS_SELECTED_KERNELS

// Returns the approximate cycles per task: one per filter weight, to load it from
// memory, and one per 8 multiply-adds.
int64_t Cost(const Problem& p, int64_t tasks) {
  const int64_t weights =
      p.batch * p.height * p.width * p.groups * p.kernel_height * p.kernel_width;
  const int64_t work = weights + weights / 8 * (p.channels / p.groups);
  return std::max<int64_t>(work / std::max<int64_t>(tasks, 1), 1);
}

}  // namespace

template <typename T>
ForwardPlan<CpuExec, T> PlanForward(const CpuExec&, const Problem& p) {
  const bool empty = p.batch == 0 || p.height == 0 || p.width == 0 || p.channels == 0;
  const Division d = empty ? Division{} : Selected<T>().divide_forward(p);
  return CpuPlan<ForwardPlan<CpuExec, T>>(
      0,
      [p, d](const CpuExec& exec, const T* input, const T* filters, T* output,
             void*) -> LaunchError {
        if (d.tasks == 0) return {};
        return ForTasks(exec, "HighOrderConv", d.tasks, Cost(p, d.tasks), d.scratch,
                        [&](int64_t task, void* scratch) {
                          Selected<T>().forward(p, task, input, filters, output,
                                                scratch);
                        });
      });
}

template <typename T>
BackwardPlan<CpuExec, T> PlanBackward(const CpuExec&, const Problem& p) {
  const bool empty = p.batch == 0 || p.height == 0 || p.width == 0;
  const Division d = empty ? Division{} : Selected<T>().divide_backward(p);
  return CpuPlan<BackwardPlan<CpuExec, T>>(
      0,
      [p, d](const CpuExec& exec, const T* grad, const T* input, const T* filters,
             T* grad_input, T* grad_filters, void*) -> LaunchError {
        if (d.tasks == 0) return {};
        return ForTasks(exec, "HighOrderConvGrad", d.tasks, 3 * Cost(p, d.tasks),
                        d.scratch, [&](int64_t task, void* scratch) {
                          Selected<T>().backward(p, task, grad, input, filters,
                                                 grad_input, grad_filters, scratch);
                        });
      });
}

CAPSOPS_INSTANTIATE_PATH(CpuExec)

}  // namespace capsops::high_order_conv
