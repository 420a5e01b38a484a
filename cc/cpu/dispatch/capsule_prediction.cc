// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Divides capsule prediction among threads. The number of threads never changes a
// result: no sum crosses a task.
#include "cc/cpu/capsule_prediction.h"

#include <algorithm>

#include "cc/cpu/dispatch/isa.h"
#include "cc/cpu/dispatch/tasks.h"
#include "cc/launch/round.h"

namespace capsops::capsule_prediction {
namespace {

CAPSOPS_SELECTED_KERNELS

// Returns the approximate cycles of a task, at 8 multiply-adds per cycle. Loading and
// transposing the weights takes as long as four samples.
int64_t Cost(const Problem& p, int64_t in_caps, int64_t batch) {
  const int64_t weights = p.out_caps * p.out_dim * std::max<int64_t>(p.in_dim, 1);
  return std::max<int64_t>(in_caps * (batch + 4) * weights / 8, 1);
}

int64_t Columns(const Problem& p) { return p.out_caps * p.out_dim; }

}  // namespace

template <typename T>
ForwardPlan<CpuExec, T> PlanForward(const CpuExec&, const Problem& p) {
  return CpuPlan<ForwardPlan<CpuExec, T>>(
      0,
      [p](const CpuExec& exec, const T* input, const T* weights, T* output,
          void*) -> LaunchError {
        if (p.batch == 0 || p.in_caps == 0 || Columns(p) == 0) return {};
        const CpuKernels<T>& kernels = Selected<T>();
        const int64_t caps = kernels.in_caps_tile(p), rows = kernels.batch_tile(p);
        const int64_t caps_tasks = CeilDivide(p.in_caps, caps);
        const int64_t tasks = caps_tasks * CeilDivide(p.batch, rows);
        return ForTasks(
            exec, "CapsulePrediction", tasks, Cost(p, caps, rows),
            kernels.forward_scratch(p), [&](int64_t task, void* scratch) {
              const int64_t i = task % caps_tasks * caps;
              const int64_t b = task / caps_tasks * rows;
              kernels.forward(
                  p, {i, std::min(i + caps, p.in_caps), b, std::min(b + rows, p.batch)},
                  input, weights, output, scratch);
            });
      });
}

template <typename T>
BackwardPlan<CpuExec, T> PlanBackward(const CpuExec&, const Problem& p) {
  return CpuPlan<BackwardPlan<CpuExec, T>>(
      0,
      [p](const CpuExec& exec, const T* grad, const T* input, const T* weights,
          T* grad_input, T* grad_weights, void*) -> LaunchError {
        if (p.in_caps == 0 || p.in_dim == 0) return {};
        if (p.batch == 0 && Columns(p) == 0) return {};
        const CpuKernels<T>& kernels = Selected<T>();
        return ForRanges(exec, "CapsulePredictionGrad", p.in_caps,
                         2 * Cost(p, 1, p.batch + 1), kernels.backward_scratch(p),
                         [&](int64_t begin, int64_t end, void* scratch) {
                           kernels.backward(p, {begin, end, 0, p.batch}, grad, input,
                                            weights, grad_input, grad_weights, scratch);
                         });
      });
}

CAPSOPS_INSTANTIATE_PATH(CpuExec)

}  // namespace capsops::capsule_prediction
