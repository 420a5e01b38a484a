// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Computes output capsules from sums over input capsules, and the gradients of the sums
// from the gradients of the output capsules. A task has one output capsule and one
// group of samples, which are in lanes.
#pragma once

#include <cstdint>

#include "cc/cpu/capsule_routing.h"
#include "cc/cpu/capsule_routing_common.h"
#include "cc/cpu/lanes.h"
#include "cc/cpu/simd.h"

namespace capsops::capsule_routing::CAPSOPS_ISA {

// If |s|^2 exceeds kHuge, q or f' below may overflow. In this case the squared length
// is computed from kShrink s, and squash(s) is s / |s|.
template <typename A>
constexpr A kHuge = sizeof(A) == 8 ? A(0x1p640) : A(0x1p80);
template <typename A>
constexpr A kShrink = sizeof(A) == 8 ? A(0x1p-600) : A(0x1p-80);

// Returns |scale s|^2, where s is an array of vectors [out_dim].
template <typename A>
Vector<A> Square(int64_t out_dim, const A* s, A scale) {
  Vector<A> sum = {};
  for (int64_t d = 0; d < out_dim * kLanes<A>; d += kLanes<A>) {
    const Vector<A> x = scale * Load(s + d);
    sum += x * x;
  }
  return sum;
}

// The factors of squash(s) = factor along(s) and of its gradient ds = gain dv + slope
// <along(s), dv> along(s), where along(s) is s or, if s is huge, s / |s|. squash(s) is
// s f(q) with f(q) = q/(1+q)/sqrt(q+epsilon), q = |s|^2. At q = 0, f and f' are set to
// 0: without epsilon f' has no limit there, but f' <s, dv> s has the limit 0.
template <typename A>
struct Squash {
  Vector<A> shrink, unit, factor, gain, slope;

  // `s` is an array of vectors [out_dim].
  Squash(int64_t out_dim, const A* s, A epsilon) {
    const Vector<A> q = Square(out_dim, s, A{1});
    const Vector<A> inverse = A{1} / (A{1} + q), root = SquareRoot<A>(q + epsilon);
    shrink = unit = Vector<A>{} + A{1};
    factor = gain = q == A{0} ? Vector<A>{} : q / (A{1} + q) / root;
    slope = q == A{0} ? Vector<A>{}
                      : inverse / root * (inverse - q / (q + epsilon) * A{0.5}) * A{2};
    const auto huge = q > kHuge<A>;
    if (!AnyLane(huge)) return;
    const Vector<A> small = Square(out_dim, s, kShrink<A>);
    // If s is infinite, small - small is NaN, and so are all results.
    const Vector<A> length =
        SquareRoot<A>(small + epsilon * kShrink<A> * kShrink<A>) + (small - small);
    shrink = huge ? Vector<A>{} + kShrink<A> : shrink;
    unit = huge ? A{1} / length : unit;
    factor = huge ? Vector<A>{} + A{1} : factor;
    gain = huge ? unit * kShrink<A> : gain;
    slope = huge ? -gain : slope;
  }

  Vector<A> Along(Vector<A> s) const { return s * shrink * unit; }
};

// An output capsule of a group of samples: one task.
template <typename A>
struct CapsuleGroup {
  int64_t tile;     // offset of its vectors [out_dim] in a tile
  int64_t row;      // offset of its first sample in [batch, out_caps, out_dim]
  int64_t samples;  // lanes that are not padding

