// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule routing of few samples. With samples in lanes, most lanes would be idle, so
// lanes hold weights, and then output dimensions, instead.
#ifndef CAPSOPS_CC_CPU_CAPSULE_ROUTING_FEW_H_
#define CAPSOPS_CC_CPU_CAPSULE_ROUTING_FEW_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/cpu/capsule_routing.h"
#include "cc/cpu/capsule_routing_common.h"
#include "cc/cpu/capsule_routing_tile.h"
#include "cc/cpu/lanes.h"
#include "cc/cpu/simd.h"

namespace capsops::capsule_routing::CAPSOPS_ISA {

constexpr int64_t kFewScratchBytes = 1 << 20;  // of a task, at most
constexpr int64_t kFewGradCaps = 32;           // of a task, at most

// Sizes of arrays, and the layout of the scratch for `tiles` tiles: the offset of each
// array in numbers. A block is kLanes output dimensions of an output capsule, and its
// weights are vectors [in_dim], with in_dim padded to a power of two.
template <typename T>
struct FewLayout {
  using A = Accumulator<T>;
  static constexpr int64_t kL = kLanes<A>;
  int64_t depth, blocks, row, caps;  // a row has a number for each output dimension
  int64_t x, u, weights, terms, tiles, sums, weights_grad, first, logits, logits_grad,
      dots, size;

  FewLayout(const Problem& p, int64_t count) : depth(1) {
    while (depth < p.in_dim) depth *= 2;
    blocks = p.out_caps * CeilDivide(p.out_dim, kL);
    row = blocks * kL;
    caps = RoundUp(p.out_caps, kL);
    x = 0;
    u = x + p.batch * depth * kL;
    weights = u + p.batch * row;
    terms = weights + depth * kL;
    tiles = terms + 2 * depth * kL;
    sums = tiles + count * p.batch * row;
    weights_grad = sums + p.batch * row;
    first = weights_grad + depth * row;
    logits = first + caps;
    logits_grad = logits + caps;
    dots = logits_grad + caps;
    size = dots + (count + 1) * caps;
  }
};

// Returns whether the problem has so few samples that the functions below are faster
// than those with samples in lanes, and their scratch fits into the second-level cache.
template <typename T>
bool IsFew(const Problem& p) {
  using A = Accumulator<T>;
  if (p.batch == 0 || p.batch * 4 >= kLanes<A>) return false;
  // A tensor without numbers may have sizes whose products do not fit in an int64_t.
  if (p.in_caps == 0 || p.in_dim == 0 || Columns(p) == 0) return false;
  return FewLayout<T>(p, 2 * p.iterations - 1).size * int64_t{sizeof(A)} <=
         kFewScratchBytes;
}

// Sets b to softmax(logits + b) over the output capsules, which are in the lanes of
// whole vectors. Lanes past them have a logit of minus infinity.
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

// As SoftmaxGrad, with output capsules in lanes.
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

// Returns the sums of runs of `depth` numbers, of as many vectors, which it overwrites.
template <typename A, typename Depth>
CAPSOPS_INLINE Vector<A> SumRuns(Depth depth, A* vectors) {
  constexpr typename IndicesTo<kLanes<A>>::type lanes;
  for (int64_t n = depth / 2; n > 0; n /= 2) {
    for (int64_t v = 0; v < n; ++v) {
      const Vector<A> a = Load(vectors + 2 * v * kLanes<A>);
      const Vector<A> b = Load(vectors + (2 * v + 1) * kLanes<A>);
      Store(vectors + v * kLanes<A>,
            EverySecond<A, 0>(a, b, lanes) + EverySecond<A, 1>(a, b, lanes));
    }
  }
  return Load(vectors);
}

// Stores each lane of `v` as a run of `depth` numbers, to as many vectors.
template <typename A, typename Depth>
CAPSOPS_INLINE void SpreadRuns(Depth depth, Vector<A> v, A* vectors) {
  constexpr typename IndicesTo<kLanes<A>>::type lanes;
  Store(vectors, v);
  for (int64_t n = 1; n < depth; n *= 2) {
    for (int64_t from = n - 1; from >= 0; --from) {
      const Vector<A> a = Load(vectors + from * kLanes<A>);
      Store(vectors + 2 * from * kLanes<A>, InTurn<A, 0>(a, a, lanes));
      Store(vectors + (2 * from + 1) * kLanes<A>, InTurn<A, 1>(a, a, lanes));
    }
  }
}

// What a task does with one input capsule after the other, and all samples. kDepth is
// the padded in_dim, or 0 where that is not a constant.
template <typename T, int kDepth>
class FewSamples {
  using A = Accumulator<T>;
  static constexpr int64_t kL = kLanes<A>;

 public:
  FewSamples(const Problem& p, int64_t count, void* scratch)
      : p_(p),
        at_(p, count),
        depth_{at_.depth},
        count_(count),
        numbers_(static_cast<A*>(scratch)) {
    std::memset(numbers_, 0, at_.size * sizeof(A));
    for (int64_t j = p.out_caps; j < at_.caps; ++j) {
      numbers_[at_.logits + j] = -A(__builtin_inf());
    }
  }

