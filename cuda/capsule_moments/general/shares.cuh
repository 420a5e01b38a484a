// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Kernels for problems of any size that compute the shares and the gradients of the
// logits: one value per vote [position, k, o], 0 for children outside of the image.
// A thread handles one vote, or a warp one softmax or capsule, in a grid-stride loop.
// Operands are read from global memory; nothing is staged.
#pragma once

#include <cstdint>

#include "cuda/capsule_moments/window.cuh"
#include "cuda/common/warp.cuh"

namespace capsops::capsule_moments::general {

constexpr int kThreads = 256;

__device__ inline int64_t FirstItem() {
  return int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ inline int64_t ItemStep() { return int64_t{gridDim.x} * blockDim.x; }

__device__ inline float Exp(float x) { return expf(x); }
__device__ inline double Exp(double x) { return exp(x); }

// Returns one element of a vote, given a row of the pose and a column of the weights.
template <typename S, typename N>
__device__ S Vote(const Problem& p, const N* pose, const N* weights) {
  S vote = 0;
  for (int64_t q = 0; q < p.pose_inner; ++q) {
    vote += Widen(pose[q]) * Widen(weights[q * p.pose_columns]);
  }
  return vote;
}

template <typename T>
__device__ Statistic<T> Activation(const Operands<T>& in, int64_t capsule) {
  if (in.activations == nullptr) return 1;
  return Widen(in.activations[capsule]);
}

// Computes the logits and, if `dq` is not null, the gradients of activation * share.
// One thread per vote.
template <typename T, typename S = Statistic<T>>
__global__ void __launch_bounds__(kThreads)
    LogitKernel(Problem p, Operands<T> in, Moments<const S> grad, S* logits, S* dq) {
  const int64_t children = Children(p), outs = p.out_channels, size = VoteSize(p);
  const int64_t count = NumWindows(p) * children * outs;
  // Without these, votes do not count, however many numbers they have.
  const bool votes_count =
      in.linear != nullptr || in.precision != nullptr ||
      (dq != nullptr && (grad.first != nullptr || grad.second != nullptr));
  const int64_t rows = votes_count ? p.pose_rows : 0;
  for (int64_t i = FirstItem(); i < count; i += ItemStep()) {
    Digits<int64_t> d(i);
    const int64_t o = d.Next(outs), k = d.Next(children), position = d.rest;
    const int64_t parent = position * outs + o, capsule = ChildOf(p, position, k);
    S logit = 0, gradient = 0;
    if (capsule >= 0) {
      const auto* pose = in.poses + capsule * p.pose_rows * p.pose_inner;
      const auto* weights = in.weights + (k * outs + o) * p.pose_inner * p.pose_columns;
      logit = At(in.prior, k * outs + o) + At(in.bias, parent);
      if (dq != nullptr) gradient = grad.mass[parent];
      int64_t at = parent * size;
      for (int64_t row = 0; row < rows; ++row, pose += p.pose_inner) {
        for (int64_t column = 0; column < p.pose_columns; ++column, ++at) {
          const S vote = Vote<S>(p, pose, weights + column);
          const S u = vote - At(in.center, at);
          logit += At(in.linear, at) * vote - S{0.5} * At(in.precision, at) * u * u;
          if (dq != nullptr) {
            gradient += At(grad.first, at) * u + At(grad.second, at) * u * u;
          }
        }
      }
    }
    logits[i] = logit;
    if (dq != nullptr) dq[i] = gradient;
  }
}

// A set is the votes that one softmax normalizes: a row [position, k] of `out_channels`
// votes, or for kAll all rows of one capsule. Calls visit(row) for each row of a set;
// all lanes of a warp visit the same rows.
template <typename Visit>
__device__ void VisitSet(const Problem& p, int64_t set, const Visit& visit) {
  const int64_t children = Children(p);
  if (p.normalize == kAll) {
    VisitWindows(p, set,
                 [&](int64_t position, int64_t k) { visit(position * children + k); });
  } else if (ChildOf(p, set / children, set % children) >= 0) {
    visit(set);
  }
}

constexpr int64_t Sets(const Problem& p) {
  return p.normalize == kAll ? Capsules(p) : NumWindows(p) * Children(p);
}

// Replaces logits with shares, one warp per set.
template <typename S>
__global__ void __launch_bounds__(kThreads) SoftmaxKernel(Problem p, S* logits) {
  const int64_t sets = Sets(p), outs = p.out_channels, lane = threadIdx.x % kLanes;
  for (int64_t set = FirstItem() / kLanes; set < sets; set += ItemStep() / kLanes) {
    S maximum = -INFINITY, sum = 0;
    VisitSet(p, set, [&](int64_t row) {
      for (int64_t o = lane; o < outs; o += kLanes) {
        maximum = max(maximum, logits[row * outs + o]);
      }
    });
    maximum = MaxOfWarp(maximum);
    VisitSet(p, set, [&](int64_t row) {
      for (int64_t o = lane; o < outs; o += kLanes) {
        sum += Exp(logits[row * outs + o] - maximum);
      }
    });
    sum = SumOfWarp(sum);
    VisitSet(p, set, [&](int64_t row) {
      for (int64_t o = lane; o < outs; o += kLanes) {
        logits[row * outs + o] = Exp(logits[row * outs + o] - maximum) / sum;
      }
    });
  }
}

// Computes the gradients of activations, one warp per capsule.
template <typename S, typename N>
__global__ void __launch_bounds__(kThreads)
    ActivationKernel(Problem p, const S* shares, const S* dq, N* grad_activations) {
  const int64_t capsules = Capsules(p);
  const int64_t children = Children(p), outs = p.out_channels;
  for (int64_t i = FirstItem() / kLanes; i < capsules; i += ItemStep() / kLanes) {
    S sum = 0;
    VisitWindows(p, i, [&](int64_t position, int64_t k) {
      for (int64_t o = threadIdx.x % kLanes; o < outs; o += kLanes) {
        const int64_t at = (position * children + k) * outs + o;
        sum += shares[at] * dq[at];
      }
    });
    sum = SumOfWarp(sum);
    if (threadIdx.x % kLanes == 0) Narrow(sum, grad_activations + i);
  }
}

// Replaces dq with the gradients dz of the logits, one warp per set.
template <typename T, typename S = Statistic<T>>
__global__ void __launch_bounds__(kThreads)
    LogitGradientKernel(Problem p, Operands<T> in, const S* shares, S* dq) {
  const int64_t sets = Sets(p), children = Children(p), outs = p.out_channels;
  for (int64_t set = FirstItem() / kLanes; set < sets; set += ItemStep() / kLanes) {
    const int64_t capsule =
        p.normalize == kAll ? set : ChildOf(p, set / children, set % children);
    if (capsule < 0) continue;
    const S activation = Activation(in, capsule);
    const auto for_each = [&](const auto& visit) {
      VisitSet(p, set, [&](int64_t row) {
        for (int64_t o = threadIdx.x % kLanes; o < outs; o += kLanes) {
          visit(row * outs + o);
        }
      });
    };
    S mean = 0;
    if (p.normalize != kNone) {
      for_each([&](int64_t at) { mean += shares[at] * dq[at]; });
      mean = SumOfWarp(mean);
    }
    for_each([&](int64_t at) {
      const S dr = activation * (dq[at] - mean);
      dq[at] = p.normalize == kNone ? dr : shares[at] * dr;
    });
  }
}

}  // namespace capsops::capsule_moments::general
