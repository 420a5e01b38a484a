// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule routing for small batches. With samples in lanes, most lanes would be idle.
// Instead, lanes are neighboring elements of the weights while u_hat is computed, then
// output dimensions in sums, and output capsules in a softmax. Each task has all
// samples and some input capsules, kSmallBatchCaps (a group) at a time.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/cpu/capsule_routing.h"
#include "cc/cpu/capsule_routing_common.h"
#include "cc/cpu/capsule_routing_tile.h"
#include "cc/cpu/lanes.h"
#include "cc/cpu/simd.h"

namespace capsops::capsule_routing::CAPSOPS_ISA {

constexpr int64_t kSmallBatchScratchBytes = 1 << 20;  // most scratch per task
constexpr int64_t kSmallBatchCaps = 4;                // input capsules per group
constexpr int64_t kSmallBatchFlushedCaps = 16;        // input capsules per partial sum
constexpr int64_t kSmallBatchGradCaps = 32;           // most input capsules per task

// Sizes of arrays, and the offset in elements of each array in the scratch for `count`
// tiles. A block has kLanes output dimensions of an output capsule. in_dim is divided
// into `parts` parts of `depth` elements, padded with zeros; a block has `depth`
// vectors of weights per part. A row has one element per output dimension of all
// blocks. Weights whose tensor already has this layout are not copied.
template <typename T>
struct SmallBatchLayout {
  using A = Accumulator<T>;
  static constexpr int64_t kL = kLanes<A>;
  int64_t depth, parts, blocks, row, caps;
  bool in_place;
  int64_t x, tiles, sums, weights, weights_grad, u, logits, logits_grad, first, dots,
      size;

  SmallBatchLayout(const Problem& p, int64_t count)
      : depth(p.in_dim > 8   ? 16
              : p.in_dim > 4 ? 8
                             : 4),
        parts(CeilDivide(p.in_dim, depth)),
        blocks(p.out_caps * CeilDivide(p.out_dim, kL)),
        row(blocks * kL),
        caps(RoundUp(p.out_caps, kL)),
        in_place(std::is_same_v<T, A> && p.in_dim == depth && p.out_dim % kL == 0) {
    const int64_t copy = in_place ? 0 : parts * depth * row;
    x = 0;
    tiles = x + kSmallBatchCaps * p.batch * parts * RoundUp(depth, kL);
    sums = tiles + count * p.batch * row;
    weights = sums + p.batch * row;
    weights_grad = weights + kSmallBatchCaps * copy;
    u = weights_grad + copy;
    logits = u + kSmallBatchCaps * p.batch * row;
    logits_grad = logits + kSmallBatchCaps * caps;
    first = logits_grad + caps;
    dots = first + kSmallBatchCaps * caps;
    size = dots + kSmallBatchCaps * p.batch * (count + 1) * caps;
  }
};

// Returns whether the batch is so small that this code is faster than the code with
// samples in lanes, and whether its scratch fits into the L2 cache.
template <typename T>
bool IsSmallBatch(const Problem& p) {
  using A = Accumulator<T>;
  if (p.batch == 0 || p.batch * 3 > kLanes<A>) return false;
  // The sizes of an empty tensor may have products that overflow an int64_t.
  if (p.in_caps == 0 || p.in_dim == 0 || Columns(p) == 0) return false;
  return SmallBatchLayout<T>(p, 2 * p.iterations - 1).size * int64_t{sizeof(A)} <=
         kSmallBatchScratchBytes;
}

// The work of one task, which has all samples. kDepth is the layout's `depth`.
template <typename T, int kDepth>
class SmallBatchWork {
  using A = Accumulator<T>;
  static constexpr int64_t kL = kLanes<A>;
  // The vectors of one part of an input, which is repeated if shorter than a vector.
  static constexpr int kPeriod = kDepth > kL ? kDepth / kL : 1;
  static constexpr int64_t kPrefetchDistance = (8 << 10) / sizeof(A);  // in elements

 public:
  SmallBatchWork(const Problem& p, int64_t count, void* scratch)
      : p_(p),
        at_(p, count),
        count_(count),
        numbers_(static_cast<A*>(scratch)),
        u_(numbers_ + at_.u) {
    // Clears the padding and the sums.
    std::memset(numbers_, 0, at_.weights_grad * sizeof(A));
    for (int64_t c = 0; c < kSmallBatchCaps; ++c) {
      for (int64_t j = p.out_caps; j < at_.caps; ++j)
        logits(c)[j] = -A(__builtin_inf());
    }
  }