  // Copies tile m, which has samples in lanes, with output dimensions in lanes.
  void Take(int64_t m, const A* tile) {
    for (int64_t s = 0; s < p_.batch; ++s) {
      for (int64_t j = 0; j < p_.out_caps; ++j) {
        A* const to = row(at_.tiles, m * p_.batch + s) + j * (at_.row / p_.out_caps);
        for (int64_t d = 0; d < p_.out_dim; ++d) {
          to[d] = tile[(j * p_.out_dim + d) * kL + s];
        }
      }
    }
  }

  // Goes to input capsule i: computes u_hat of all samples, and c of the first
  // iteration.
  void Begin(int64_t i, const T* input, const T* weights, const T* logits) {
    for (int64_t s = 0; s < p_.batch; ++s) {
      // The inputs are repeated, so that each number is beside its weights.
      const T* const from = input + (s * p_.in_caps + i) * p_.in_dim;
      A* const to = x(s);
      for (int64_t k = 0; k < p_.in_dim; ++k) to[k] = Widen(from[k]);
      for (int64_t n = depth_; n < depth_ * kL; n += depth_) {
        std::memcpy(to + n, to, depth_ * sizeof(A));
      }
    }
    A* const terms = numbers_ + at_.terms;
    for (int64_t block = 0; block < at_.blocks; ++block) {
      const A* const w = Weights(i, block, weights);
      for (int64_t s = 0; s < p_.batch; ++s) {
        for (int64_t n = 0; n < depth_ * kL; n += kL) {
          Store(terms + n, Load(w + n) * Load(x(s) + n));
        }
        Store(u(s) + block * kL, SumRuns<A>(depth_, terms));
      }
    }
    for (int64_t j = 0; j < p_.out_caps; ++j) {
      numbers_[at_.logits + j] = Widen(logits[i * p_.out_caps + j]);
    }
    std::memset(numbers_ + at_.first, 0, at_.caps * sizeof(A));
    SoftmaxInLanes(at_.caps, numbers_ + at_.logits, numbers_ + at_.first);
  }

  // Computes the dot products of u_hat of a sample with all tiles.
  void Dots(int64_t s) {
    const int64_t each = at_.row / p_.out_caps;
    for (int64_t m = 0; m < count_; ++m) {
      const A* const tile = row(at_.tiles, m * p_.batch + s);
      for (int64_t j0 = 0; j0 < p_.out_caps; j0 += kL) {
        Vector<A> sums[kL] = {};
        for (int64_t j = j0; j < Min(j0 + kL, p_.out_caps); ++j) {
          for (int64_t n = j * each; n < (j + 1) * each; n += kL) {
            sums[j - j0] += Load(u(s) + n) * Load(tile + n);
          }
        }
        Store(dots(m + 1) + j0, SumLanes<A>(sums));
      }
    }
  }

  // Returns c or, with two tiles, db of the first, V, whose gradient is the second, ds.
  const A* Agree(int64_t s) {
    if (count_ == 0) return numbers_ + at_.first;
    Dots(s);
    SoftmaxInLanes(at_.caps, numbers_ + at_.logits, dots(1));
    if (count_ == 2) SoftmaxGradInLanes<A>(at_.caps, dots(1), dots(2), nullptr);
    return dots(1);
  }

  // Adds b u_hat of a sample to its sums.
  void Add(int64_t s, const A* b) {
    const int64_t each = at_.row / p_.out_caps;
    A* const sums = row(at_.sums, s);
    for (int64_t j = 0; j < p_.out_caps; ++j) {
      const Vector<A> factor = Vector<A>{} + b[j];
      for (int64_t n = j * each; n < (j + 1) * each; n += kL) {
        Store(sums + n, Load(sums + n) + factor * Load(u(s) + n));
      }
    }
  }

  // Adds the sums to those of `part`, which has samples in lanes, and clears them.
  void Flush(A* part) {
    for (int64_t s = 0; s < p_.batch; ++s) {
      for (int64_t j = 0; j < p_.out_caps; ++j) {
        const A* const from = row(at_.sums, s) + j * (at_.row / p_.out_caps);
        for (int64_t d = 0; d < p_.out_dim; ++d) {
          part[(j * p_.out_dim + d) * kL + s] += from[d];
        }
      }
    }
    std::memset(row(at_.sums, 0), 0, p_.batch * at_.row * sizeof(A));
  }

