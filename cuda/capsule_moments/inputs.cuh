// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Inputs and helpers of the mma and fma kernels, which do 4 x Q poses with Q x 4
// weights and keep all of a parent's statistics and sums in one thread's registers.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/capsule_moments/window.cuh"
#include "cuda/common/warp.cuh"

namespace capsops::capsule_moments {

constexpr int kThreads = 256;
constexpr int kSide = 4;              // rows of poses, and columns of weights
constexpr int kSize = kSide * kSide;  // numbers of a vote
// Sums of a thread: one scalar, and two for each number of a vote.
constexpr int kSums = 1 + 2 * kSize;

enum class Element { kFloat, kHalf, kBfloat16 };

// Function that maps a logit z to a share.
enum class Rule {
  kSoftmax,  // softmax over the parents of this window
  kGiven,    // exp(z - max) * scale, with {max, scale} of the child
  kLogit,    // z
};

// Inputs of a pass. `poses`, `activations` and `weights` have the type `element`.
struct Inputs {
  Problem p;
  Element element;
  Rule rule;
  int lanes;  // threads of a window, for fma
  const void *poses, *activations, *weights;
  const float *bias, *linear, *precision, *center, *prior;
  // Per capsule, for kGiven: {max, scale}, null where no logits are given so that all
  // shares of a child are equal; and the sums of share dr.
  const float2* scales;
  const float* dots;
};

inline bool HasLogits(const Problem& p) {
  return p.has_bias || p.has_linear || p.has_precision || p.has_prior;
}

template <typename T>
Inputs MakeInputs(const Problem& p, const Operands<T>& from) {
  const Element element = std::is_same_v<T, Float16>    ? Element::kHalf
                          : std::is_same_v<T, BFloat16> ? Element::kBfloat16
                                                        : Element::kFloat;
  const Rule rule = p.normalize == kNone                      ? Rule::kLogit
                    : HasLogits(p) && p.normalize == kParents ? Rule::kSoftmax
                                                              : Rule::kGiven;
  return {p,
          element,
          rule,
          p.out_channels <= kLanes / 2 ? kLanes / 2 : kLanes,
          from.poses,
          from.activations,
          from.weights,
          from.bias,
          from.linear,
          from.precision,
          from.center,
          from.prior,
          nullptr,
          nullptr};
}

struct Gradient {
  const float *mass, *first, *second;
};

// State of a row, that is of one child of one window: its activation, the maximum and
// scale of its softmax, and the sum of share dr. A child outside of the image has
// zeros; an existing child has a nonzero `scale`.
struct RowState {
  float activation, maximum, scale, dot;
};

__device__ inline float At(const float* tensor, int64_t at) {
  return tensor == nullptr ? 0 : tensor[at];
}

template <int N>
__device__ void LoadWords(const float* from, float (&to)[N]) {
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    const float4 word = *reinterpret_cast<const float4*>(from + i);
    to[i] = word.x, to[i + 1] = word.y, to[i + 2] = word.z, to[i + 3] = word.w;
  }
}

template <int N>
__device__ void StoreWords(const float (&from)[N], float* to) {
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    *reinterpret_cast<float4*>(to + i) = {from[i], from[i + 1], from[i + 2],
                                          from[i + 3]};
  }
}

// Loads and stores a row of a pose. Only rows of four numbers are aligned to 16 bytes.
template <int Q>
__device__ void LoadRow(const float* from, float (&to)[Q]) {
  if constexpr (Q == 4) {
    LoadWords(from, to);
  } else {
#pragma unroll
    for (int q = 0; q < Q; ++q) to[q] = from[q];
  }
}
template <int Q>
__device__ void StoreRow(const float (&from)[Q], float* to) {
  if constexpr (Q == 4) {
    StoreWords(from, to);
  } else {
#pragma unroll
    for (int q = 0; q < Q; ++q) to[q] = from[q];
  }
}

// Returns how many windows see a capsule.
__device__ inline int WindowsOf(const Problem& p, int64_t capsule) {
  int count = 0;
  VisitWindows(p, static_cast<int>(capsule), [&](int, int) { ++count; });
  return count;
}

}  // namespace capsops::capsule_moments
