// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// High-order convolution divided among threads. No sum crosses a task, and tasks do not
// depend on the number of threads.
#include "cc/cpu/high_order_conv.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "cc/cpu/dispatch/isa.h"
#include "cc/cpu/dispatch/scratch.h"

namespace capsops::high_order_conv {
namespace {

template <typename T>
const CpuKernels<T>& Selected() {
  static const CpuKernels<T> kernels = CAPSOPS_SELECT(Kernels<T>());
  return kernels;
}

// Cycles of one of `tasks` tasks, roughly: one for each filter weight, which has to
// come from memory, and one for eight multiply-adds.
int64_t Cost(const Problem& p, int64_t tasks) {
  const int64_t weights =
      p.batch * p.height * p.width * p.groups * p.kernel_height * p.kernel_width;
  const int64_t work = weights + weights / 8 * (p.channels / p.groups);
  return std::max<int64_t>(work / std::max<int64_t>(tasks, 1), 1);
}

template <typename Run>
LaunchError ForTasks(const CpuExec& exec, const char* op, const Division& d,
                     int64_t cost, const Run& run) {
  std::atomic<bool> out_of_memory = false;
  exec.parallel_for(d.tasks, cost, [&](int64_t begin, int64_t end) {
    const Scratch scratch(d.scratch);
    if (scratch.data() == nullptr) {
      out_of_memory = true;
      return;
    }
    for (int64_t task = begin; task < end; ++task) run(task, scratch.data());
  });
  if (!out_of_memory) return {};
  return std::string(op) + ": no memory for the working space of a thread";
}

}  // namespace

template <typename T>
int64_t ForwardWorkspace(const CpuExec&, const Problem&) {
  return 0;
}
template <typename T>
int64_t BackwardWorkspace(const CpuExec&, const Problem&) {
  return 0;
}

template <typename T>
LaunchError Forward(const CpuExec& exec, const Problem& p, const T* input,
                    const T* filters, T* output, void*) {
  if (p.batch == 0 || p.height == 0 || p.width == 0 || p.channels == 0) return {};
  const CpuKernels<T>& kernels = Selected<T>();
  const Division d = kernels.divide_forward(p);
  return ForTasks(exec, "HighOrderConv", d, Cost(p, d.tasks),
                  [&](int64_t task, void* scratch) {
                    kernels.forward(p, task, input, filters, output, scratch);
                  });
}

template <typename T>
LaunchError Backward(const CpuExec& exec, const Problem& p, const T* grad,
                     const T* input, const T* filters, T* grad_input, T* grad_filters,
                     void*) {
  if (p.batch == 0 || p.height == 0 || p.width == 0) return {};
  const CpuKernels<T>& kernels = Selected<T>();
  const Division d = kernels.divide_backward(p);
  return ForTasks(exec, "HighOrderConvGrad", d, 3 * Cost(p, d.tasks),
                  [&](int64_t task, void* scratch) {
                    kernels.backward(p, task, grad, input, filters, grad_input,
                                     grad_filters, scratch);
                  });
}

#define CAPSOPS_INSTANTIATE(T)                                                         \
  template int64_t ForwardWorkspace<T>(const CpuExec&, const Problem&);                \
  template int64_t BackwardWorkspace<T>(const CpuExec&, const Problem&);               \
  template LaunchError Forward(const CpuExec&, const Problem&, const T*, const T*, T*, \
                               void*);                                                 \
  template LaunchError Backward(const CpuExec&, const Problem&, const T*, const T*,    \
                                const T*, T*, T*, void*);
CAPSOPS_INSTANTIATE(float)
CAPSOPS_INSTANTIATE(double)
CAPSOPS_INSTANTIATE(Float16)
CAPSOPS_INSTANTIATE(BFloat16)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::high_order_conv
