// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule convolution is a matrix product whose operands need not be moved: rows are
// output pixels and pose rows, the contraction is over taps, channels and the poses'
// inner dimension, columns are output channels and pose columns.
#include "cc/launch/capsule_conv.h"

#include "cuda/capsule_conv/fma/launch.cuh"
#include "cuda/capsule_conv/tensor_cores.cuh"
#include "cuda/capsule_conv/mma/weights_launch.cuh"

namespace capsops::capsule_conv {

template <typename T>
int64_t ForwardWorkspace(const GpuExec& exec, const Problem& p) {
  const int64_t bytes = tiled::Workspace<T>(exec, tiled::ForwardTasks(p));
  return bytes >= 0 ? bytes : general::ForwardWorkspace<T>(p);
}

template <typename T>
int64_t BackpropInputWorkspace(const GpuExec& exec, const Problem& p) {
  const int64_t bytes = tiled::Workspace<T>(exec, tiled::InputGradientTasks(p));
  return bytes >= 0 ? bytes : general::BackpropInputWorkspace<T>(p);
}

template <typename T>
int64_t BackpropWeightsWorkspace(const GpuExec& exec, const Problem& p) {
  const int64_t bytes = tiled::WeightsWorkspace<T>(exec, p);
  return bytes >= 0 ? bytes : general::BackpropWeightsWorkspace<T>(p);
}

template <typename T>
LaunchError Forward(const GpuExec& exec, const Problem& p, const T* input,
                    const T* weights, T* output, void* workspace) {
  if constexpr (!std::is_same_v<T, double>) {
    const auto tasks = tiled::ForwardTasks(p);
    if (tiled::Workspace<T>(exec, tasks) >= 0) {
      return tiled::Run(exec, tasks, input, weights, output, workspace);
    }
  }
  return general::Forward(exec, p, input, weights, output, workspace);
}

template <typename T>
LaunchError BackpropInput(const GpuExec& exec, const Problem& p, const T* weights,
                          const T* grad, T* grad_input, void* workspace) {
  if constexpr (!std::is_same_v<T, double>) {
    const auto tasks = tiled::InputGradientTasks(p);
    if (tiled::Workspace<T>(exec, tasks) >= 0) {
      return tiled::Run(exec, tasks, grad, weights, grad_input, workspace);
    }
  }
  return general::BackpropInput(exec, p, weights, grad, grad_input, workspace);
}

template <typename T>
LaunchError BackpropWeights(const GpuExec& exec, const Problem& p, const T* input,
                            const T* grad, T* grad_weights, void* workspace) {
  if constexpr (!std::is_same_v<T, double>) {
    if (tiled::WeightsWorkspace<T>(exec, p) >= 0) {
      return tiled::RunWeights(exec, p, input, grad, grad_weights, workspace);
    }
  }
  return general::BackpropWeights(exec, p, input, grad, grad_weights, workspace);
}

namespace tiled {
CAPSOPS_SHARED_PRODUCTS(template)
}  // namespace tiled

#define CAPSOPS_INSTANTIATE(T)                                                         \
  template int64_t ForwardWorkspace<T>(const GpuExec&, const Problem&);                \
  template int64_t BackpropInputWorkspace<T>(const GpuExec&, const Problem&);          \
  template int64_t BackpropWeightsWorkspace<T>(const GpuExec&, const Problem&);        \
  template LaunchError Forward(const GpuExec&, const Problem&, const T*, const T*, T*, \
                               void*);                                                 \
  template LaunchError BackpropInput(const GpuExec&, const Problem&, const T*,         \
                                     const T*, T*, void*);                             \
  template LaunchError BackpropWeights(const GpuExec&, const Problem&, const T*,       \
                                       const T*, T*, void*);
CAPSOPS_INSTANTIATE(float)
CAPSOPS_INSTANTIATE(double)
CAPSOPS_INSTANTIATE(Float16)
CAPSOPS_INSTANTIATE(BFloat16)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::capsule_conv
