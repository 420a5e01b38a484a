// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Routes votes with one pixel per lane. A task has a range of pixels, and routes a
// vector of pixels at a time. Its arrays of vectors are laid out as
//   [types][parents][out_dim]  votes and their gradients
//   [types][parents]           shares and other numbers of a pair of type and parent
//   [parents][out_dim]         sums and other numbers of a parent
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/cpu/capsule_conv_routing.h"
#include "cc/cpu/capsule_conv_routing_votes.h"
#include "cc/cpu/capsule_routing_squash.h"
#include "cc/cpu/capsule_routing_tile.h"
#include "cc/cpu/convert.h"
#include "cc/cpu/lanes.h"
#include "cc/cpu/simd.h"

namespace capsops::capsule_conv_routing::CAPSOPS_ISA {

using namespace capsops::CAPSOPS_ISA;  // NOLINT: this unit's instruction set
using capsule_routing::CAPSOPS_ISA::Softmax;
using capsule_routing::CAPSOPS_ISA::SoftmaxGrad;
using capsule_routing::CAPSOPS_ISA::Squash;
using capsule_routing::CAPSOPS_ISA::SquashGrad;

// The arrays of a task. Forward routing keeps `sums`, `totals` and `shares` of a single
// iteration, the gradient of all iterations.
template <typename T>
class Pixels {
  using A = Accumulator<T>;

 public:
  Pixels(const Problem& p, bool gradient, void* scratch)
      : p_(p),
        columns_(capsule_conv_routing::Columns(p) * kLanes<A>),
        pairs_(p.types * p.parents * kLanes<A>),
        data_(static_cast<A*>(scratch)) {
    const int64_t kept = gradient ? p.iterations : 1;
    votes = Take(p.types * columns_);
    children = Take(MakesVotes<T>(p) ? p.types * p.in_dim * kLanes<A> : 0);
    sums = Take(kept * columns_);
    totals = Take(kept * columns_);
    shares = Take(kept * pairs_);
    if (!gradient) return;
    share_grads = Take(kept * pairs_);
    output_grads = Take(columns_);
    bias_sums = Take(columns_);
    logits_sums = Take(pairs_);
  }
  int64_t size() const { return size_; }

  // Sets the votes of `pixels` pixels from pixel `first` on: computes them from the
  // image, or loads a convolution's result, [pixels][types][parents][out_dim].
  void SetVotes(int64_t first, int64_t pixels, const T* image, const T* weights,
                const T* from) const {
    if constexpr (std::is_same_v<T, A>) {
      if (MakesVotes<T>(p_)) {
        const int64_t numbers = p_.types * p_.in_dim;
        ToLanes(image + first * numbers, numbers, pixels, numbers, children);
        MakeVotes(p_, children, weights, votes);
        return;
      }
    }
    const int64_t count = p_.types * p_.parents * p_.out_dim;
    ToLanes(from + first * count, count, pixels, count, votes);
  }

  // Stores the shares (coefficients c) of iteration `r`, counted from 0, to `to`.
  void Share(int64_t r, const T* logits, const A* total, A* to) const {
    for (int64_t i = 0; i < p_.types; ++i) {
      A* const row = to + i * p_.parents * kLanes<A>;
      for (int64_t j = 0; j < p_.parents; ++j) {
        Store(row + j * kLanes<A>,
              r == 0 ? Vector<A>{} : Dot(Vote(i, j), total + Parent(j)));
      }
      Softmax(p_.parents, logits + i * p_.parents, row, p_.leaky != 0);
    }
  }

  // Sets `to` to the bias plus the sum of share * vote over types.
  void Sum(const T* bias, const A* share, A* to) const {
    for (int64_t j = 0; j < p_.parents; ++j) {
      A* const s = to + Parent(j);
      for (int64_t d = 0; d < p_.out_dim; ++d) {
        Store(s + d * kLanes<A>, Vector<A>{} + Widen(bias[j * p_.out_dim + d]));
      }
      AddVotes(j, share, s);
    }
  }
  // Adds the sum of coefficient * vote over types to the numbers of one parent.
  void AddVotes(int64_t j, const A* coefficients, A* to) const {
    constexpr int kTogether = 8;
    int64_t d = 0;
    for (; d + kTogether <= p_.out_dim; d += kTogether) {
      AddVotes<kTogether>(j, d, coefficients, to + d * kLanes<A>);
    }
    for (; d < p_.out_dim; ++d) AddVotes<1>(j, d, coefficients, to + d * kLanes<A>);
  }

