// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The inner loops of capsule routing, for one input capsule and one group of samples.
// Every value is a vector with one sample per lane, except the weights: all samples
// share them, so they keep the tensor's layout and are broadcast to all lanes.
#pragma once

#include <cstdint>

#include "cc/cpu/exp.h"
#include "cc/cpu/lanes.h"
#include "cc/cpu/simd.h"

namespace capsops::capsule_routing::CAPSOPS_ISA {

using namespace capsops::CAPSOPS_ISA;  // NOLINT: this unit's instruction set

constexpr int kDims = kVectorBytes == 64 ? 8 : 4;  // out_dims per register tile

// The value of in_dim: the constant kFixed, so that the compiler unrolls loops over it,
// or `value` if kFixed is 0. The template parameter Depth below is one of these types.
template <int kFixed>
struct InDim {
  int64_t value;
  constexpr operator int64_t() const { return kFixed > 0 ? kFixed : value; }
};

// The parts of `count` tiles that belong to one output capsule of one group, each an
// array of vectors [out_dim]. Tiles are `stride` elements apart.
template <typename A>
struct Tiles {
  const A* data;
  int64_t count, stride;
};

// Calls tile(Constant<n>, d) for register tiles of dimensions [d, d + n) that cover [0,
// dims). n is kDims or, for the remainder, a smaller power of two.
template <int kSize = kDims, typename Tile>
CAPSOPS_INLINE void ForDims(int64_t dims, const Tile& tile, int64_t d = 0) {
  for (; d + kSize <= dims; d += kSize) {
    tile(Constant<kSize>{}, d);
  }
  if constexpr (kSize > 1) ForDims<kSize / 2>(dims, tile, d);
}

// Computes u = weights x for R rows of the weights.
template <typename A, int R, typename Depth>
CAPSOPS_INLINE void Predict(Depth in_dim, const A* weights, const A* x,
                            Vector<A> (&u)[R]) {
  for (int r = 0; r < R; ++r) u[r] = Vector<A>{};
  const int64_t depth = in_dim;
#pragma GCC unroll 8
  for (int64_t k = 0; k < depth; ++k) {
    const Vector<A> xk = Load(x + k * kLanes<A>);
    for (int r = 0; r < R; ++r) u[r] += weights[r * depth + k] * xk;
  }
}

// Computes dots[m] = <u, tile m> for each of the tiles and one output capsule. The dots
// are `dot_stride` elements apart. Stores u to `kept` unless that is null.
template <typename A, typename Depth>
inline void Dots(int64_t out_dim, Depth in_dim, const A* weights, const A* x,
                 const Tiles<A>& tiles, int64_t dot_stride, A* dots, A* kept) {
  for (int64_t m = 0; m < tiles.count; ++m) Store(dots + m * dot_stride, Vector<A>{});
  ForDims(out_dim, [&](auto size, int64_t d) __attribute__((always_inline)) {
    constexpr int R = decltype(size)::value;
    Vector<A> u[R];
    Predict<A, R>(in_dim, weights + d * in_dim, x, u);
    if (kept != nullptr) {
      for (int r = 0; r < R; ++r) Store(kept + (d + r) * kLanes<A>, u[r]);
    }
    for (int64_t m = 0; m < tiles.count; ++m) {
      const A* tile = tiles.data + m * tiles.stride + d * kLanes<A>;
      Vector<A> dot = Load(dots + m * dot_stride);
      for (int r = 0; r < R; ++r) dot += u[r] * Load(tile + r * kLanes<A>);
      Store(dots + m * dot_stride, dot);
    }
  });
}

// Adds coefficient * u of one output capsule to `sum`, or sets `sum` if `first` is
// true.
template <typename A>
inline void Add(int64_t out_dim, bool first, Vector<A> coefficient, const A* u,
                A* sum) {
  if (first) {
    for (int64_t d = 0; d < out_dim * kLanes<A>; d += kLanes<A>) {
      Store(sum + d, coefficient * Load(u + d));
    }
    return;
  }
  for (int64_t d = 0; d < out_dim * kLanes<A>; d += kLanes<A>) {
    Store(sum + d, Load(sum + d) + coefficient * Load(u + d));
  }
}

// Sums coefficient * u of one output capsule over `caps` input capsules, and adds the
// result to `sum`. The weights and coefficients of these input capsules are
// `weights_stride` and `coefficient_stride` elements apart.
template <typename A, typename Depth>
inline void AddPredictions(int64_t out_dim, Depth in_dim, int64_t caps,
                           const A* weights, int64_t weights_stride, const A* x,
                           const A* coefficients, int64_t coefficient_stride, A* sum) {
  ForDims(out_dim, [&](auto size, int64_t d) __attribute__((always_inline)) {
    constexpr int R = decltype(size)::value;
    Vector<A> total[R] = {};
    for (int64_t i = 0; i < caps; ++i) {
      Vector<A> u[R];
      Predict<A, R>(in_dim, weights + i * weights_stride + d * in_dim,
                    x + i * in_dim * kLanes<A>, u);
      const Vector<A> c = Load(coefficients + i * coefficient_stride);
      for (int r = 0; r < R; ++r) total[r] += c * u[r];
    }
    for (int r = 0; r < R; ++r) {
      A* const to = sum + (d + r) * kLanes<A>;
      Store(to, Load(to) + total[r]);
    }
  });
}

// Computes du = the sum of coefficient * tile over the tiles, for one output capsule,
// and adds weights^T du to dx. Coefficients are `coefficient_stride` elements apart.
template <typename A, typename Depth>
inline void Gradients(int64_t out_dim, Depth in_dim, const A* weights,
                      const Tiles<A>& tiles, const A* coefficients,
                      int64_t coefficient_stride, A* du, A* dx) {
  const int64_t depth = in_dim;
  ForDims(out_dim, [&](auto size, int64_t d) __attribute__((always_inline)) {
    constexpr int R = decltype(size)::value;
    Vector<A> grad[R] = {};
    for (int64_t m = 0; m < tiles.count; ++m) {
      const A* tile = tiles.data + m * tiles.stride + d * kLanes<A>;
      const Vector<A> c = Load(coefficients + m * coefficient_stride);
      for (int r = 0; r < R; ++r) grad[r] += c * Load(tile + r * kLanes<A>);
    }
    for (int r = 0; r < R; ++r) Store(du + (d + r) * kLanes<A>, grad[r]);
    const A* w = weights + d * depth;
#pragma GCC unroll 8
    for (int64_t k = 0; k < depth; ++k) {
      // Two sums are faster than one, because each addition waits for the previous one.
      Vector<A> sum[2] = {Load(dx + k * kLanes<A>), Vector<A>{}};
      for (int r = 0; r < R; ++r) sum[r % 2] += w[r * depth + k] * grad[r];
      Store(dx + k * kLanes<A>, sum[0] + sum[1]);
    }
  });
}

// A register tile of the weight gradient has kWeightRows x kWeightColumns = kLanes sums
// over samples.
template <typename A>
constexpr int kWeightColumns = kLanes<A> < 4 ? kLanes<A> : 4;
template <typename A>
constexpr int kWeightRows = kLanes<A> / kWeightColumns<A>;

// Returns sum_b du[b, n] x[b, k] in lane n * kWeightColumns + k, over the samples b of
// `groups` groups. Groups are du_stride elements apart in du, and x_stride in x.
template <typename A>
CAPSOPS_INLINE Vector<A> WeightsTile(int64_t groups, const A* du, int64_t du_stride,
                                     const A* x, int64_t x_stride) {
  constexpr int N = kWeightRows<A>, K = kWeightColumns<A>;
  Vector<A> sums[kLanes<A>] = {};
  for (int64_t g = 0; g < groups; ++g) {
    for (int n = 0; n < N; ++n) {
      const Vector<A> grad = Load(du + g * du_stride + n * kLanes<A>);
      for (int k = 0; k < K; ++k) {
        sums[n * K + k] += grad * Load(x + g * x_stride + k * kLanes<A>);
      }
    }
  }
  return SumLanes<A>(sums);
}

// Returns the sum of term(j) over the output capsules. Sums blocks of terms separately,
// because adding a thousand terms one after the other would lose a digit. Terms after
// the last whole block have their own loop, so that few output capsules cost no more.
template <typename A, typename Term>
CAPSOPS_INLINE Vector<A> SumInBlocks(int64_t out_caps, const Term& term) {
  constexpr int64_t kBlock = 16;
  Vector<A> sum = {}, rest = {};
  int64_t j = 0;
  while (j + kBlock <= out_caps) {
    Vector<A> part = {};
    for (const int64_t end = j + kBlock; j < end; ++j) part += term(j);
    sum += part;
  }
  for (; j < out_caps; ++j) rest += term(j);
  return sum + rest;
}

// Sets b to softmax(logits + b) over the output capsules. If `leaky`, the denominator
// has one more term, exp(0).
template <typename T, typename A>
inline void Softmax(int64_t out_caps, const T* logits, A* b, bool leaky = false) {
  if (out_caps == 0) return;
  Vector<A> max = leaky ? Vector<A>{} : Widen(logits[0]) + Load(b);
  for (int64_t j = 0; j < out_caps; ++j) {
    const Vector<A> bj = Widen(logits[j]) + Load(b + j * kLanes<A>);
    max = bj > max ? bj : max;
    Store(b + j * kLanes<A>, bj);
  }
  Vector<A> sum =
      SumInBlocks<A>(out_caps, [&](int64_t j) __attribute__((always_inline)) {
        const Vector<A> e = Exp<A>(Load(b + j * kLanes<A>) - max);
        Store(b + j * kLanes<A>, e);
        return e;
      });
  if (leaky) sum += Exp<A>(-max);
  const Vector<A> scale = A{1} / sum;
  for (int64_t j = 0; j < out_caps; ++j) {
    Store(b + j * kLanes<A>, scale * Load(b + j * kLanes<A>));
  }
}

// Computes the gradient of a softmax from its result c and the gradient dc of c.
// Replaces c by db = c (dc - sum_j c dc) and dc by c. Also adds db to `logits_grad`
// unless that is null.
template <typename A>
inline void SoftmaxGrad(int64_t out_caps, A* c, A* dc, A* logits_grad) {
  const Vector<A> mean =
      SumInBlocks<A>(out_caps, [&](int64_t j) __attribute__((always_inline)) {
        return Load(c + j * kLanes<A>) * Load(dc + j * kLanes<A>);
      });
  for (int64_t j = 0; j < out_caps * kLanes<A>; j += kLanes<A>) {
    const Vector<A> cj = Load(c + j);
    const Vector<A> grad = cj * (Load(dc + j) - mean);
    if (logits_grad != nullptr) Store(logits_grad + j, Load(logits_grad + j) + grad);
    Store(c + j, grad);
    Store(dc + j, cj);
  }
}

// Sets b to softmax(logits + b) over the output capsules, which are in lanes. Padding
// lanes have a logit of minus infinity.
template <typename A>
inline void SoftmaxInLanes(int64_t caps, const A* logits, A* b) {
  Vector<A> max = Vector<A>{} - A(__builtin_inf());
  for (int64_t j = 0; j < caps; j += kLanes<A>) {
    const Vector<A> bj = Load(logits + j) + Load(b + j);
    max = bj > max ? bj : max;
    Store(b + j, bj);
  }
  max = LargestLane<A>(max);
  Vector<A> sum = {};
  for (int64_t j = 0; j < caps; j += kLanes<A>) {
    const Vector<A> e = Exp<A>(Load(b + j) - max);
    Store(b + j, e);
    sum += e;
  }
  const Vector<A> scale = A{1} / SumOfLanes<A>(sum);
  for (int64_t j = 0; j < caps; j += kLanes<A>) Store(b + j, scale * Load(b + j));
}

// SoftmaxGrad with output capsules in lanes.
template <typename A>
inline void SoftmaxGradInLanes(int64_t caps, A* c, A* dc, A* logits_grad) {
  Vector<A> sum = {};
  for (int64_t j = 0; j < caps; j += kLanes<A>) sum += Load(c + j) * Load(dc + j);
  const Vector<A> mean = SumOfLanes<A>(sum);
  for (int64_t j = 0; j < caps; j += kLanes<A>) {
    const Vector<A> cj = Load(c + j), grad = cj * (Load(dc + j) - mean);
    if (logits_grad != nullptr) Store(logits_grad + j, Load(logits_grad + j) + grad);
    Store(c + j, grad);
    Store(dc + j, cj);
  }
}

}  // namespace capsops::capsule_routing::CAPSOPS_ISA
