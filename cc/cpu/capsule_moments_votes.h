// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Votes of a group of children in one window, their logits and shares, and sums over
// the group, with one parent per lane.
#pragma once

#include <cstdint>

#include "cc/cpu/capsule_moments_common.h"
#include "cc/cpu/capsule_moments_tile.h"
#include "cc/cpu/exp.h"
#include "cc/cpu/lanes.h"

namespace capsops::capsule_moments::CAPSOPS_ISA {

// The votes of a group: u as [child][vector][pose_rows * pose_columns][lane], the
// others as [child][parent].
template <typename A>
struct Votes {
  A* u;
  A* shares;  // initially the logits
  A* dq;      // null without gradients

  static int64_t Size(const Sizes<A>& s) { return kGroup * (s.votes + 2 * s.parents); }
  Votes(const Sizes<A>& s, bool grads, A* at)
      : u(at),
        shares(u + kGroup * s.votes),
        dq(grads ? shares + kGroup * s.parents : nullptr) {}
};

// Sums of products of statistics and a tile of votes: one sum per column, so that
// additions do not wait for each other.
template <int N, typename A>
struct TileSums {
  Vector<A> of[N] = {};

  CAPSOPS_INLINE Vector<A> Total() const {
    Vector<A> total = of[0];
#pragma GCC unroll 8
    for (int n = 1; n < N; ++n) total += of[n];
    return total;
  }
};

// Computes u, logits and, if that is not null, dq of a child. `outside` is the logit of
// padding lanes.
template <typename A>
void ComputeVote(const Problem& p, const Sizes<A>& s, const WindowData<A>& window,
                 const A* pose, const A* weights, const A* prior, A outside, A* u,
                 A* logits, A* dq) {
  constexpr int64_t L = kLanes<A>;
  const int64_t columns = p.pose_columns * L;  // elements of a row of votes
  for (int64_t v = 0; v < s.vectors; ++v) {
    const A* const w = weights + v * p.pose_inner * columns;
    Vector<A> logit = {}, grad = {};
    if (window.bias != nullptr) logit += Load(window.bias + v * L);
    if (prior != nullptr) logit += Load(prior + v * L);
    if (dq != nullptr) grad += Load(window.grad_mass + v * L);
    ForTiles(
        p.pose_rows, p.pose_columns,
        [&](auto rows, auto cols, int64_t row, int64_t column)
            __attribute__((always_inline)) {
              constexpr int M = decltype(rows)::value, N = decltype(cols)::value;
              Vector<A> tile[M][N] = {};
              AddProduct<false>(p.pose_inner,
                                Matrix<A>{pose + row * p.pose_inner, p.pose_inner, 1},
                                Matrix<A>{w + column * L, columns, L}, tile);
              const int64_t first = v * s.vote * L + row * columns + column * L;
              const auto at = [&](int m, int n) { return first + m * columns + n * L; };
              TileSums<N, A> sums, grads;
              if (window.linear != nullptr) {
#pragma GCC unroll 8
                for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
                  for (int n = 0; n < N; ++n) {
                    sums.of[n] += Load(window.linear + at(m, n)) * tile[m][n];
                  }
                }
              }
              if (window.center != nullptr) {
#pragma GCC unroll 8
                for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
                  for (int n = 0; n < N; ++n) {
                    tile[m][n] -= Load(window.center + at(m, n));
                  }
                }
              }
              if (window.halved != nullptr) {
#pragma GCC unroll 8
                for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
                  for (int n = 0; n < N; ++n) {
                    sums.of[n] +=
                        Load(window.halved + at(m, n)) * (tile[m][n] * tile[m][n]);
                  }
                }
              }
              logit += sums.Total();
#pragma GCC unroll 8
              for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
                for (int n = 0; n < N; ++n) {
                  Store(u + at(m, n), tile[m][n]);
                  if (window.grad_first == nullptr) continue;
                  Vector<A> slope = Load(window.grad_first + at(m, n));
                  if (window.grad_second != nullptr) {
                    slope += Load(window.grad_second + at(m, n)) * tile[m][n];
                  }
                  grads.of[n] += slope * tile[m][n];
                }
              }
              grad += grads.Total();
            });
    if (s.padded && v == s.vectors - 1) {
      const auto bits = [](Vector<A> x) { return (Vector<Integer<A>>)x; };
      logit = (Vector<A>)((bits(logit) & s.present) |
                          (bits(Vector<A>{} + outside) & ~s.present));
    }
    Store(logits + v * L, logit);
    if (dq != nullptr) Store(dq + v * L, s.MaskPadding(v, grad));
  }
}

// Replaces the logits of a child by their softmax over the parents. As in TensorFlow,
// all shares are NaN if the largest logit is infinite.
template <typename A>
void Softmax(const Sizes<A>& s, A* logits) {
  Vector<A> largest = Vector<A>{} - A(__builtin_inf());
  for (int64_t n = 0; n < s.parents; n += kLanes<A>) {
    const Vector<A> logit = Load(logits + n);
    largest = logit > largest ? logit : largest;
  }
  largest = LargestLane<A>(largest);
  Vector<A> sum = {};
  for (int64_t n = 0; n < s.parents; n += kLanes<A>) {
    const Vector<A> e = Exp<A>(Load(logits + n) - largest);
    sum += e;
    Store(logits + n, e);
  }
  const A scale = 1 / SumOfLanes<A>(sum)[0];
  for (int64_t n = 0; n < s.parents; n += kLanes<A>) {
    Store(logits + n, scale * Load(logits + n));
  }
}

