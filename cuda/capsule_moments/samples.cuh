// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans that slice a batch into several problems of fewer samples, so that the
// workspace does not grow with the batch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/capsule_moments/window.cuh"

namespace capsops::capsule_moments {

// Calls run(slice, first, last) for every slice of `slice_samples` samples, and once
// for an empty batch. `first` is the index of the slice's first sample, and `last`
// tells whether the slice is the last one.
template <typename Run>
LaunchError ForEachSlice(const Problem& p, int64_t slice_samples, const Run& run) {
  for (int64_t first = 0;; first += slice_samples) {
    Problem part = p;
    part.batch = std::min(slice_samples, p.batch - first);
    const bool last = first + slice_samples >= p.batch;
    const LaunchError error = run(part, first, last);
    if (!error.empty() || last) return error;
  }
}

// Gradients of the parents' statistics.
template <typename S>
struct StatisticGradients {
  S *bias, *linear, *precision, *center;
};

// Results of the backward plan. Absent tensors are null.
template <typename T>
struct Gradients {
  using S = Statistic<T>;
  CudaType<T>*poses, *activations, *weights;
  StatisticGradients<S> statistics;
  S* prior;

  Gradients(const Problem& p, T* poses, T* activations, T* weights, S* bias, S* linear,
            S* precision, S* center, S* prior)
      : poses(Native(poses)),
        activations(p.has_activations ? Native(activations) : nullptr),
        weights(Native(weights)),
        statistics{p.has_bias ? bias : nullptr, p.has_linear ? linear : nullptr,
                   p.has_precision ? precision : nullptr,
                   p.has_center ? center : nullptr},
        prior(p.has_prior ? prior : nullptr) {}

  // Returns the results from sample `sample` on.
  Gradients From(const Problem& p, int64_t sample) const {
    Gradients from = *this;
    const int64_t capsules = sample * p.in_height * p.in_width * p.in_channels;
    const int64_t parents = sample * p.out_height * p.out_width * p.out_channels;
    StatisticGradients<S>& s = from.statistics;
    Advance(capsules * p.pose_rows * p.pose_inner, &from.poses);
    Advance(capsules, &from.activations);
    Advance(parents, &s.bias);
    Advance(parents * VoteSize(p), &s.linear, &s.precision, &s.center);
    return from;
  }
};

// Makes a plan that calls run(exec, part, in, out, workspace) for each slice of
// `samples` samples, with the operands and the moments of that slice.
template <typename T, typename Run, typename S = Statistic<T>>
ForwardPlan<GpuExec, T> PlanSlices(const Problem& p, int64_t samples, int64_t bytes,
                                   const Run& run) {
  return ForwardPlan<GpuExec, T>::Make(
      bytes,
      [=](const GpuExec& exec, const T* poses, const T* activations, const T* weights,
          const S* bias, const S* linear, const S* precision, const S* center,
          const S* prior, S* mass, S* first, S* second, void* workspace) {
        const Operands<T> in(p, poses, activations, weights, bias, linear, precision,
                             center, prior);
        const Moments<S> out(p, mass, first, second);
        return ForEachSlice(p, samples, [&](const Problem& part, int64_t from, bool) {
          return run(exec, part, in.From(p, from), out.From(p, from), workspace);
        });
      });
}

// Makes a plan that calls run(exec, part, first, last, in, grad, moments, out,
// workspace) for each slice, and at the end finish(exec, out, workspace). `grad` are
// the gradients of the moments; `first` and `last` tell whether the slice is the
// batch's first or last.
template <typename T, typename Run, typename Finish, typename S = Statistic<T>>
BackwardPlan<GpuExec, T> PlanGradientSlices(const Problem& p, int64_t samples,
                                            int64_t bytes, const Run& run,
                                            const Finish& finish) {
  return BackwardPlan<GpuExec, T>::Make(
      bytes,
      [=](const GpuExec& exec, const S* grad_mass, const S* grad_first,
          const S* grad_second, const T* poses, const T* activations, const T* weights,
          const S* bias, const S* linear, const S* precision, const S* center,
          const S* prior, const S* mass, const S* first, T* grad_poses,
          T* grad_activations, T* grad_weights, S* grad_bias, S* grad_linear,
          S* grad_precision, S* grad_center, S* grad_prior,
          void* workspace) -> LaunchError {
        const Operands<T> in(p, poses, activations, weights, bias, linear, precision,
                             center, prior);
        const Moments<const S> grad(p, grad_mass, grad_first, grad_second);
        const Moments<const S> moments(p, mass, first, nullptr);
        const Gradients<T> out(p, grad_poses, grad_activations, grad_weights, grad_bias,
                               grad_linear, grad_precision, grad_center, grad_prior);
        CAPSOPS_RETURN_IF_ERROR(
            ForEachSlice(p, samples, [&](const Problem& part, int64_t from, bool last) {
              return run(exec, part, from == 0, last, in.From(p, from),
                         grad.From(p, from), moments.From(p, from), out.From(p, from),
                         workspace);
            }));
        return finish(exec, out, workspace);
      });
}

}  // namespace capsops::capsule_moments
