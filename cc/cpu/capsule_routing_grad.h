// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The last step of the gradient, in which du_hat is made and at once contracted.
#ifndef CAPSOPS_CC_CPU_CAPSULE_ROUTING_GRAD_H_
#define CAPSOPS_CC_CPU_CAPSULE_ROUTING_GRAD_H_

#include <cstdint>
#include <cstring>

#include "cc/cpu/capsule_routing.h"
#include "cc/cpu/capsule_routing_common.h"
#include "cc/cpu/capsule_routing_tile.h"
#include "cc/cpu/lanes.h"
#include "cc/cpu/simd.h"

namespace capsops::capsule_routing::CAPSOPS_ISA {

constexpr int64_t kGradCaps = 4;               // input capsules that share V and ds
constexpr int64_t kGradBytes = 128 << 10;      // weights of them
constexpr int64_t kGradTileBytes = 256 << 10;  // du of these, in the second cache

template <typename T>
struct GradLayout {
  using A = Accumulator<T>;
  int64_t caps, groups, matrix;  // matrix: of a gradient, in register tiles
  int64_t x, dx, first, dots, du, weights_grad, logits_grad, size;

  explicit GradLayout(const Problem& p) {
    caps = Block<A>(p, kGradBytes, Min(kGradCaps, CeilDivide(p.in_caps, 64)));
    const int64_t all = CeilDivide(p.batch, kLanes<A>);
    const int64_t fit =
        kGradTileBytes / Max(caps * GroupSize<A>(p) * int64_t{sizeof(A)}, 1);
    groups = Max(Min(fit, all), 1);
    matrix = RoundUp(Columns(p), kWeightRows<A>) * RoundUp(p.in_dim, kWeightColumns<A>);
    // Register tiles reach over the end of x and of du; what they find is not used.
    const int64_t coefficients = caps * p.out_caps * kLanes<A>;
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

// From <u, V_r> and <u, ds_r> of all r to what these tiles are multiplied by in du,
// db_r and c_r; all db are added to logits_grad. V_1 is 0, its row has no dots. A lane
// without a sample has zeros in the tiles, and with zeros for its dots adds nothing,
// even where the weights are infinite.
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

// Adds to the register tiles of the gradient of the weights of an input capsule.
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

// From register tiles to rows. That the columns of a whole tile are a constant is what
// makes this fast.
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

template <typename T, typename InDim>
void GradTask(InDim in_dim, const Problem& p, const Division& d, int64_t task,
              const T* input, const T* weights, const T* logits,
              const Accumulator<T>* tiles, T* grad_input, T* grad_weights,
              T* grad_logits, void* scratch) {
  using A = Accumulator<T>;
  const GradLayout<T> at(p);
  A* const numbers = static_cast<A*>(scratch);
  const int64_t i0 = task * at.caps, caps = Min(at.caps, p.in_caps - i0);
  const int64_t matrix = Matrix(p), group = GroupSize<A>(p);
  const int64_t row = p.out_caps * kLanes<A>, count = 2 * p.iterations - 1;
  const int64_t sample = p.in_dim * kLanes<A>, capsule = p.out_dim * kLanes<A>;
  A* const dx = numbers + at.dx;
  A* const du = numbers + at.du;
  const A* const w = Widened(weights + i0 * matrix, caps * matrix, numbers);
  for (int64_t i = 0; i < caps; ++i) {
    FirstCoefficients(p, logits + (i0 + i) * p.out_caps, numbers + at.first + i * row);
  }
  std::memset(numbers + at.weights_grad, 0,
              (at.size - at.weights_grad) * sizeof(A));  // and logits_grad
  for (int64_t g0 = 0; g0 < d.groups; g0 += at.groups) {
    const int64_t groups = Min(at.groups, d.groups - g0);
    for (int64_t g = 0; g < groups; ++g) {
      A* const x = numbers + at.x + g * at.caps * sample;
      LoadSamples(p, input, g0 + g, i0, caps, x);
      for (int64_t j = 0; j < p.out_caps; ++j) {
        for (int64_t i = 0; i < caps; ++i) {
          Dots<A>(p.out_dim, in_dim, w + i * matrix + j * p.out_dim * p.in_dim,
                  x + i * sample,
                  {tiles + (g0 + g) * group + j * capsule, count, d.tile}, row,
                  numbers + at.dots + (i * (count + 1) + 1) * row + j * kLanes<A>,
                  nullptr);
        }
      }
      for (int64_t i = 0; i < caps; ++i) {
        DotsToCoefficients(p, Rows<A>(p, g0 + g), logits + (i0 + i) * p.out_caps,
                           numbers + at.first + i * row,
                           numbers + at.dots + i * (count + 1) * row,
                           numbers + at.logits_grad + i * row);
      }
      std::memset(dx, 0, caps * sample * sizeof(A));
      for (int64_t j = 0; j < p.out_caps; ++j) {
        for (int64_t i = 0; i < caps; ++i) {
          Gradients<A>(p.out_dim, in_dim, w + i * matrix + j * p.out_dim * p.in_dim,
                       {tiles + (g0 + g) * group + j * capsule, count, d.tile},
                       numbers + at.dots + (i * (count + 1) + 1) * row + j * kLanes<A>,
                       row, du + (i * at.groups + g) * group + j * capsule,
                       dx + i * sample);
        }
      }
      FromLanes(dx, caps * p.in_dim, Rows<A>(p, g0 + g), p.in_caps * p.in_dim,
                grad_input + ((g0 + g) * kLanes<A> * p.in_caps + i0) * p.in_dim);
    }
    for (int64_t i = 0; i < caps; ++i) {
      AddWeightsGrad(p, groups, du + i * at.groups * group, group,
                     numbers + at.x + i * sample, at.caps * sample,
                     numbers + at.weights_grad + i * at.matrix);
    }
  }
  for (int64_t i = 0; i < caps; ++i) {
    StoreWeightsGrad(p, numbers + at.weights_grad + i * at.matrix,
                     grad_weights + (i0 + i) * matrix);
    StoreLogitsGrad(p, numbers + at.logits_grad + i * row,
                    grad_logits + (i0 + i) * p.out_caps);
  }
}

}  // namespace capsops::capsule_routing::CAPSOPS_ISA

#endif  // CAPSOPS_CC_CPU_CAPSULE_ROUTING_GRAD_H_
