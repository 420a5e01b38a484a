// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The last step of the gradient: computes du_hat from V and ds of all iterations, and
// contracts it immediately to the gradients of input and weights. A task has a few
// input capsules and all samples, one group after the other, with samples in lanes.
#pragma once

#include <cstdint>
#include <cstring>

#include "cc/cpu/capsule_routing.h"
#include "cc/cpu/capsule_routing_common.h"
#include "cc/cpu/capsule_routing_tile.h"
#include "cc/cpu/lanes.h"
#include "cc/cpu/simd.h"

namespace capsops::capsule_routing::CAPSOPS_ISA {

constexpr int64_t kGradCaps = 4;    // most input capsules per task; they share V and ds
constexpr int64_t kGradTasks = 64;  // number of tasks to aim for
constexpr int64_t kGradBytes = 128 << 10;      // bytes of a task's weights
constexpr int64_t kGradTileBytes = 256 << 10;  // bytes of du, in the L2 cache

// The scratch layout for `caps` input capsules and `groups` groups, in elements.
template <typename T>
struct GradLayout {
  using A = Accumulator<T>;
  int64_t caps, groups;
  int64_t matrix;  // elements of a capsule's weight gradient in register tiles
  int64_t x, dx, first, dots, du, weights_grad, logits_grad, size;

  explicit GradLayout(const Problem& p) {
    caps = Block<A>(p, kGradBytes, Min(kGradCaps, CeilDivide(p.in_caps, kGradTasks)));
    const int64_t all = CeilDivide(p.batch, kLanes<A>);
    const int64_t fit =
        kGradTileBytes / Max(caps * GroupSize<A>(p) * int64_t{sizeof(A)}, 1);
    groups = Max(Min(fit, all), 1);
    matrix = RoundUp(Columns(p), kWeightRows<A>) * RoundUp(p.in_dim, kWeightColumns<A>);
    const int64_t coefficients = caps * p.out_caps * kLanes<A>;
    // Register tiles read past the ends of x and du, and ignore the values there.
    x = WeightsCopy<T>(p, caps);
    dx = x + (groups * caps * p.in_dim + kWeightColumns<A>)*kLanes<A>;
    first = dx + caps * p.in_dim * kLanes<A>;
    dots = first + coefficients;
    du = dots + 2 * p.iterations * coefficients;
    weights_grad = du + groups * caps * GroupSize<A>(p) + kWeightRows<A> * kLanes<A>;
    logits_grad = weights_grad + caps * matrix;
    size = logits_grad + coefficients;
  }
};

// Replaces the dot products <u, V_r> and <u, ds_r> of all r by db_r and c_r, the
// coefficients of these tiles in du, and adds all db_r to logits_grad. V_1 is 0, so the
// first row of `dots` need not be initialized. Padding lanes have zeros in the tiles;
// their dots are set to zero too, so that they add nothing even if weights are
// infinite.
template <typename T, typename A>
void DotsToCoefficients(const Problem& p, int64_t samples, const T* logits,
                        const A* first, A* dots, A* logits_grad) {
  const int64_t row = p.out_caps * kLanes<A>;
  if (samples < kLanes<A>) {
    for (int64_t n = row; n < 2 * p.iterations * row; n += kLanes<A>) {
      Store(dots + n, KeepLanes<A>(samples, Load(dots + n)));
    }
  }
  std::memcpy(dots, first, row * sizeof(A));
  for (int64_t r = 0; r < p.iterations; ++r) {
    A* const c = dots + r * row;
    if (r > 0) Softmax(p.out_caps, logits, c);
    SoftmaxGrad<A>(p.out_caps, c, c + p.iterations * row, logits_grad);
  }
}

// Adds the samples of `groups` groups to the weight gradient of an input capsule, which
// is laid out in register tiles.
template <typename A>
void AddWeightsGrad(const Problem& p, int64_t groups, const A* du, int64_t du_stride,
                    const A* x, int64_t x_stride, A* to) {
  for (int64_t n = 0; n < Columns(p); n += kWeightRows<A>) {
    for (int64_t k = 0; k < p.in_dim; k += kWeightColumns<A>, to += kLanes<A>) {
      Store(to, Load(to) + WeightsTile<A>(groups, du + n * kLanes<A>, du_stride,
                                          x + k * kLanes<A>, x_stride));
    }
  }
}

// Copies register tiles to the rows of the tensor.
template <typename T, typename A>
void StoreWeightsGrad(const Problem& p, const A* from, T* to) {
  constexpr int K = kWeightColumns<A>;
  for (int64_t n0 = 0; n0 < Columns(p); n0 += kWeightRows<A>) {
    const int64_t rows = Min(kWeightRows<A>, Columns(p) - n0);
    for (int64_t k0 = 0; k0 < p.in_dim; k0 += K, from += kLanes<A>) {
      for (int64_t n = 0; n < rows; ++n) {
        T* const row = to + (n0 + n) * p.in_dim + k0;
        if (k0 + K <= p.in_dim) {
          for (int k = 0; k < K; ++k) Narrow(from[n * K + k], row + k);
        } else {
          for (int64_t k = 0; k < p.in_dim - k0; ++k) Narrow(from[n * K + k], row + k);
        }
      }
    }
  }
}

template <typename T, typename A>
void StoreLogitsGrad(const Problem& p, const A* from, T* to) {
  for (int64_t j = 0; j < p.out_caps; ++j) {
    Vector<A> lanes[kLanes<A>] = {Load(from + j * kLanes<A>)};
    Narrow(SumLanes<A>(lanes)[0], to + j);
  }
}

// Computes the gradients of the input capsules of a task, step by step.
template <typename T, typename Depth>
class GradWork {
  using A = Accumulator<T>;

