// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Routing by agreement reads little (input, weights) and computes much: every pass over
// the input capsules makes u_hat again, 2 in_dim FLOPs for each of its elements, in
// registers. Capsules of 8 and 16 elements, which is what capsule networks are made of,
// do so on tensor cores (tiled); everything else, and double, in FMA (general).
#include "cc/launch/capsule_routing.h"

#include "cuda/capsule_routing/fma/launch.cuh"
#include "cuda/capsule_routing/mma/launch.cuh"

namespace capsops::capsule_routing {

template <typename T>
int64_t ForwardWorkspace(const GpuExec&, const Problem& p) {
  return tiled::WithPlan<T>(
      p, [](const auto& plan) { return tiled::ForwardWorkspace(plan); },
      [&] { return general::ForwardWorkspace<T>(p); });
}

template <typename T>
int64_t BackwardWorkspace(const GpuExec&, const Problem& p) {
  return tiled::WithGradientsPlan<T>(
      p, [&](const auto& plan) { return tiled::BackwardWorkspace(p, plan); },
      [&] { return general::BackwardWorkspace<T>(p); });
}

template <typename T>
int64_t CoefficientsWorkspace(const GpuExec&, const Problem& p) {
  return tiled::WithPlan<T>(
      p, [](const auto& plan) { return plan.vector_bytes(); },
      [&] { return general::CoefficientsWorkspace<T>(p); });
}

template <typename T>
LaunchError Forward(const GpuExec& exec, const Problem& p, const T* input,
                    const T* weights, const T* logits, T* output, Sum<T>* sums,
                    void* workspace) {
  return tiled::WithPlan<T>(
      p,
      [&](const auto& plan) {
        return tiled::Forward(exec, p, plan, input, weights, logits, output, sums,
                              workspace);
      },
      [&] {
        return general::Forward(exec, p, input, weights, logits, output, sums,
                                workspace);
      });
}

template <typename T>
LaunchError Backward(const GpuExec& exec, const Problem& p, const T* grad,
                     const T* input, const T* weights, const T* logits,
                     const Sum<T>* sums, T* grad_input, T* grad_weights, T* grad_logits,
                     void* workspace) {
  return tiled::WithGradientsPlan<T>(
      p,
      [&](const auto& plan) {
        return tiled::Backward(exec, p, plan, grad, input, weights, logits, sums,
                               grad_input, grad_weights, grad_logits, workspace);
      },
      [&] {
        return general::Backward(exec, p, grad, input, weights, logits, sums,
                                 grad_input, grad_weights, grad_logits, workspace);
      });
}

template <typename T>
LaunchError Coefficients(const GpuExec& exec, const Problem& p, const T* input,
                         const T* weights, const T* logits, const Sum<T>* sums,
                         T* coefficients, void* workspace) {
  return tiled::WithPlan<T>(
      p,
      [&](const auto& plan) {
        return tiled::Coefficients(exec, p, plan, input, weights, logits, sums,
                                   coefficients, workspace);
      },
      [&] {
        return general::Coefficients(exec, p, input, weights, logits, sums,
                                     coefficients, workspace);
      });
}

#define CAPSOPS_INSTANTIATE(T)                                                         \
  template int64_t ForwardWorkspace<T>(const GpuExec&, const Problem&);                \
  template int64_t BackwardWorkspace<T>(const GpuExec&, const Problem&);               \
  template int64_t CoefficientsWorkspace<T>(const GpuExec&, const Problem&);           \
  template LaunchError Forward(const GpuExec&, const Problem&, const T*, const T*,     \
                               const T*, T*, Sum<T>*, void*);                          \
  template LaunchError Backward(const GpuExec&, const Problem&, const T*, const T*,    \
                                const T*, const T*, const Sum<T>*, T*, T*, T*, void*); \
  template LaunchError Coefficients(const GpuExec&, const Problem&, const T*,          \
                                    const T*, const T*, const Sum<T>*, T*, void*);
CAPSOPS_INSTANTIATE(float)
CAPSOPS_INSTANTIATE(double)
CAPSOPS_INSTANTIATE(Float16)
CAPSOPS_INSTANTIATE(BFloat16)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::capsule_routing
