// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Divides high-order convolution among threads, by rows. How it is divided never
// changes a result: no sum crosses a row.
#include "cc/cpu/high_order_conv.h"

#include "cc/cpu/dispatch/isa.h"

namespace capsops::high_order_conv {
namespace {

template <typename T>
const CpuKernels<T>& Selected() {
  static const CpuKernels<T> kernels = CAPSOPS_SELECT(Kernels<T>());
  return kernels;
}

// Cycles of a row, roughly.
int64_t Cost(const Problem& p) {
  const int64_t depth = p.groups * p.kernel_height * p.kernel_width;
  return p.width * depth * (p.channels / p.groups + 1) + 1;
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
  exec.parallel_for(p.batch * p.height, Cost(p), [&](int64_t begin, int64_t end) {
    Selected<T>().forward(p, begin, end, input, filters, output);
  });
  return {};
}

template <typename T>
LaunchError Backward(const CpuExec& exec, const Problem& p, const T* grad,
                     const T* input, const T* filters, T* grad_input, T* grad_filters,
                     void*) {
  exec.parallel_for(p.batch * p.height, 2 * Cost(p), [&](int64_t begin, int64_t end) {
    Selected<T>().backward(p, begin, end, grad, input, filters, grad_input,
                           grad_filters);
  });
  return {};
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