  // Sets `to` to squash(s), plus `before` unless that is null.
  void SetSquash(const A* s, const A* before, A* to) const {
    for (int64_t j = 0; j < p_.parents; ++j) {
      const int64_t at = Parent(j);
      const Squash<A> squash(p_.out_dim, s + at, p_.epsilon());
      for (int64_t n = at; n < at + p_.out_dim * kLanes<A>; n += kLanes<A>) {
        const Vector<A> v = squash.factor * squash.Along(Load(s + n));
        Store(to + n, before == nullptr ? v : Load(before + n) + v);
      }
    }
  }

  Vector<A> Dot(const A* a, const A* b) const {
    Vector<A> dot = {};
    for (int64_t n = 0; n < p_.out_dim * kLanes<A>; n += kLanes<A>) {
      dot += Load(a + n) * Load(b + n);
    }
    return dot;
  }

  // Return offsets into arrays.
  int64_t Parent(int64_t j) const { return j * p_.out_dim * kLanes<A>; }
  int64_t Pair(int64_t i, int64_t j) const { return (i * p_.parents + j) * kLanes<A>; }
  A* Vote(int64_t i, int64_t j) const { return votes + i * columns_ + Parent(j); }
  int64_t columns() const { return columns_; }
  int64_t pairs() const { return pairs_; }

  A *votes, *children, *sums, *totals, *shares;
  A *share_grads, *output_grads, *bias_sums, *logits_sums;

 private:
  // AddVotes for kCount elements from element `d` on, with the sums in registers.
  template <int kCount>
  CAPSOPS_INLINE void AddVotes(int64_t j, int64_t d, const A* coefficients,
                               A* to) const {
    Vector<A> sums[kCount];
    for (int n = 0; n < kCount; ++n) sums[n] = Load(to + n * kLanes<A>);
    for (int64_t i = 0; i < p_.types; ++i) {
      const Vector<A> c = Load(coefficients + Pair(i, j));
      const A* const vote = Vote(i, j) + d * kLanes<A>;
      for (int n = 0; n < kCount; ++n) sums[n] += c * Load(vote + n * kLanes<A>);
    }
    for (int n = 0; n < kCount; ++n) Store(to + n * kLanes<A>, sums[n]);
  }

  A* Take(int64_t count) {
    A* const at = data_ == nullptr ? nullptr : data_ + size_;
    size_ += count;
    return at;
  }