 public:
  GradWork(Depth in_dim, const Problem& p, const Division& d, int64_t task,
           const T* input, const T* weights, const T* logits, const A* tiles,
           void* scratch)
      : in_dim_(in_dim),
        p_(p),
        d_(d),
        at_(p),
        numbers_(static_cast<A*>(scratch)),
        begin_(task * at_.caps),
        caps_(Min(at_.caps, p.in_caps - begin_)),
        input_(input),
        weights_(Widened(weights + begin_ * Matrix(p), caps_ * Matrix(p), numbers_)),
        logits_(logits + begin_ * p.out_caps),
        tiles_(tiles) {}

  // Stores the gradients; processes groups of samples block by block.
  void Run(T* grad_input, T* grad_weights, T* grad_logits) {
    for (int64_t i = 0; i < caps_; ++i) {
      FirstCoefficients(p_, logits_ + i * p_.out_caps, numbers_ + at_.first + i * row_);
    }
    // Clears the weight gradient and the logits gradient that follows it.
    std::memset(numbers_ + at_.weights_grad, 0,
                (at_.size - at_.weights_grad) * sizeof(A));
    for (int64_t g0 = 0; g0 < d_.groups; g0 += at_.groups) {
      const int64_t groups = Min(at_.groups, d_.groups - g0);
      for (int64_t n = 0; n < groups; ++n) {
        ComputeTileCoefficients(g0 + n, numbers_ + at_.x + n * at_.caps * sample_);
        ComputeGradients(g0 + n, numbers_ + at_.du + n * group_, grad_input);
      }
      for (int64_t i = 0; i < caps_; ++i) {
        AddWeightsGrad(p_, groups, numbers_ + at_.du + i * at_.groups * group_, group_,
                       numbers_ + at_.x + i * sample_, at_.caps * sample_,
                       numbers_ + at_.weights_grad + i * at_.matrix);
      }
    }
    for (int64_t i = 0; i < caps_; ++i) {
      StoreWeightsGrad(p_, numbers_ + at_.weights_grad + i * at_.matrix,
                       grad_weights + (begin_ + i) * Matrix(p_));
      StoreLogitsGrad(p_, numbers_ + at_.logits_grad + i * row_,
                      grad_logits + (begin_ + i) * p_.out_caps);
    }
  }

