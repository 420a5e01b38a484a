// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Sizes and functions that several steps of capsule routing share.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/cpu/capsule_routing.h"
#include "cc/cpu/capsule_routing_tile.h"
#include "cc/cpu/convert.h"
#include "cc/cpu/lanes.h"
#include "cc/cpu/simd.h"

namespace capsops::capsule_routing::CAPSOPS_ISA {

inline int64_t Columns(const Problem& p) { return p.out_caps * p.out_dim; }
inline int64_t Matrix(const Problem& p) { return Columns(p) * p.in_dim; }

// Returns the number of elements of a tile that belong to one group.
template <typename A>
int64_t GroupSize(const Problem& p) {
  return Columns(p) * kLanes<A>;
}

// Returns the number of samples of a group.
template <typename A>
int64_t GroupSamples(const Problem& p, int64_t group) {
  return Min(kLanes<A>, p.batch - group * kLanes<A>);
}

// Returns how many input capsules, at most `most`, have weights that fit in `bytes`
// bytes as type A.
template <typename A>
int64_t Block(const Problem& p, int64_t bytes, int64_t most) {
  const int64_t fit = bytes / Max(Matrix(p) * sizeof(A), 1);
  return Max(Min(Min(fit, most), p.in_caps), 1);
}

// Returns how many elements Widened copies for the weights of `caps` input capsules.
template <typename T>
int64_t WeightsCopy(const Problem& p, int64_t caps) {
  const bool copied = !std::is_same_v<T, Accumulator<T>>;
  return copied ? RoundUp(caps * Matrix(p), kLanes<Accumulator<T>>) : 0;
}

// Loads `caps` input capsules from `i` on, for the samples of a group, as
// [cap][in_dim][lane].
template <typename T, typename A>
void LoadSamples(const Problem& p, const T* input, int64_t group, int64_t i,
                 int64_t caps, A* x) {
  ToLanes(input + (group * kLanes<A> * p.in_caps + i) * p.in_dim, p.in_caps * p.in_dim,
          GroupSamples<A>(p, group), caps * p.in_dim, x);
}

// Computes c of the first iteration, which is the same in all lanes.
template <typename T, typename A>
void FirstCoefficients(const Problem& p, const T* logits, A* c) {
  std::memset(c, 0, p.out_caps * kLanes<A> * sizeof(A));
  Softmax(p.out_caps, logits, c);
}

}  // namespace capsops::capsule_routing::CAPSOPS_ISA