  // Copies tile m, transposed from samples to output dimensions in lanes.
  void Take(int64_t m, const A* tile) {
    for (int64_t s = 0; s < p_.batch; ++s) {
      for (int64_t j = 0; j < p_.out_caps; ++j) {
        A* const to = this->tile(m, s) + j * CapsuleStride();
        for (int64_t d = 0; d < p_.out_dim; ++d) {
          to[d] = tile[(j * p_.out_dim + d) * kL + s];
        }
      }
    }
  }

  // Starts a group of `caps` input capsules from i on. Their u_hat is in `u_hat`, which
  // is for all input capsules, or in the scratch if that is null.
  void StartGroup(int64_t i, int64_t caps, const T* logits, A* u_hat = nullptr) {
    u_ = u_hat == nullptr ? numbers_ + at_.u : u_hat + i * p_.batch * at_.row;
    for (int64_t c = 0; c < caps; ++c) {
      for (int64_t j = 0; j < p_.out_caps; ++j) {
        this->logits(c)[j] = Widen(logits[(i + c) * p_.out_caps + j]);
      }
    }
  }

  // Computes u_hat of the group, whose weights are `weights`, for all samples.
  void ComputeUHat(int64_t i, int64_t caps, const T* input, const T* weights) {
    for (int64_t c = 0; c < caps; ++c) {
      for (int64_t s = 0; s < p_.batch; ++s) {
        Repeat(input + (s * p_.in_caps + i + c) * p_.in_dim, x(c, s));
      }
      weights_[c] = Weights(c, weights + c * Matrix(p_));
    }
    for (int64_t c = 0; c < caps; ++c) {
      for (int64_t s = 0; s < p_.batch; ++s) {
        for (int64_t block = 0; block < at_.blocks; ++block) {
          const A* w = weights_[c] + block * at_.parts * kDepth * kL;
          Vector<A> terms[kDepth] = {};
          for (int64_t part = 0; part < at_.parts; ++part, w += kDepth * kL) {
            Vector<A> xs[kPeriod];
            LoadInput(c, s, part, xs);
            for (int n = 0; n < kDepth; ++n) {
              __builtin_prefetch(w + n * kL + kPrefetchDistance);
              terms[n] += Load(w + n * kL) * xs[n % kPeriod];
            }
          }
          Store(u(c, s) + block * kL, SumAdjacent<A>(terms));
        }
      }
    }
  }

  // Computes the coefficients of the group, which GroupCoefficients returns: c of the
  // first iteration without tiles, c with one tile (V), and db with two (V and ds).
  void ComputeCoefficients(int64_t caps) {
    for (int64_t c = 0; c < caps; ++c) {
      if (count_ == 0) FirstCoefficients(c);
      for (int64_t s = 0; s < p_.batch && count_ > 0; ++s) Dots(c, s);
    }
    for (int64_t c = 0; c < caps; ++c) {
      for (int64_t s = 0; s < p_.batch && count_ > 0; ++s) {
        SoftmaxInLanes(at_.caps, logits(c), dots(c, s, 1));
        if (count_ == 2) {
          SoftmaxGradInLanes<A>(at_.caps, dots(c, s, 1), dots(c, s, 2), nullptr);
        }
      }
    }
  }
  const A* GroupCoefficients(int64_t c, int64_t s) const {
    return count_ == 0 ? first(c) : dots(c, s, 1);
  }

  // Adds coefficients times u_hat of the group to the sums.
  void Add(int64_t caps) {
    const int64_t each = CapsuleStride();
    for (int64_t s = 0; s < p_.batch; ++s) {
      A* const sums = numbers_ + at_.sums + s * at_.row;
      for (int64_t c = 0; c < caps; ++c) {
        const A *const b = GroupCoefficients(c, s), *const terms = u(c, s);
        for (int64_t j = 0; j < p_.out_caps; ++j) {
          const Vector<A> factor = Vector<A>{} + b[j];
          for (int64_t n = j * each; n < (j + 1) * each; n += kL) {
            Store(sums + n, Load(sums + n) + factor * Load(terms + n));
          }
        }
      }
    }
  }

