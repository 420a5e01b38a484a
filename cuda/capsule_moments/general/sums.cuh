// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Kernels for votes of any size that sum over votes, given the shares and the logit
// gradients dz from shares.cuh. A thread computes one element of a result, or one slice
// of its sum, and recomputes the votes from operands in global memory. Slices are added
// in order through shared memory, so results are deterministic.
#pragma once

#include <cstdint>

#include "cuda/capsule_moments/general/shares.cuh"
#include "cuda/capsule_moments/samples.cuh"

namespace capsops::capsule_moments::general {

constexpr int kSlices = 16;  // slices per sum, one per warp

// Calls store(i, sum) for each i < `count`, with the sum of slice(i, s) over s <
// kSlices. Warp s computes slice s, for kLanes consecutive i. Blocks have kLanes *
// kSlices threads.
template <typename S, typename Slice, typename Store>
__device__ void SumSlices(int64_t count, const Slice& slice, const Store& store) {
  __shared__ S sums[kSlices][kLanes];
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  for (int64_t from = int64_t{blockIdx.x} * kLanes; from < count;
       from += int64_t{gridDim.x} * kLanes) {
    const int64_t i = from + lane;
    sums[warp][lane] = i < count ? slice(i, warp) : S{0};
    __syncthreads();
    if (warp == 0 && i < count) {
      S sum = sums[0][lane];
      for (int s = 1; s < kSlices; ++s) sum += sums[s][lane];
      store(i, sum);
    }
    __syncthreads();
  }
}

// Calls visit(capsule, k, u, vote) for each existing child of the parent's window, with
// element `h` of the child's vote and u = vote - center. Both are 0 if votes are empty.
template <typename T, typename Visit, typename S = Statistic<T>>
__device__ void VisitVotes(const Problem& p, const Operands<T>& in, int64_t parent,
                           int64_t h, const Visit& visit) {
  const int64_t outs = p.out_channels, size = VoteSize(p), children = Children(p);
  const int64_t position = parent / outs, o = parent - position * outs;
  const bool any = h < size;
  const S center = any ? At(in.center, parent * size + h) : S{0};
  const int64_t row = any ? h / p.pose_columns : 0;
  const auto* poses = in.poses + row * p.pose_inner;
  const auto* weights = in.weights + (any ? h - row * p.pose_columns : 0);
  const Corner<int64_t> corner(p, position);
  for (int64_t pixel = 0; pixel < children; pixel += p.in_channels) {
    const int64_t first = corner.Child(p, pixel);
    if (first < 0) continue;
    for (int64_t c = 0; c < p.in_channels; ++c) {
      const int64_t capsule = first + c, k = pixel + c;
      S vote = 0;
      if (any) {
        vote = Vote<S>(p, poses + capsule * p.pose_rows * p.pose_inner,
                       weights + (k * outs + o) * p.pose_inner * p.pose_columns);
      }
      visit(capsule, k, vote - center, vote);
    }
  }
}

// Returns the number of threads: one per element of a vote for each parent, and at
// least one per parent.
constexpr int64_t ParentNumbers(const Problem& p) {
  const int64_t size = VoteSize(p);
  return NumWindows(p) * p.out_channels * (size > 0 ? size : 1);
}

// Computes the moments, one thread per element of a parent's moments.
template <typename T, typename S = Statistic<T>>
__global__ void __launch_bounds__(kThreads)
    MomentKernel(Problem p, Operands<T> in, const S* shares, Moments<S> out) {
  const int64_t size = VoteSize(p), outs = p.out_channels, children = Children(p);
  for (int64_t i = FirstItem(); i < ParentNumbers(p); i += ItemStep()) {
    Digits<int64_t> d(i);
    const int64_t h = d.Next(max(size, int64_t{1})), parent = d.rest;
    if (h > 0 && p.order == 0) continue;
    const int64_t position = parent / outs, o = parent - position * outs;
    S mass = 0, first = 0, second = 0;
    VisitVotes(p, in, parent, h, [&](int64_t capsule, int64_t k, S u, S) {
      const S q =
          Activation(in, capsule) * shares[(position * children + k) * outs + o];
      mass += q;
      first += q * u;
      second += q * u * u;
    });
    if (h == 0) out.mass[parent] = mass;
    if (h < size && out.first != nullptr) out.first[i] = first;
    if (h < size && out.second != nullptr) out.second[i] = second;
  }
}

// Computes the gradients of the statistics, one thread per element of a parent's
// statistics. `grad` are the gradients of the moments.
template <typename T, typename S = Statistic<T>>
__global__ void __launch_bounds__(kThreads)
    StatisticKernel(Problem p, Operands<T> in, Moments<const S> grad,
                    Moments<const S> moments, const S* dz, StatisticGradients<S> out) {
  const int64_t size = VoteSize(p), outs = p.out_channels, children = Children(p);
  for (int64_t i = FirstItem(); i < ParentNumbers(p); i += ItemStep()) {
    Digits<int64_t> d(i);
    const int64_t h = d.Next(max(size, int64_t{1})), parent = d.rest;
    const int64_t position = parent / outs, o = parent - position * outs;
    S sum = 0, first = 0, second = 0, votes = 0;
    VisitVotes(p, in, parent, h, [&](int64_t, int64_t k, S u, S vote) {
      const S z = dz[(position * children + k) * outs + o];
      sum += z;
      first += z * u;
      second += z * u * u;
      votes += z * vote;
    });
    if (h == 0 && out.bias != nullptr) out.bias[parent] = sum;
    if (h >= size) continue;
    if (out.linear != nullptr) out.linear[i] = votes;
    if (out.precision != nullptr) out.precision[i] = S{-0.5} * second;
    if (out.center != nullptr) {
      out.center[i] = At(in.precision, i) * first -
                      moments.mass[parent] * At(grad.first, i) -
                      2 * At(moments.first, i) * At(grad.second, i);
    }
  }
}

// Returns the gradient of one element of a vote; `at` is its index in the parents'
// tensors, and `q` is activation * share.
template <typename T, typename S = Statistic<T>>
__device__ S VoteGradient(const Operands<T>& in, const Moments<const S>& grad,
                          int64_t at, S vote, S q, S dz) {
  const S u = vote - At(in.center, at);
  return q * (At(grad.first, at) + 2 * At(grad.second, at) * u) +
         dz * (At(in.linear, at) - At(in.precision, at) * u);
}

// Computes the gradients of poses.
template <typename T, typename S = Statistic<T>>
__global__ void __launch_bounds__(kLanes* kSlices)
    PoseKernel(Problem p, Operands<T> in, Moments<const S> grad, const S* shares,
               const S* dz, CudaType<T>* grad_poses) {
  const int64_t outs = p.out_channels, columns = p.pose_columns, inner = p.pose_inner;
  const int64_t children = Children(p);
  const auto slice = [&](int64_t i, int first) {
    S sum = 0;
    if (columns == 0) return sum;  // votes are empty
    Digits<int64_t> d(i);
    const int64_t q = d.Next(inner), row = d.Next(p.pose_rows), capsule = d.rest;
    const auto* pose = in.poses + i - q;
    const S activation = Activation(in, capsule);
    VisitWindows(p, capsule, [&](int64_t position, int64_t k) {
      // Each slice takes every kSlices-th pair of a parent o and a column r of votes.
      int64_t o = first / columns, r = first - o * columns;
      while (o < outs) {
        const int64_t vote_at = (position * children + k) * outs + o;
        const auto* weights = in.weights + (k * outs + o) * inner * columns;
        const int64_t at = ((position * outs + o) * p.pose_rows + row) * columns + r;
        const S vote = Vote<S>(p, pose, weights + r);
        sum += VoteGradient(in, grad, at, vote, activation * shares[vote_at],
                            dz[vote_at]) *
               Widen(weights[q * columns + r]);
        for (r += kSlices; r >= columns; r -= columns) ++o;
      }
    });
    return sum;
  };
  SumSlices<S>(Capsules(p) * p.pose_rows * inner, slice,
               [&](int64_t i, S sum) { Narrow(sum, grad_poses + i); });
}

// Computes the gradients of weights. `sums` carries them from one slice of the batch to
// the next; the last slice writes `grad_weights`.
template <typename T, typename S = Statistic<T>>
__global__ void __launch_bounds__(kLanes* kSlices)
    WeightKernel(Problem p, Operands<T> in, Moments<const S> grad, const S* shares,
                 const S* dz, bool first, bool last, S* sums,
                 CudaType<T>* grad_weights) {
  const int64_t outs = p.out_channels, columns = p.pose_columns, inner = p.pose_inner;
  const int64_t children = Children(p), positions = NumWindows(p);
  const auto slice = [&](int64_t i, int position_from) {
    Digits<int64_t> d(i);
    const int64_t r = d.Next(columns), q = d.Next(inner), o = d.Next(outs);
    const int64_t k = d.rest;
    const auto* weights = in.weights + i - q * columns;
    S sum = 0;
    for (int64_t position = position_from; position < positions; position += kSlices) {
      const int64_t capsule = ChildOf(p, position, k);
      if (capsule < 0) continue;
      const int64_t vote_at = (position * children + k) * outs + o;
      const S mine = Activation(in, capsule) * shares[vote_at], z = dz[vote_at];
      const auto* pose = in.poses + capsule * p.pose_rows * inner;
      for (int64_t row = 0; row < p.pose_rows; ++row, pose += inner) {
        const int64_t at = ((position * outs + o) * p.pose_rows + row) * columns + r;
        sum += VoteGradient(in, grad, at, Vote<S>(p, pose, weights), mine, z) *
               Widen(pose[q]);
      }
    }
    return sum;
  };
  SumSlices<S>(children * outs * inner * columns, slice, [&](int64_t i, S sum) {
    if (!first) sum += sums[i];
    if (last) {
      Narrow(sum, grad_weights + i);
    } else {
      sums[i] = sum;
    }
  });
}

// Computes the gradient of the prior, and adds it to `grad_prior` unless this is the
// first slice of the batch.
template <typename S>
__global__ void __launch_bounds__(kLanes* kSlices)
    PriorKernel(Problem p, const S* dz, bool first, S* grad_prior) {
  const int64_t count = Children(p) * p.out_channels, positions = NumWindows(p);
  const auto slice = [&](int64_t i, int position_from) {
    S sum = 0;
    for (int64_t position = position_from; position < positions; position += kSlices) {
      sum += dz[position * count + i];
    }
    return sum;
  };
  SumSlices<S>(count, slice, [&](int64_t i, S sum) {
    grad_prior[i] = first ? sum : grad_prior[i] + sum;
  });
}

}  // namespace capsops::capsule_moments::general
