// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Tasks of capsule routing for small batches, which run SmallBatchWork.
#pragma once

#include <cstdint>
#include <cstring>

#include "cc/cpu/capsule_routing.h"
#include "cc/cpu/capsule_routing_common.h"
#include "cc/cpu/capsule_routing_few.h"
#include "cc/cpu/capsule_routing_sums.h"

namespace capsops::capsule_routing::CAPSOPS_ISA {

// Small-batch versions of the functions in capsule_routing_sums.h and
// capsule_routing_grad.h.
template <typename T, int kDepth>
void SmallBatchAddTask(const Problem& p, const Division& d, int64_t task,
                       const T* input, const T* weights, const T* logits,
                       const Accumulator<T>* totals, const Accumulator<T>* sum_grads,
                       Accumulator<T>* u_hat, Accumulator<T>* parts, void* scratch) {
  const SumTask t(p, d, task);
  const int64_t count = (totals != nullptr) + (sum_grads != nullptr);
  SmallBatchWork<T, kDepth> few(p, count, scratch);
  if (totals != nullptr) few.Take(0, totals);
  if (sum_grads != nullptr) few.Take(1, sum_grads);
  Accumulator<T>* const part = parts + t.chunk * d.tile;
  std::memset(part, 0, d.tile * sizeof(*part));
  for (int64_t i0 = t.caps_begin; i0 < t.caps_end; i0 += kSmallBatchFlushedCaps) {
    const int64_t end = Min(i0 + kSmallBatchFlushedCaps, t.caps_end);
    for (int64_t i = i0; i < end; i += kSmallBatchCaps) {
      const int64_t caps = Min(kSmallBatchCaps, end - i);
      few.StartGroup(i, caps, logits, u_hat);
      if (u_hat == nullptr || totals == nullptr) {
        few.ComputeUHat(i, caps, input, weights + (i - t.caps_begin) * Matrix(p));
      }
      few.ComputeCoefficients(caps);
      few.Add(caps);
    }
    few.Flush(part);
  }
}

template <typename T, int kDepth>
void SmallBatchCoefficientsTask(const Problem& p, const Division& d, int64_t task,
                                const T* input, const T* weights, const T* logits,
                                const Accumulator<T>* totals, T* coefficients,
                                void* scratch) {
  const SumTask t(p, d, task);
  SmallBatchWork<T, kDepth> few(p, totals != nullptr, scratch);
  if (totals != nullptr) few.Take(0, totals);
  for (int64_t i = t.caps_begin; i < t.caps_end; i += kSmallBatchCaps) {
    const int64_t caps = Min(kSmallBatchCaps, t.caps_end - i);
    few.StartGroup(i, caps, logits);
    few.ComputeUHat(i, caps, input, weights + (i - t.caps_begin) * Matrix(p));
    few.ComputeCoefficients(caps);
    for (int64_t c = 0; c < caps; ++c) {
      for (int64_t s = 0; s < p.batch; ++s) {
        for (int64_t j = 0; j < p.out_caps; ++j) {
          Narrow(few.GroupCoefficients(c, s)[j],
                 coefficients + (s * p.in_caps + i + c) * p.out_caps + j);
        }
      }
    }
  }
}

template <typename T, int kDepth>
void SmallBatchGradTask(const Problem& p, const Division& d, int64_t task,
                        const T* input, const T* weights, const T* logits,
                        const Accumulator<T>* tiles, T* grad_input, T* grad_weights,
                        T* grad_logits, void* scratch) {
  const int64_t count = 2 * p.iterations - 1;
  SmallBatchWork<T, kDepth> few(p, count, scratch);
  for (int64_t m = 0; m < count; ++m) few.Take(m, tiles + m * d.tile);
  const int64_t end = Min((task + 1) * d.grad_caps, p.in_caps);
  for (int64_t i = task * d.grad_caps; i < end; i += kSmallBatchCaps) {
    const int64_t caps = Min(kSmallBatchCaps, end - i);
    few.StartGroup(i, caps, logits);
    few.ComputeUHat(i, caps, input, weights + i * Matrix(p));
    for (int64_t c = 0; c < caps; ++c) {
      few.Differentiate(i + c, c, grad_input, grad_weights, grad_logits);
    }
  }
}

}  // namespace capsops::capsule_routing::CAPSOPS_ISA