  // Adds the sums to `part`, which has samples in lanes, and clears them.
  void Flush(A* part) {
    for (int64_t s = 0; s < p_.batch; ++s) {
      A* const sums = numbers_ + at_.sums + s * at_.row;
      for (int64_t j = 0; j < p_.out_caps; ++j) {
        for (int64_t d = 0; d < p_.out_dim; ++d) {
          part[(j * p_.out_dim + d) * kL + s] += sums[j * CapsuleStride() + d];
        }
      }
      std::memset(sums, 0, at_.row * sizeof(A));
    }
  }

  // Computes the gradients of input capsule i, which has index c in the group, and of
  // its weights and logits. The tiles are V_2, V_3, ..., and then ds_1, ds_2, ...
  void Differentiate(int64_t i, int64_t c, T* grad_input, T* grad_weights,
                     T* grad_logits) {
    A* const logits_grad = numbers_ + at_.logits_grad;
    std::memset(logits_grad, 0, at_.caps * sizeof(A));
    FirstCoefficients(c);
    T* const to = grad_weights + i * Matrix(p_);
    A* const dw = WeightsGrad(to);
    for (int64_t s = 0; s < p_.batch; ++s) {
      Dots(c, s);
      std::memcpy(dots(c, s, 0), first(c), at_.caps * sizeof(A));
      for (int64_t r = 0; r < p_.iterations; ++r) {
        if (r > 0) SoftmaxInLanes(at_.caps, logits(c), dots(c, s, r));
        SoftmaxGradInLanes(at_.caps, dots(c, s, r), dots(c, s, r + p_.iterations),
                           logits_grad);
      }
      AddGradients(c, s, grad_input + (s * p_.in_caps + i) * p_.in_dim, dw);
    }
    for (int64_t j = 0; j < p_.out_caps; ++j) {
      Narrow(logits_grad[j], grad_logits + i * p_.out_caps + j);
    }
    if (static_cast<const void*>(dw) != to) {
      ForRuns([&](int64_t from, int64_t at, int64_t count) {
        for (int64_t k = 0; k < count; ++k) Narrow(dw[from + k], to + at + k);
      });
    }
  }

 private:
  int64_t CapsuleStride() const { return at_.row / p_.out_caps; }  // in a row
  A* x(int64_t c, int64_t s) const {
    return numbers_ + at_.x + (c * p_.batch + s) * at_.parts * kPeriod * kL;
  }
  A* u(int64_t c, int64_t s) const { return u_ + (c * p_.batch + s) * at_.row; }
  A* tile(int64_t m, int64_t s) const {
    return numbers_ + at_.tiles + (m * p_.batch + s) * at_.row;
  }
  A* logits(int64_t c) const { return numbers_ + at_.logits + c * at_.caps; }
  A* first(int64_t c) const { return numbers_ + at_.first + c * at_.caps; }
  A* dots(int64_t c, int64_t s, int64_t m) const {
    return numbers_ + at_.dots + ((c * p_.batch + s) * (count_ + 1) + m) * at_.caps;
  }

  CAPSOPS_INLINE void LoadInput(int64_t c, int64_t s, int64_t part,
                                Vector<A> (&xs)[kPeriod]) const {
    for (int n = 0; n < kPeriod; ++n) xs[n] = Load(x(c, s) + (part * kPeriod + n) * kL);
  }

  // Stores each part of an input capsule, repeated to fill its vectors.
  void Repeat(const T* from, A* to) const {
    for (int64_t k = 0; k < p_.in_dim; ++k) {
      A* const first = to + k / kDepth * kPeriod * kL + k % kDepth;
      for (int64_t n = 0; n < kPeriod * kL; n += kDepth) first[n] = Widen(from[k]);
    }
  }

  // Calls run(from, to, count) for each contiguous run of weights, with its offset in
  // blocks and in the tensor.
  template <typename Run>
  void ForRuns(const Run& run) const {
    for (int64_t j = 0; j < p_.out_caps; ++j) {
      for (int64_t d = 0; d < p_.out_dim; ++d) {
        const int64_t block = (j * CapsuleStride() + d) / kL;
        for (int64_t part = 0; part < at_.parts; ++part) {
          run(((block * at_.parts + part) * kL + d % kL) * kDepth,
              (j * p_.out_dim + d) * p_.in_dim + part * kDepth,
              Min(p_.in_dim - part * kDepth, kDepth));
        }
      }
    }
  }