  CapsuleGroup(const Problem& p, int64_t task)
      : tile(task * p.out_dim * kLanes<A>),
        row((task / p.out_caps * kLanes<A> * p.out_caps + task % p.out_caps) *
            p.out_dim),
        samples(GroupSamples<A>(p, task / p.out_caps)) {}
};

// Adds the other partial sums to the first, in order.
template <typename A>
void SumParts(const Problem& p, const Division& d, A* parts) {
  for (int64_t chunk = 1; chunk < d.chunks; ++chunk) {
    const A* const part = parts + chunk * d.tile;
    for (int64_t n = 0; n < p.out_dim * kLanes<A>; n += kLanes<A>) {
      Store(parts + n, Load(parts + n) + Load(part + n));
    }
  }
}

// Implements CpuKernels::finish.
template <typename T>
void Finish(const Problem& p, const Division& d, Range range, bool first,
            Accumulator<T>* parts, Accumulator<T>* totals, Accumulator<T>* sums,
            T* output) {
  using A = Accumulator<T>;
  for (int64_t task = range.begin; task < range.end; ++task) {
    const CapsuleGroup<A> at(p, task);
    A* const s = parts + at.tile;
    SumParts(p, d, s);
    FromLanes(s, p.out_dim, at.samples, Columns(p), sums + at.row);
    const Squash<A> squash(p.out_dim, s, p.epsilon());
    A* const v = output == nullptr ? totals + at.tile : s;
    for (int64_t n = 0; n < p.out_dim * kLanes<A>; n += kLanes<A>) {
      const Vector<A> vn = squash.factor * squash.Along(Load(s + n));
      Store(v + n, first || output != nullptr ? vn : Load(v + n) + vn);
    }
    if (output != nullptr) {
      FromLanes(s, p.out_dim, at.samples, Columns(p), output + at.row);
    }
  }
}

// Implements CpuKernels::advance.
template <typename A>
void Advance(const Problem& p, const Division&, Range range, const A* sums,
             const A* before, A* after) {
  for (int64_t task = range.begin; task < range.end; ++task) {
    const CapsuleGroup<A> at(p, task);
    A* const v = after + at.tile;
    ToLanes(sums + at.row, Columns(p), at.samples, p.out_dim, v);
    const Squash<A> squash(p.out_dim, v, p.epsilon());
    for (int64_t n = 0; n < p.out_dim * kLanes<A>; n += kLanes<A>) {
      const Vector<A> vn = squash.factor * squash.Along(Load(v + n));
      Store(v + n, before == nullptr ? vn : Load(before + at.tile + n) + vn);
    }
  }
}

// Replaces s by its gradient, given the gradient `dv` of squash(s). Both are arrays of
// vectors [out_dim].
template <typename A>
void SquashGrad(int64_t out_dim, A epsilon, const A* dv, A* s) {
  const Squash<A> squash(out_dim, s, epsilon);
  Vector<A> along = {};
  for (int64_t n = 0; n < out_dim * kLanes<A>; n += kLanes<A>) {
    along += squash.Along(Load(s + n)) * Load(dv + n);
  }
  along *= squash.slope;
  for (int64_t n = 0; n < out_dim * kLanes<A>; n += kLanes<A>) {
    Store(s + n, squash.gain * Load(dv + n) + along * squash.Along(Load(s + n)));
  }
}

// Computes the gradient of s, which is in `sums`, from the gradient of squash(s).
template <typename A>
void SquashGrad(const Problem& p, const CapsuleGroup<A>& at, const A* sums,
                const A* output_grads, A* sum_grads) {
  A* const s = sum_grads + at.tile;
  ToLanes(sums + at.row, Columns(p), at.samples, p.out_dim, s);
  SquashGrad<A>(p.out_dim, p.epsilon(), output_grads + at.tile, s);
}

// Implements CpuKernels::start_grad.
template <typename T>
void StartGrad(const Problem& p, const Division&, Range range,
               const Accumulator<T>* sums, const T* grad, Accumulator<T>* output_grads,
               Accumulator<T>* sum_grads) {
  using A = Accumulator<T>;
  for (int64_t task = range.begin; task < range.end; ++task) {
    const CapsuleGroup<A> at(p, task);
    ToLanes(grad + at.row, Columns(p), at.samples, p.out_dim, output_grads + at.tile);
    SquashGrad(p, at, sums, output_grads, sum_grads);
  }
}

// Implements CpuKernels::step_grad.
template <typename A>
void StepGrad(const Problem& p, const Division& d, Range range, bool last_but_one,
              const A* sums, A* parts, A* output_grads, A* sum_grads) {
  for (int64_t task = range.begin; task < range.end; ++task) {
    const CapsuleGroup<A> at(p, task);
    SumParts(p, d, parts + at.tile);
    for (int64_t n = at.tile; n < at.tile + p.out_dim * kLanes<A>; n += kLanes<A>) {
      const Vector<A> sum = KeepLanes<A>(at.samples, Load(parts + n));
      Store(output_grads + n, last_but_one ? sum : Load(output_grads + n) + sum);
    }
    SquashGrad(p, at, sums, output_grads, sum_grads);
  }
}

}  // namespace capsops::capsule_routing::CAPSOPS_ISA