  // Computes the gradients of an input capsule, of its weights and of its logits. The
  // tiles are V_2, V_3, ..., and then ds_1, ds_2, ...
  void Differentiate(int64_t i, const T* weights, T* grad_input, T* grad_weights,
                     T* grad_logits) {
    A* const logits_grad = numbers_ + at_.logits_grad;
    std::memset(logits_grad, 0, at_.caps * sizeof(A));
    std::memset(numbers_ + at_.weights_grad, 0, depth_ * at_.row * sizeof(A));
    for (int64_t s = 0; s < p_.batch; ++s) {
      Dots(s);
      std::memcpy(dots(0), numbers_ + at_.first, at_.caps * sizeof(A));
      for (int64_t r = 0; r < p_.iterations; ++r) {
        if (r > 0) SoftmaxInLanes(at_.caps, numbers_ + at_.logits, dots(r));
        SoftmaxGradInLanes(at_.caps, dots(r), dots(r + p_.iterations), logits_grad);
      }
      AddGradients(i, s, weights, grad_input + (s * p_.in_caps + i) * p_.in_dim);
    }
    for (int64_t j = 0; j < p_.out_caps; ++j) {
      Narrow(logits_grad[j], grad_logits + i * p_.out_caps + j);
    }
    ForRows(i, [&](int64_t from, int64_t to) {
      const A* const row = numbers_ + at_.weights_grad + from;
      for (int64_t k = 0; k < p_.in_dim; ++k) Narrow(row[k], grad_weights + to + k);
    });
  }

 private:
  // The padded in_dim.
  struct Depth {
    int64_t value;
    constexpr operator int64_t() const { return kDepth > 0 ? kDepth : value; }
  };

  A* row(int64_t array, int64_t n) const { return numbers_ + array + n * at_.row; }
  A* dots(int64_t m) const { return numbers_ + at_.dots + m * at_.caps; }
  A* x(int64_t s) const { return numbers_ + at_.x + s * depth_ * kL; }
  A* u(int64_t s) const { return numbers_ + at_.u + s * at_.row; }

  // Calls run(from, to) for the offsets of each of the rows of in_dim weights, in
  // blocks and in the tensor.
  template <typename Run>
  void ForRows(int64_t i, const Run& run) const {
    for (int64_t j = 0; j < p_.out_caps; ++j) {
      const int64_t from = j * (at_.row / p_.out_caps) * depth_;
      const int64_t to = i * Matrix(p_) + j * p_.out_dim * p_.in_dim;
      for (int64_t d = 0; d < p_.out_dim; ++d) {
        run(from + d * depth_, to + d * p_.in_dim);
      }
    }
  }

  // Returns the weights of a block: where they lie if they lie so, and else as a copy.
  const A* Weights(int64_t i, int64_t block, const T* weights) const {
    const int64_t each = at_.blocks / p_.out_caps, d = block % each * kL;
    const int64_t rows = Min(p_.out_dim - d, kL);
    const T* const from =
        weights + i * Matrix(p_) + (block / each * p_.out_dim + d) * p_.in_dim;
    if constexpr (std::is_same_v<T, A>) {
      if (rows == kL && p_.in_dim == depth_) return from;
    }
    A* const copy = numbers_ + at_.weights;
    std::memset(copy, 0, depth_ * kL * sizeof(A));
    for (int64_t n = 0; n < rows; ++n) {
      for (int64_t k = 0; k < p_.in_dim; ++k) {
        copy[n * depth_ + k] = Widen(from[n * p_.in_dim + k]);
      }
    }
    return copy;
  }

  // Computes du_hat of a sample, adds du_hat x to the gradient of the weights, and
  // computes the gradient of the input, which is weights^T du_hat.
  void AddGradients(int64_t i, int64_t s, const T* weights, T* grad_input) {
    A* const spread = numbers_ + at_.terms;
    A* const dx = spread + depth_ * kL;
    std::memset(dx, 0, depth_ * kL * sizeof(A));
    const int64_t each = at_.blocks / p_.out_caps;
    for (int64_t block = 0; block < at_.blocks; ++block) {
      Vector<A> du = {};
      for (int64_t m = 0; m < count_; ++m) {
        const A* const tile = row(at_.tiles, m * p_.batch + s) + block * kL;
        du += dots(m + 1)[block / each] * Load(tile);
      }
      SpreadRuns<A>(depth_, du, spread);
      const A* const w = Weights(i, block, weights);
      A* const dw = numbers_ + at_.weights_grad + block * depth_ * kL;
      for (int64_t n = 0; n < depth_ * kL; n += kL) {
        const Vector<A> grad = Load(spread + n);
        Store(dw + n, Load(dw + n) + grad * Load(x(s) + n));
        Store(dx + n, Load(dx + n) + grad * Load(w + n));
      }
    }
    for (int64_t k = 0; k < p_.in_dim; ++k) {
      A sum = 0;
      for (int64_t n = k; n < depth_ * kL; n += depth_) sum += dx[n];
      Narrow(sum, grad_input + k);
    }
  }

  const Problem& p_;
  const FewLayout<T> at_;
  const Depth depth_;
  const int64_t count_;  // of tiles
  A* const numbers_;
};

}  // namespace capsops::capsule_routing::CAPSOPS_ISA

#endif  // CAPSOPS_CC_CPU_CAPSULE_ROUTING_FEW_H_