  const Problem& p_;
  int64_t columns_, pairs_;
  A* data_;
  int64_t size_ = 0;
};

// Implements CpuKernels::scratch.
template <typename T>
int64_t ScratchBytes(const Problem& p, bool gradient) {
  using A = Accumulator<T>;
  return Pixels<T>(p, gradient, nullptr).size() * sizeof(A);
}

// Implements CpuKernels::route.
template <typename T>
void Route(const Problem& p, const Places& places, Range range, const T* image,
           const T* weights, const T* votes, const T* bias, const T* logits, T* output,
           void* scratch) {
  using A = Accumulator<T>;
  Pixels<T> at(p, false, scratch);
  const int64_t columns = Columns(p);
  for (int64_t n = range.begin; n < range.end; n += kLanes<A>) {
    const int64_t pixels = Min(kLanes<A>, range.end - n);
    at.SetVotes(n, pixels, image, weights, votes);
    for (int64_t r = 0; r < p.iterations; ++r) {
      at.Share(r, logits, at.totals, at.shares);
      at.Sum(bias, at.shares, at.sums);
      const bool last = r == p.iterations - 1;
      at.SetSquash(at.sums, r == 0 || last ? nullptr : at.totals, at.totals);
    }
    if (places.contiguous) {
      FromLanes(at.totals, columns, pixels, columns, output + places.At(n) * columns);
      continue;
    }
    T* const rows = reinterpret_cast<T*>(at.sums);
    FromLanes(at.totals, columns, pixels, columns, rows);
    for (int64_t i = 0; i < pixels; ++i) {
      std::memcpy(output + places.At(n + i) * columns, rows + i * columns,
                  columns * sizeof(T));
    }
  }
}

// Adds the sum of the lanes of each of `count` vectors to `to`.
template <typename A>
void AddLanes(const A* from, int64_t count, A* to) {
  for (int64_t n = 0; n < count; ++n) to[n] += Sum<A>(Load(from + n * kLanes<A>));
}

// Adds `count` elements, vector by vector, but only the first `pixels` lanes of each:
// the others hold no pixel.
template <typename A>
void Accumulate(int64_t pixels, const A* from, int64_t count, A* to) {
  for (int64_t n = 0; n < count; n += kLanes<A>) {
    Store(to + n, Load(to + n) + KeepLanes<A>(pixels, Load(from + n)));
  }
}

// Implements CpuKernels::route_backward.
template <typename T>
void RouteBackward(const Problem& p, const Places& places, Range range, const T* image,
                   const T* weights, const T* grad, const T* bias, const T* logits,
                   T* votes, Accumulator<T>* part, void* scratch) {
  using A = Accumulator<T>;
  Pixels<T> at(p, true, scratch);
  const int64_t columns = Columns(p), count = p.types * columns;
  std::memset(at.bias_sums, 0, at.columns() * sizeof(A));
  std::memset(at.logits_sums, 0, at.pairs() * sizeof(A));
  // The arrays of iteration r, counted from 0; totals[r] is V of iteration r + 1.
  const auto sums = [&](int64_t r) { return at.sums + r * at.columns(); };
  const auto totals = [&](int64_t r) { return at.totals + r * at.columns(); };
  const auto shares = [&](int64_t r) { return at.shares + r * at.pairs(); };
  const auto share_grads = [&](int64_t r) { return at.share_grads + r * at.pairs(); };
  for (int64_t n = range.begin; n < range.end; n += kLanes<A>) {
    const int64_t pixels = Min(kLanes<A>, range.end - n);
    at.SetVotes(n, pixels, image, weights, votes);
    for (int64_t r = 0; r < p.iterations; ++r) {
      at.Share(r, logits, r == 0 ? nullptr : totals(r - 1), shares(r));
      at.Sum(bias, shares(r), sums(r));
      at.SetSquash(sums(r), r == 0 ? nullptr : totals(r - 1), totals(r));
    }
    const T* rows = grad + places.At(n) * columns;
    if (!places.contiguous) {
      // The last totals are not needed, so the copy may overwrite them.
      T* const copy = reinterpret_cast<T*>(totals(p.iterations - 1));
      for (int64_t i = 0; i < pixels; ++i) {
        std::memcpy(copy + i * columns, grad + places.At(n + i) * columns,
                    columns * sizeof(T));
      }
      rows = copy;
    }
    ToLanes(rows, columns, pixels, columns, at.output_grads);
    for (int64_t r = p.iterations - 1; r >= 0; --r) {
      for (int64_t j = 0; j < p.parents; ++j) {
        const int64_t parent = at.Parent(j);
        SquashGrad<A>(p.out_dim, p.epsilon(), at.output_grads + parent,
                      sums(r) + parent);
        for (int64_t i = 0; i < p.types; ++i) {
          Store(share_grads(r) + at.Pair(i, j),
                at.Dot(at.Vote(i, j), sums(r) + parent));
        }
      }
      Accumulate(pixels, sums(r), at.columns(), at.bias_sums);
      // This leaves db in `shares`, and the shares in `share_grads`.
      for (int64_t i = 0; i < p.types; ++i) {
        const int64_t row = at.Pair(i, 0);
        SoftmaxGrad<A>(p.parents, shares(r) + row, share_grads(r) + row, nullptr);
      }
      Accumulate(pixels, shares(r), at.pairs(), at.logits_sums);
      if (r == 0) break;
      if (r == p.iterations - 1) {
        std::memset(at.output_grads, 0, at.columns() * sizeof(A));
      }
      for (int64_t j = 0; j < p.parents; ++j) {
        at.AddVotes(j, shares(r), at.output_grads + at.Parent(j));
      }
    }
    for (int64_t i = 0; i < p.types; ++i) {
      for (int64_t j = 0; j < p.parents; ++j) {
        for (int64_t d = 0; d < p.out_dim * kLanes<A>; d += kLanes<A>) {
          const int64_t c = at.Parent(j) + d;
          Vector<A> sum = {};
          for (int64_t r = 0; r < p.iterations; ++r) {
            sum += Load(share_grads(r) + at.Pair(i, j)) * Load(sums(r) + c);
            if (r == 0) continue;
            sum += Load(shares(r) + at.Pair(i, j)) * Load(totals(r - 1) + c);
          }
          Store(at.Vote(i, j) + d, sum);
        }
      }
    }
    FromLanes(at.votes, count, pixels, count, votes + n * count);
  }
  AddLanes(at.bias_sums, columns, part);
  AddLanes(at.logits_sums, p.types * p.parents, part + columns);
}

// Implements CpuKernels::add_parts.
template <typename T>
void AddParts(const Problem& p, int64_t count, const Accumulator<T>* parts,
              T* grad_bias, T* grad_logits) {
  const int64_t columns = Columns(p), size = columns + p.types * p.parents;
  for (int64_t n = 0; n < size; ++n) {
    Accumulator<T> sum = 0;
    for (int64_t part = 0; part < count; ++part) sum += parts[part * size + n];
    Narrow(sum, n < columns ? grad_bias + n : grad_logits + n - columns);
  }
}

}  // namespace capsops::capsule_conv_routing::CAPSOPS_ISA