// Computes the votes of a group, and shares from their logits unless kLogits is true.
template <bool kLogits, typename A>
CAPSOPS_INLINE void ComputeVotes(const Problem& p, const Sizes<A>& s,
                                 const WindowData<A>& window, const Run<A>& group,
                                 const Normalizers<A>& all, const Votes<A>& to) {
  const A outside = p.normalize == kNone ? A{0} : -A(__builtin_inf());
  for (int64_t g = 0; g < group.count; ++g) {
    A* const shares = to.shares + g * s.parents;
    ComputeVote(p, s, window, group.poses + g * s.pose, group.weights + g * s.matrix,
                group.prior == nullptr ? nullptr : group.prior + g * s.parents, outside,
                to.u + g * s.votes, shares,
                to.dq == nullptr ? nullptr : to.dq + g * s.parents);
    if (kLogits || p.normalize == kNone) continue;
    if (p.normalize == kParents) {
      Softmax(s, shares);
      continue;
    }
    const A largest = all.largest[group.child + g], scale = all.scale[group.child + g];
    for (int64_t n = 0; n < s.parents; n += kLanes<A>) {
      Store(shares + n, scale * Exp<A>(Load(shares + n) - largest));
    }
  }
}

// Sums over children of a factor per parent, of its products with u, and of its
// products with u^2; null if not needed.
template <typename A>
struct Sums {
  A *mass, *first, *second;

  static int64_t Size(const Sizes<A>& s, int64_t order) {
    return s.parents + order * s.votes;
  }
  Sums(const Sizes<A>& s, int64_t order, A* at)
      : mass(at),
        first(order >= 1 ? at + s.parents : nullptr),
        second(order == 2 ? first + s.votes : nullptr) {}
};

// Adds the terms of kChildren children.
template <int kChildren, typename A>
void AddChildren(const Sizes<A>& s, const A* factors, const A* u, const Sums<A>& to) {
  for (int64_t v = 0; v < s.vectors; ++v) {
    Vector<A> factor[kChildren], mass = {};
#pragma GCC unroll 4
    for (int g = 0; g < kChildren; ++g) {
      factor[g] = Load(factors + g * s.parents + v * kLanes<A>);
      mass += factor[g];
    }
    Store(to.mass + v * kLanes<A>, Load(to.mass + v * kLanes<A>) + mass);
    if (to.first == nullptr) continue;
    const int64_t begin = v * s.vote * kLanes<A>, end = begin + s.vote * kLanes<A>;
    for (int64_t at = begin; at < end; at += kLanes<A>) {
      Vector<A> first = {}, second = {};
#pragma GCC unroll 4
      for (int g = 0; g < kChildren; ++g) {
        const Vector<A> centered = Load(u + g * s.votes + at);
        const Vector<A> term = factor[g] * centered;
        first += term;
        second += term * centered;
      }
      Store(to.first + at, Load(to.first + at) + first);
      if (to.second != nullptr) Store(to.second + at, Load(to.second + at) + second);
    }
  }
}

// Adds the terms of all children of a group.
template <typename A>
void AddGroup(const Sizes<A>& s, int64_t count, const A* factors, const A* u,
              const Sums<A>& to) {
  if (count == kGroup) {
    AddChildren<kGroup>(s, factors, u, to);
    return;
  }
  for (int64_t g = 0; g < count; ++g) {
    AddChildren<1>(s, factors + g * s.parents, u + g * s.votes, to);
  }
}

// Returns the activation of a child.
template <typename T>
Statistic<T> Activation(const Operands<T>& in, int64_t child) {
  return in.activations == nullptr ? Statistic<T>{1} : Widen(in.activations[child]);
}

// Replaces the shares of a group by q = activation * share, and its dq by dz. Adds
// sum(share dq) to by_activation of each child unless that is null.
template <typename T, typename A>
void Differentiate(const Problem& p, const Sizes<A>& s, const Operands<T>& in,
                   const Run<A>& group, const Normalizers<A>& all,
                   const Votes<A>& votes, A* by_activation) {
  for (int64_t g = 0; g < group.count; ++g) {
    A* const shares = votes.shares + g * s.parents;
    A* const dq = votes.dq + g * s.parents;
    const A activation = Activation(in, group.child + g);
    Vector<A> sum = {};
    for (int64_t n = 0; n < s.parents; n += kLanes<A>) {
      sum += Load(shares + n) * Load(dq + n);
    }
    const A total = SumOfLanes<A>(sum)[0];
    if (by_activation != nullptr) by_activation[g] += total;
    const A mean = p.normalize == kAll ? all.mean[group.child + g] : activation * total;
    for (int64_t n = 0; n < s.parents; n += kLanes<A>) {
      const Vector<A> share = Load(shares + n), dr = activation * Load(dq + n);
      Store(dq + n, p.normalize == kNone ? dr : share * (dr - mean));
      Store(shares + n, activation * share);
    }
  }
}

}  // namespace capsops::capsule_moments::CAPSOPS_ISA
