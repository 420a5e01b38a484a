// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Divides capsule convolution among threads. How it is divided never changes a
// result: no sum crosses a task.
#include "cc/cpu/capsule_conv.h"

#include <algorithm>

#include "cc/cpu/dispatch/isa.h"

namespace capsops::capsule_conv {
namespace {

template <typename T>
const CpuKernels<T>& Selected() {
  static const CpuKernels<T> kernels = CAPSOPS_SELECT(Kernels<T>());
  return kernels;
}

// Cycles of one of `tasks` tasks, roughly: one multiply-add a cycle.
int64_t Cost(const Problem& p, int64_t tasks) {
  const int64_t work = p.batch * p.out_height * p.out_width * p.kernel_height *
                       p.kernel_width * p.in_channels * p.out_channels * p.pose_depth *
                       p.pose_rows * p.pose_inner * p.pose_columns;
  return std::max<int64_t>(work / std::max<int64_t>(tasks, 1), 1);
}

}  // namespace

template <typename T>
int64_t ForwardWorkspace(const CpuExec&, const Problem&) {
  return 0;
}
template <typename T>
int64_t BackpropInputWorkspace(const CpuExec&, const Problem&) {
  return 0;
}
template <typename T>
int64_t BackpropWeightsWorkspace(const CpuExec&, const Problem&) {
  return 0;
}

template <typename T>
LaunchError Forward(const CpuExec& exec, const Problem& p, const T* input,
                    const T* weights, T* output, void*) {
  const int64_t tasks = p.batch * p.out_height;
  exec.parallel_for(tasks, Cost(p, tasks), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      Selected<T>().forward(p, task, input, weights, output);
    }
  });
  return {};
}

template <typename T>
LaunchError BackpropInput(const CpuExec& exec, const Problem& p, const T* weights,
                          const T* grad, T* grad_input, void*) {
  const int64_t tasks = p.batch * p.in_height;
  exec.parallel_for(tasks, Cost(p, tasks), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      Selected<T>().backprop_input(p, task, weights, grad, grad_input);
    }
  });
  return {};
}

template <typename T>
LaunchError BackpropWeights(const CpuExec& exec, const Problem& p, const T* input,
                            const T* grad, T* grad_weights, void*) {
  const int64_t tasks = p.kernel_height * p.kernel_width * p.in_channels;
  exec.parallel_for(tasks, Cost(p, tasks), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      Selected<T>().backprop_weights(p, task, input, grad, grad_weights);
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
