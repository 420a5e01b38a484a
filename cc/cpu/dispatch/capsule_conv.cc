// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The steps of capsule convolution, and how each is divided among threads. How it is
// divided never changes a result: no sum crosses a task, and partial sums of the
// gradient of the weights are added in a fixed order.
#include "cc/cpu/capsule_conv.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "cc/cpu/dispatch/isa.h"
#include "cc/cpu/dispatch/scratch.h"

namespace capsops::capsule_conv {
namespace {

template <typename T>
const CpuKernels<T>& Selected() {
  static const CpuKernels<T> kernels = CAPSOPS_SELECT(Kernels<T>());
  return kernels;
}

// Cycles of one of `tasks` tasks, roughly: sixteen multiply-adds a cycle.
int64_t Cost(const Problem& p, int64_t tasks) {
  const int64_t work = p.batch * p.out_height * p.out_width * p.kernel_height *
                       p.kernel_width * p.in_channels * p.out_channels * p.pose_depth *
                       p.pose_rows * p.pose_inner * p.pose_columns;
  return std::max<int64_t>(work / 16 / std::max<int64_t>(tasks, 1), 1);
}

// Cycles of a task that moves its share of the weights `times` times, roughly.
int64_t MoveCost(const Problem& p, int64_t tasks, int64_t times) {
  const int64_t weights = p.kernel_height * p.kernel_width * p.in_channels *
                          p.out_channels * p.pose_depth * p.pose_inner * p.pose_columns;
  return std::max<int64_t>(2 * times * weights / std::max<int64_t>(tasks, 1), 1);
}

// Runs tasks that need scratch.
template <typename Task>
LaunchError ForTasks(const CpuExec& exec, const char* op, int64_t count, int64_t cost,
                     int64_t scratch_bytes, const Task& run) {
  std::atomic<bool> out_of_memory = false;
  exec.parallel_for(count, cost, [&](int64_t begin, int64_t end) {
    const Scratch scratch(scratch_bytes);
    if (scratch.data() == nullptr) {
      out_of_memory = true;
      return;
    }
    for (int64_t task = begin; task < end; ++task) run(task, scratch.data());
  });
  if (!out_of_memory) return {};
  return std::string(op) + ": no memory for the working space of a thread";
}

template <typename T>
LaunchError RunImage(const CpuExec& exec, const char* op,
                     const ImageKernels<T>& kernels, const Problem& p, const T* from,
                     const T* weights, T* to, void* workspace) {
  const Division d = kernels.divide(p);
  if (d.tasks == 0) return {};
  exec.parallel_for(d.weights_tasks, MoveCost(p, d.weights_tasks, 1),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t task = begin; task < end; ++task) {
                        kernels.pack(p, task, weights, workspace);
                      }
                    });
  return ForTasks(exec, op, d.tasks, Cost(p, d.tasks), d.scratch,
                  [&](int64_t task, void* scratch) {
                    kernels.run(p, task, from, workspace, to, scratch);
                  });
}

}  // namespace

template <typename T>
int64_t ForwardWorkspace(const CpuExec&, const Problem& p) {
  return Selected<T>().forward.divide(p).workspace;
}
template <typename T>
int64_t BackpropInputWorkspace(const CpuExec&, const Problem& p) {
  return Selected<T>().backprop_input.divide(p).workspace;
}
template <typename T>
int64_t BackpropWeightsWorkspace(const CpuExec&, const Problem& p) {
  return Selected<T>().backprop_weights.divide(p).workspace;
}

template <typename T>
LaunchError Forward(const CpuExec& exec, const Problem& p, const T* input,
                    const T* weights, T* output, void* workspace) {
  return RunImage(exec, "CapsuleConv", Selected<T>().forward, p, input, weights, output,
                  workspace);
}

template <typename T>
LaunchError BackpropInput(const CpuExec& exec, const Problem& p, const T* weights,
                          const T* grad, T* grad_input, void* workspace) {
  return RunImage(exec, "CapsuleConvBackpropInput", Selected<T>().backprop_input, p,
                  grad, weights, grad_input, workspace);
}

template <typename T>
LaunchError BackpropWeights(const CpuExec& exec, const Problem& p, const T* input,
                            const T* grad, T* grad_weights, void* workspace) {
  const WeightsKernels<T>& kernels = Selected<T>().backprop_weights;
  const Division d = kernels.divide(p);
  if (d.weights_tasks == 0) return {};
  LaunchError error =
      ForTasks(exec, "CapsuleConvBackpropWeights", d.tasks, Cost(p, d.tasks), d.scratch,
               [&](int64_t task, void* scratch) {
                 kernels.run(p, task, input, grad, workspace, scratch);
               });
  if (!error.empty()) return error;
  exec.parallel_for(d.weights_tasks, MoveCost(p, d.weights_tasks, 8),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t task = begin; task < end; ++task) {
                        kernels.reduce(p, task, workspace, grad_weights);
                      }
                    });
  return {};
}

#define CAPSOPS_INSTANTIATE(T)                                                         \
  template int64_t ForwardWorkspace<T>(const CpuExec&, const Problem&);                \
  template int64_t BackpropInputWorkspace<T>(const CpuExec&, const Problem&);          \
  template int64_t BackpropWeightsWorkspace<T>(const CpuExec&, const Problem&);        \
  template LaunchError Forward(const CpuExec&, const Problem&, const T*, const T*, T*, \
                               void*);                                                 \
  template LaunchError BackpropInput(const CpuExec&, const Problem&, const T*,         \
                                     const T*, T*, void*);                             \
  template LaunchError BackpropWeights(const CpuExec&, const Problem&, const T*,       \
                                       const T*, T*, void*);
CAPSOPS_INSTANTIATE(float)
CAPSOPS_INSTANTIATE(double)
CAPSOPS_INSTANTIATE(Float16)
CAPSOPS_INSTANTIATE(BFloat16)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::capsule_conv
