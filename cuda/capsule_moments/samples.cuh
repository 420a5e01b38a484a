// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Slices a batch into several problems of fewer samples, so that the workspace does not
// grow with the batch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/capsule_moments/window.cuh"

namespace capsops::capsule_moments {

// Calls run(problem, first, last) for every slice, and once for an empty batch.
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

// Gradients of a parent's statistics.
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
    Advance(&from.poses, capsules * p.pose_rows * p.pose_inner);
    Advance(&from.activations, capsules);
    Advance(&from.statistics.bias, parents);
    Advance(&from.statistics.linear, parents * VoteSize(p));
    Advance(&from.statistics.precision, parents * VoteSize(p));
    Advance(&from.statistics.center, parents * VoteSize(p));
    return from;
  }
};

}  // namespace capsops::capsule_moments
