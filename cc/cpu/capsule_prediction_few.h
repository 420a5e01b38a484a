// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Gradients of capsule prediction for small batches. Transposing the weights and their
// gradient would take longer than the products, so both keep the tensors' layout: lanes
// are neighboring elements of the weights, that is in_dim and then columns.
#pragma once

#include "cc/cpu/capsule_prediction.h"
#include "cc/cpu/convert.h"
#include "cc/cpu/lanes.h"
#include "cc/cpu/simd.h"

namespace capsops::capsule_prediction::CAPSOPS_ISA {

using namespace capsops::CAPSOPS_ISA;  // NOLINT: this unit's instruction set

constexpr int kFew = 16;  // largest small batch

// Computes both gradients for in_dim = kDim. A vector of weights then holds kLanes /
// kDim columns. The number of columns must be a multiple of kLanes.
template <typename T, int kDim>
void BackwardSmallBatch(const Problem& p, const Range& range, const T* grad,
                        const T* input, const T* weights, T* grad_input,
                        T* grad_weights) {
  using A = Accumulator<T>;
  constexpr int kL = kLanes<A>;
  const int64_t columns = p.out_caps * p.out_dim;
  for (int64_t i = range.in_caps_begin; i < range.in_caps_end; ++i) {
    const T* w = weights + i * columns * kDim;
    T* to = grad_weights + i * columns * kDim;
    Vector<A> x[kFew], dx[kFew] = {};  // lane n holds element n % kDim
    for (int64_t b = 0; b < p.batch; ++b) {
      const T* const from = input + (b * p.in_caps + i) * kDim;
      A numbers[kL];
      for (int n = 0; n < kL; ++n) numbers[n] = Widen(from[n % kDim]);
      x[b] = Load(numbers);
    }
    for (int64_t n = 0; n < columns; n += kL, w += kL * kDim, to += kL * kDim) {
      Vector<A> dw[kDim] = {};
      for (int64_t b = 0; b < p.batch; ++b) {
        Vector<A> g[kDim];
        g[0] = LoadWide<A>(grad + (b * p.in_caps + i) * columns + n);
        RepeatLanes<A>(g);
        for (int v = 0; v < kDim; ++v) {
          dw[v] += g[v] * x[b];
          dx[b] += g[v] * LoadWide<A>(w + v * kL);
        }
      }
      for (int v = 0; v < kDim; ++v) StoreNarrow<A>(to + v * kL, dw[v]);
    }
    for (int64_t b = 0; b < p.batch; ++b) {
      A numbers[kL];
      Store(numbers, dx[b]);
      for (int n = kDim; n < kL; ++n) numbers[n % kDim] += numbers[n];
      for (int k = 0; k < kDim; ++k) {
        Narrow(numbers[k], grad_input + (b * p.in_caps + i) * kDim + k);
      }
    }
  }
}

template <typename T>
using BackwardSmallBatchFunction = void (*)(const Problem&, const Range&, const T*,
                                            const T*, const T*, T*, T*);

// Returns BackwardSmallBatch for a problem, or nullptr if it does not support it.
template <typename T, int kDim = kLanes<Accumulator<T>>>
BackwardSmallBatchFunction<T> BackwardSmallBatchOf(const Problem& p) {
  if (p.batch > kFew || p.out_caps * p.out_dim % kLanes<Accumulator<T>> != 0) {
    return nullptr;
  }
  if (p.in_dim == kDim) return BackwardSmallBatch<T, kDim>;
  if constexpr (kDim > 1) {
    return BackwardSmallBatchOf<T, kDim / 2>(p);
  } else {
    return nullptr;
  }
}

}  // namespace capsops::capsule_prediction::CAPSOPS_ISA
