// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Parameters of the kernels, which multiply 4 x Q poses by Q x 4 weights and keep all
// of a parent's statistics and sums in one thread's registers.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/capsule_moments/window.cuh"
#include "cuda/common/warp.cuh"

namespace capsops::capsule_moments::mma {

constexpr int kThreads = 256;
constexpr int kSide = 4;              // rows of poses, and columns of weights
constexpr int kSize = kSide * kSide;  // elements of a vote
// Sums of a thread: one scalar, and two for each element of a vote.
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
  const void *poses, *activations, *weights;
  const float *bias, *linear, *precision, *center, *prior;
  // For kGiven, per capsule: {max, scale}, and the sums of share dr. Without logits,
  // when all shares of a child are equal, both are null.
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
  return {p,           element,          rule,
          from.poses,  from.activations, from.weights,
          from.bias,   from.linear,      from.precision,
          from.center, from.prior,       nullptr,
          nullptr};
}

// Gradients of the moments, or null.
struct Gradient {
  const float *mass, *first, *second;
};

// State of a row, that is of one child of one window: its activation, the maximum and
// scale of its softmax, and the sum of share dr. All are zero for a child outside of
// the image; an existing child has a nonzero `scale`.
struct RowState {
  float activation, maximum, scale, dot;
};

// Outputs of a pass, null if not wanted. If `scales` is not null, a pass writes only
// `scales` and `dots`. `partial` is [Division::Slots()][kSums][kThreads].
struct Results {
  bool gradients;
  float *mass, *first, *second;
  float *bias, *linear, *precision, *center;  // set if `gradients`
  const float *given_mass, *given_first;      // moments, which `center` depends on
  float2* scales;      // {max, scale} of the logits of each row [position, k]
  float* dots;         // sum of share dr over each row
  float* activations;  // sum of share dq over each row
  float* poses;        // pose gradient per row
  float* weights;      // WeightSums of each block
  bool overwrite;      // whether `weights` start at zero
  float* partial;
  int* added;  // per slot of `partial` and warp: the number of ranges added so far
};

// Computes and stores elements h to h + 3 of a parent's results, given its sums; with
// h = 0 also the scalar result. `gradients` is out.gradients.
__device__ inline void Finish(const Inputs& in, const Gradient& grad,
                              const Results& out, bool gradients, int64_t parent, int h,
                              float sum, const float (&first)[4],
                              const float (&second)[4]) {
  const int64_t from = parent * kSize + h;
  const auto write = [&](float* to, const auto& number) {
    if (to == nullptr) return;
    *reinterpret_cast<float4*>(to + from) = {number(0), number(1), number(2),
                                             number(3)};
  };
  float* const mass = gradients ? out.bias : out.mass;
  if (h == 0 && mass != nullptr) mass[parent] = sum;
  if (gradients) {
    write(out.linear, [&](int e) { return first[e] + At(in.center, from + e) * sum; });
    write(out.precision, [&](int e) { return -0.5f * second[e]; });
    write(out.center, [&](int e) {
      return At(in.precision, from + e) * first[e] -
             out.given_mass[parent] * At(grad.first, from + e) -
             2 * At(out.given_first, from + e) * At(grad.second, from + e);
    });
  } else {
    write(out.first, [&](int e) { return first[e]; });
    write(out.second, [&](int e) { return second[e]; });
  }
}

// Calls visit(N{}) with the elements' type N.
template <typename Visit>
__device__ void WithElements(Element element, const Visit& visit) {
  if (element == Element::kFloat) {
    visit(0.0f);
  } else if (element == Element::kHalf) {
    visit(__half{});
  } else {
    visit(__nv_bfloat16{});
  }
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

// Load and store a row of a pose. Only rows of four elements are aligned to 16 bytes.
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

}  // namespace capsops::capsule_moments::mma
