// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The shares of a chunk's votes, from logits in shared memory, and the gradients of the
// logits. A thread has eight parents of one row [position, k], so the threads of a row
// are one, two or four neighbours.
#ifndef CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_SHARES_CUH_
#define CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_SHARES_CUH_

#include <cstdint>

#include "cuda/capsule_moments/mma/division.cuh"

namespace capsops::capsule_moments::mma {

__device__ inline float SumOverRow(float sum, int threads) {
  for (int offset = 1; offset < threads; offset *= 2) {
    sum += __shfl_xor_sync(~0u, sum, offset);
  }
  return sum;
}

// Makes eight logits shares, 0 where there is no child, and where its parents end. For
// kSoftmax it sets the child's `most` and `scale`.
__device__ inline void MakeShares(Rule rule, int threads, int parents,
                                  float (&z)[kEight], Facts* child) {
  const bool exists = child->scale != 0;
  if (rule == Rule::kLogit) {
#pragma unroll
    for (int e = 0; e < kEight; ++e) z[e] = exists && e < parents ? z[e] : 0;
    return;
  }
  if (rule == Rule::kSoftmax) {
    float most = -INFINITY, sum = 0;
#pragma unroll
    for (int e = 0; e < kEight; ++e) most = fmaxf(most, e < parents ? z[e] : most);
    for (int offset = 1; offset < threads; offset *= 2) {
      most = fmaxf(most, __shfl_xor_sync(~0u, most, offset));
    }
#pragma unroll
    for (int e = 0; e < kEight; ++e) {
      z[e] = e < parents ? ExpOf(z[e], most) : 0;
      sum += z[e];
    }
    const float scale = __fdividef(1.0f, SumOverRow(sum, threads));
    if (exists) child->most = most, child->scale = scale;
#pragma unroll
    for (float& x : z) x = exists ? x * scale : 0;
    return;
  }
#pragma unroll
  for (int e = 0; e < kEight; ++e) {
    z[e] = exists && e < parents ? ExpOf(z[e], child->most) * child->scale : 0;
  }
}

// Replaces logits by activation * share, and the gradients of those by the gradients of
// logits; writes what there is one of for each row.
template <bool kGradient>
__device__ void ShareChunk(const Inputs& in, const Division& d, int group, int k0,
                           const Facts* all_facts, float* logits, float* dqs,
                           const Results& out) {
  const int threads = d.lanes() / kEight, row = threadIdx.x >> (d.lanes_log2 - 3);
  const int first = (threadIdx.x & (threads - 1)) * kEight, parents = d.outs - first;
  const int at = row * (d.lanes() + 4) + first;
  Facts facts = all_facts[row];
  const bool exists = facts.scale != 0;
  float z[kEight];
  LoadWords(logits + at, z);
  MakeShares(in.rule, threads, parents, z, &facts);
  const int k = k0 + (row >> d.windows_log2());
  const int position = (group << d.windows_log2()) + (row & (d.windows() - 1));
  const int64_t to = int64_t{position} * d.children + k;
  const bool writes = first == 0 && k < d.children && position < d.positions;
  if constexpr (kGradient) {
    float dq[kEight], mean = 0;
    LoadWords(dqs + at, dq);
#pragma unroll
    for (int e = 0; e < kEight; ++e) mean += exists && e < parents ? z[e] * dq[e] : 0;
    mean = SumOverRow(mean, threads);
    if (out.dots != nullptr) {
      if (writes) out.dots[to] = facts.activation * mean;
      return;
    }
    if (in.dots == nullptr) facts.dot = facts.activation * mean;
#pragma unroll
    for (int e = 0; e < kEight; ++e) {
      const float dr = facts.activation * dq[e];
      dq[e] = in.rule == Rule::kLogit ? dr : z[e] * (dr - facts.dot);
    }
    StoreWords(dq, dqs + at);
    if (writes) {
      out.facts[to] = facts;
      if (out.activations != nullptr) out.activations[to] = mean;
    }
  } else if (out.scales != nullptr) {
    if (writes) out.scales[to] = {facts.most, facts.scale};
    return;
  }
#pragma unroll
  for (float& x : z) x *= facts.activation;
  StoreWords(z, logits + at);
}

}  // namespace capsops::capsule_moments::mma

#endif  // CAPSOPS_CUDA_CAPSULE_MOMENTS_MMA_SHARES_CUH_