 private:
  const A* weights(int64_t i, int64_t j) const {
    return weights_ + i * Matrix(p_) + j * p_.out_dim * p_.in_dim;
  }
  Tiles<A> tiles(int64_t group, int64_t j) const {
    return {tiles_ + group * group_ + j * p_.out_dim * kLanes<A>, 2 * p_.iterations - 1,
            d_.tile};
  }
  // Returns the dot products, and later the coefficients, of an input capsule. The
  // first row belongs to V_1, which is 0, and the others to `tiles`.
  A* dots(int64_t i) const {
    return numbers_ + at_.dots + i * 2 * p_.iterations * row_;
  }
  A* tile_dots(int64_t i, int64_t j) const { return dots(i) + row_ + j * kLanes<A>; }

  // Loads the samples of a group to x and computes the coefficients of the tiles. Reads
  // an output capsule's tiles for all input capsules at once.
  void ComputeTileCoefficients(int64_t group, A* x) {
    LoadSamples(p_, input_, group, begin_, caps_, x);
    for (int64_t j = 0; j < p_.out_caps; ++j) {
      for (int64_t i = 0; i < caps_; ++i) {
        Dots<A>(p_.out_dim, in_dim_, weights(i, j), x + i * sample_, tiles(group, j),
                row_, tile_dots(i, j), nullptr);
      }
    }
    for (int64_t i = 0; i < caps_; ++i) {
      DotsToCoefficients(p_, GroupSamples<A>(p_, group), logits_ + i * p_.out_caps,
                         numbers_ + at_.first + i * row_, dots(i),
                         numbers_ + at_.logits_grad + i * row_);
    }
  }

  // Computes grad_input and du_hat of a group, [input capsule][at_.groups][group_].
  void ComputeGradients(int64_t group, A* du, T* grad_input) {
    A* const dx = numbers_ + at_.dx;
    std::memset(dx, 0, caps_ * sample_ * sizeof(A));
    for (int64_t j = 0; j < p_.out_caps; ++j) {
      for (int64_t i = 0; i < caps_; ++i) {
        Gradients<A>(p_.out_dim, in_dim_, weights(i, j), tiles(group, j),
                     tile_dots(i, j), row_,
                     du + i * at_.groups * group_ + j * p_.out_dim * kLanes<A>,
                     dx + i * sample_);
      }
    }
    FromLanes(dx, caps_ * p_.in_dim, GroupSamples<A>(p_, group), p_.in_caps * p_.in_dim,
              grad_input + (group * kLanes<A> * p_.in_caps + begin_) * p_.in_dim);
  }

  const Depth in_dim_;
  const Problem& p_;
  const Division& d_;
  const GradLayout<T> at_;
  A* const numbers_;
  const int64_t begin_, caps_;  // range of input capsules
  const T* const input_;
  const A* const weights_;
  const T* const logits_;
  const A* const tiles_;
  const int64_t group_ = GroupSize<A>(p_);
  const int64_t row_ = p_.out_caps * kLanes<A>;   // one vector per output capsule
  const int64_t sample_ = p_.in_dim * kLanes<A>;  // an input capsule of a group
};

template <typename T, typename Depth>
void GradTask(Depth in_dim, const Problem& p, const Division& d, int64_t task,
              const T* input, const T* weights, const T* logits,
              const Accumulator<T>* tiles, T* grad_input, T* grad_weights,
              T* grad_logits, void* scratch) {
  GradWork<T, Depth>(in_dim, p, d, task, input, weights, logits, tiles, scratch)
      .Run(grad_input, grad_weights, grad_logits);
}

}  // namespace capsops::capsule_routing::CAPSOPS_ISA
