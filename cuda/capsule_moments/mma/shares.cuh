// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Softmax over parents of the logits of a chunk, in shared memory, and the gradients of
// the logits. A thread has eight parents of one row [position, k], so that one, two or
// four neighboring threads have a whole row.
#pragma once

#include <cstdint>

#include "cuda/capsule_moments/mma/division.cuh"

namespace capsops::capsule_moments::mma {

// Reduces over the 1, 2 or 4 threads of a row.
template <typename Combine>
__device__ float OverRow(float number, int threads, const Combine& combine) {
  if (threads > 1) number = combine(number, __shfl_xor_sync(~0u, number, 1));
  if (threads > 2) number = combine(number, __shfl_xor_sync(~0u, number, 2));
  return number;
}
__device__ inline float SumOverRow(float sum, int threads) {
  return OverRow(sum, threads, [](float a, float b) { return a + b; });
}

// Replaces this thread's eight logits with `factor` times their shares, and sets the
// row's `maximum` and `scale`. Shares of padding parents are 0, and those of a missing
// child 0 or NaN.
__device__ inline void MakeShares(int threads, float factor, float (&z)[kEight],
                                  RowState* child) {
  float maximum = fmaxf(fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3])),
                        fmaxf(fmaxf(z[4], z[5]), fmaxf(z[6], z[7])));
  maximum = OverRow(maximum, threads, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
  for (float& x : z) x = ExpBelow(x, maximum);
  const float sum = ((z[0] + z[1]) + (z[2] + z[3])) + ((z[4] + z[5]) + (z[6] + z[7]));
  const float scale = Reciprocal(SumOverRow(sum, threads));
  const bool exists = child->scale != 0;
  child->scale = exists ? scale : 0;
  child->maximum = exists ? maximum : 0;
  factor *= child->scale;
#pragma unroll
  for (float& x : z) x *= factor;
}

// Replaces logits with activation * share. If kGradient, also replaces the gradients of
// activation * share with those of the logits, and writes that of the row's activation.
// With out.scales, only writes the row's softmax (see Results).
template <bool kGradient>
__device__ void ShareChunk(const Inputs& in, const Division& d, int group, int k0,
                           const RowState* all_states, VoteTerms<kGradient>* votes,
                           const Results& out) {
  const int threads = d.lanes() / kEight, row = threadIdx.x >> (d.lanes_log2 - 3);
  const int first = (threadIdx.x & (threads - 1)) * kEight;
  float* const my_votes =
      reinterpret_cast<float*>(votes + row * (d.lanes() + 4) + first);
  constexpr int kNumbers = kGradient ? 2 : 1;
  float terms[kNumbers * kEight];
  LoadWords(my_votes, terms);
  RowState state = all_states[row];
  const int k = k0 + (row >> d.windows_log2());
  const int position = (group << d.windows_log2()) + (row & (d.windows() - 1));
  const int64_t to = int64_t{position} * d.children + k;
  const bool writes = first == 0 && k < d.children && position < d.positions;
  float z[kEight];
#pragma unroll
  for (int e = 0; e < kEight; ++e) z[e] = terms[kNumbers * e];
  if (in.prior != nullptr && k < d.children) {
#pragma unroll
    for (int e = 0; e < kEight; ++e) {
      if (first + e < d.outs) z[e] += in.prior[int64_t{k} * d.outs + first + e];
    }
  }
  MakeShares(threads, kGradient ? 1 : state.activation, z, &state);
  if constexpr (kGradient) {
    float means[2] = {};
#pragma unroll
    for (int e = 0; e < kEight; ++e) means[e % 2] += z[e] * terms[2 * e + 1];
    const float mean = SumOverRow(means[0] + means[1], threads);
    if (out.dots != nullptr) {
      if (writes) {
        out.scales[to] = {state.maximum, state.scale};
        out.dots[to] = state.activation * mean;
      }
      return;
    }
    state.dot = state.activation * mean;
#pragma unroll
    for (int e = 0; e < kEight; ++e) {
      terms[2 * e + 1] = z[e] * (state.activation * terms[2 * e + 1] - state.dot);
    }
    if (writes && out.activations != nullptr) out.activations[to] = mean;
  } else if (out.scales != nullptr) {
    if (writes) out.scales[to] = {state.maximum, state.scale};
    return;
  }
#pragma unroll
  for (int e = 0; e < kEight; ++e) {
    terms[kNumbers * e] = kGradient ? z[e] * state.activation : z[e];
  }
  StoreWords(terms, my_votes);
}

}  // namespace capsops::capsule_moments::mma
