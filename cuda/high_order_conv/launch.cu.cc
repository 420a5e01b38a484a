// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// High-order convolution is bound by the traffic of filters, kernel_height x
// kernel_width elements for each group of a pixel; docs/high_order_conv.md tells the
// methods.
#include "cc/launch/high_order_conv.h"

#include "cuda/high_order_conv/channels_launch.cuh"
#include "cuda/high_order_conv/general.cuh"
#include "cuda/high_order_conv/pixels.cuh"
#include "cuda/high_order_conv/planes_launch.cuh"
#include "cuda/high_order_conv/quads_launch.cuh"
#include "cuda/high_order_conv/rows_launch.cuh"

namespace capsops::high_order_conv {

template <typename T>
int64_t ForwardWorkspace(const GpuExec& exec, const Problem& p) {
  return 0;
}

template <typename T>
int64_t BackwardWorkspace(const GpuExec& exec, const Problem& p) {
  return 0;
}

template <typename T>
LaunchError Forward(const GpuExec& exec, const Problem& p, const T* input,
                    const T* filters, T* output, void* workspace) {
  LaunchError error;
  if (rows::TryRun<T, false>(exec, p, input, filters, static_cast<const T*>(nullptr),
                             output, static_cast<T*>(nullptr), &error) ||
      quads::TryForward(exec, p, input, filters, output, &error) ||
      planes::TryForward(exec, p, input, filters, output, &error) ||
      channels::TryForward(exec, p, input, filters, output, &error) ||
      pixels::TryForward(exec, p, input, filters, output, &error)) {
    return error;
  }
  return general::Forward(exec, p, input, filters, output);
}

template <typename T>
LaunchError Backward(const GpuExec& exec, const Problem& p, const T* grad,
                     const T* input, const T* filters, T* grad_input, T* grad_filters,
                     void* workspace) {
  LaunchError error;
  if (rows::TryRun<T, true>(exec, p, input, filters, grad, grad_input, grad_filters,
                            &error) ||
      quads::TryBackward(exec, p, grad, input, filters, grad_input, grad_filters,
                         &error) ||
      planes::TryBackward(exec, p, grad, input, filters, grad_input, grad_filters,
                          &error) ||
      channels::TryBackward(exec, p, grad, input, filters, grad_input, grad_filters,
                            &error) ||
      pixels::TryBackward(exec, p, grad, input, filters, grad_input, grad_filters,
                          &error)) {
    return error;
  }
  return general::Backward(exec, p, grad, input, filters, grad_input, grad_filters);
}

#define CAPSOPS_INSTANTIATE(T)                                                         \
  template int64_t ForwardWorkspace<T>(const GpuExec&, const Problem&);                \
  template int64_t BackwardWorkspace<T>(const GpuExec&, const Problem&);               \
  template LaunchError Forward(const GpuExec&, const Problem&, const T*, const T*, T*, \
                               void*);                                                 \
  template LaunchError Backward(const GpuExec&, const Problem&, const T*, const T*,    \
                                const T*, T*, T*, void*);
CAPSOPS_INSTANTIATE(float)
CAPSOPS_INSTANTIATE(double)
CAPSOPS_INSTANTIATE(Float16)
CAPSOPS_INSTANTIATE(BFloat16)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::high_order_conv