  // Returns the weights of an input capsule in blocks: in place if the tensor has this
  // layout, and otherwise a copy.
  const A* Weights(int64_t c, const T* from) const {
    if constexpr (std::is_same_v<T, A>) {
      if (at_.in_place) return from;
    }
    A* const copy = numbers_ + at_.weights + c * at_.parts * kDepth * at_.row;
    ForRuns([&](int64_t to, int64_t of, int64_t count) {
      for (int64_t k = 0; k < count; ++k) copy[to + k] = Widen(from[of + k]);
    });
    return copy;
  }

  // Returns the array that accumulates the weight gradient: `to` if that has the layout
  // of blocks, and otherwise one in the scratch.
  A* WeightsGrad(T* to) const {
    if constexpr (std::is_same_v<T, A>) {
      if (at_.in_place) return to;
    }
    return numbers_ + at_.weights_grad;
  }

  // Computes c of the first iteration.
  void FirstCoefficients(int64_t c) {
    std::memset(first(c), 0, at_.caps * sizeof(A));
    SoftmaxInLanes(at_.caps, logits(c), first(c));
  }

  // Computes the dot products of u_hat of a sample with all tiles.
  void Dots(int64_t c, int64_t s) {
    const int64_t each = CapsuleStride();
    const A* const terms = u(c, s);
    for (int64_t m = 0; m < count_; ++m) {
      const A* const factors = tile(m, s);
      for (int64_t j0 = 0; j0 < p_.out_caps; j0 += kL) {
        Vector<A> sums[kL] = {};
#pragma GCC unroll 16
        for (int n = 0; n < kL; ++n) {
          if (j0 + n == p_.out_caps) break;
          const A *const a = terms + (j0 + n) * each, *const b =
                                                          factors + (j0 + n) * each;
          sums[n] = Load(a) * Load(b);
          for (int64_t d = kL; d < each; d += kL) sums[n] += Load(a + d) * Load(b + d);
        }
        Store(dots(c, s, m + 1) + j0, SumLanes<A>(sums));
      }
    }
  }

  // Computes du_hat of a sample, adds du_hat x to the weight gradient, and stores the
  // input gradient weights^T du_hat.
  void AddGradients(int64_t c, int64_t s, T* grad_input, A* weights_grad) {
    const int64_t each = at_.blocks / p_.out_caps;
    for (int64_t part = 0; part < at_.parts; ++part) {
      Vector<A> xs[kPeriod], dx[kPeriod] = {};
      LoadInput(c, s, part, xs);
      for (int64_t block = 0; block < at_.blocks; ++block) {
        const A* const factors = dots(c, s, 1) + block / each;
        Vector<A> du[kDepth] = {};
        for (int64_t m = 0; m < count_; ++m) {
          du[0] += factors[m * at_.caps] * Load(tile(m, s) + block * kL);
        }
        RepeatLanes<A>(du);
        const int64_t at = (block * at_.parts + part) * kDepth * kL;
        const A* const w = weights_[c] + at;
        A* const dw = weights_grad + at;
        for (int n = 0; n < kDepth; ++n) {
          const Vector<A> grad = du[n] * xs[n % kPeriod];
          Store(dw + n * kL, s == 0 ? grad : Load(dw + n * kL) + grad);
          dx[n % kPeriod] += du[n] * Load(w + n * kL);
        }
      }
      A sums[kPeriod * kL];
      for (int n = 0; n < kPeriod; ++n) Store(sums + n * kL, dx[n]);
      for (int64_t k = 0; k < Min(p_.in_dim - part * kDepth, kDepth); ++k) {
        A sum = 0;
        for (int64_t n = k; n < kPeriod * kL; n += kDepth) sum += sums[n];
        Narrow(sum, grad_input + part * kDepth + k);
      }
    }
  }

  const Problem& p_;
  const SmallBatchLayout<T> at_;
  const int64_t count_;  // number of tiles
  A* const numbers_;
  const A* weights_[kSmallBatchCaps] = {};
  A* u_ = nullptr;  // u_hat of the group
};

}  // namespace capsops::capsule_routing::CAPSOPS_ISA
