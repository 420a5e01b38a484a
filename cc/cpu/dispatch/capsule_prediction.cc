// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Divides capsule prediction among threads. How it is divided never changes a
// result: no sum crosses a task.
#include "cc/cpu/capsule_prediction.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "cc/cpu/dispatch/isa.h"
#include "cc/cpu/dispatch/scratch.h"

namespace capsops::capsule_prediction {
namespace {

template <typename T>
const CpuKernels<T>& Selected() {
  static const CpuKernels<T> kernels = CAPSOPS_SELECT(Kernels<T>());
  return kernels;
}

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Cycles of a task, roughly: one multiply-add per lane of eight.
int64_t Cost(const Problem& p, int64_t in_caps, int64_t batch) {
  return std::max<int64_t>(
      in_caps * batch * p.out_caps * p.out_dim * std::max<int64_t>(p.in_dim, 1) / 8, 1);
}

int64_t Columns(const Problem& p) { return p.out_caps * p.out_dim; }

LaunchError OutOfMemory(const char* op) {
  return std::string(op) + ": no memory for the working space of a thread";
}

}  // namespace

template <typename T>
LaunchError Forward(const CpuExec& exec, const Problem& p, const T* input,
                    const T* weights, T* output) {
  if (p.batch == 0 || p.in_caps == 0 || Columns(p) == 0) return {};
  const CpuKernels<T>& kernels = Selected<T>();
  const int64_t caps = kernels.in_caps_tile(p), rows = kernels.batch_tile(p);
  const int64_t caps_tasks = CeilDivide(p.in_caps, caps);
  const int64_t tasks = caps_tasks * CeilDivide(p.batch, rows);
  std::atomic<bool> out_of_memory = false;
  exec.parallel_for(tasks, Cost(p, caps, rows), [&](int64_t begin, int64_t end) {
    const Scratch scratch(kernels.forward_scratch(p));
    if (scratch.data() == nullptr) {
      out_of_memory = true;
      return;
    }
    for (int64_t task = begin; task < end; ++task) {
      const int64_t i = task % caps_tasks * caps, b = task / caps_tasks * rows;
      kernels.forward(
          p, {i, std::min(i + caps, p.in_caps), b, std::min(b + rows, p.batch)}, input,
          weights, output, scratch.data());
    }
  });
  if (out_of_memory) return OutOfMemory("CapsulePrediction");
  return {};
}

template <typename T>
LaunchError Backward(const CpuExec& exec, const Problem& p, const T* grad,
                     const T* input, const T* weights, T* grad_input, T* grad_weights) {
  if (p.in_caps == 0 || p.in_dim == 0 || (p.batch == 0 && Columns(p) == 0)) return {};
  const CpuKernels<T>& kernels = Selected<T>();
  std::atomic<bool> out_of_memory = false;
  const auto body = [&](int64_t begin, int64_t end) {
    const Scratch scratch(kernels.backward_scratch(p));
    if (scratch.data() == nullptr) {
      out_of_memory = true;
      return;
    }
    kernels.backward(p, {begin, end, 0, p.batch}, grad, input, weights, grad_input,
                     grad_weights, scratch.data());
  };
  exec.parallel_for(p.in_caps, 2 * Cost(p, 1, p.batch + 1), body);
  if (out_of_memory) return OutOfMemory("CapsulePredictionGrad");
  return {};
}

#define CAPSOPS_INSTANTIATE(T)                                                      \
  template LaunchError Forward(const CpuExec&, const Problem&, const T*, const T*,  \
                               T*);                                                 \
  template LaunchError Backward(const CpuExec&, const Problem&, const T*, const T*, \
                                const T*, T*, T*);
CAPSOPS_INSTANTIATE(float)
CAPSOPS_INSTANTIATE(double)
CAPSOPS_INSTANTIATE(Float16)
CAPSOPS_INSTANTIATE(BFloat16)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::capsule_prediction
