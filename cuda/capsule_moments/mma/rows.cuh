// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The gradients of a chunk's poses and activations, one for each row [position, k].
#pragma once

#include <cstdint>

#include "cuda/capsule_moments/mma/shares.cuh"

namespace capsops::capsule_moments::mma {

// Offset of element (row, q) of the pose gradient of a warp's window g, in the warp's
// buffer for one child. With Q = 4 windows are 16 words apart, so that only two would
// use different banks; the swizzle spreads the others.
template <int Q>
__device__ int RowAt(int g, int row, int q) {
  return g * kRow<Q> + (Q == 4 ? row ^ (g / 2 % kSide) : row) * (kRow<Q> / kSide) + q;
}

// Sums the pose gradients `rows` of a chunk over the warps of each window, which have
// four parents each, and writes them. If kDirect, also writes the gradient of each
// row's activation, from `dqs`, the warps' sums of share dq as [warp][child][window of
// the warp]. Completes them first:
//   - If kEqual, `dqs` lack the factor share, and `rows` the factor activation * share.
//   - If `linear`, `dqs` lack <grad_first, u>. The sum of this term over parents is the
//     inner product of the pose and its gradient.
template <bool kDirect, bool kEqual, bool kSplit, int Q>
__device__ void SumRows(const Division& d, int group, int k0, const float* rows,
                        const StageView<Q>& stage, const float* dqs, bool linear,
                        const Results& out) {
  const int warps = d.lanes() / kFour, used = (d.outs + kFour - 1) / kFour;
  const int p = threadIdx.x % kSide, end = kChunk << d.windows_log2();
#pragma unroll 1
  for (int e = threadIdx.x / kSide; e < end; e += kThreads / kSide) {
    const int window = e & (d.windows() - 1), j = e >> d.windows_log2();
    const int position = (group << d.windows_log2()) + window, k = k0 + j;
    const bool there = position < d.positions && k < d.children;
    const int first_warp = window / kEight * warps;
    const float* from = rows + (first_warp * kChunk + j) * kEight * kRow<Q> +
                        RowAt<Q>(window % kEight, p, 0);
    float sums[Q] = {};
#pragma unroll 4
    for (int w = 0; w < used; ++w, from += kChunk * kEight * kRow<Q>) {
      float row[Q];
      LoadRow(from, row);
#pragma unroll
      for (int q = 0; q < Q; ++q) sums[q] += row[q];
    }
    const int64_t to = int64_t{position} * d.children + k;
    if constexpr (kDirect) {
      const RowState state = stage.state[e];
      float dq = 0;
      if (out.activations != nullptr) {
        for (int w = p; w < used; w += kSide) {
          dq += dqs[((first_warp + w) * kChunk + j) * kEight + window % kEight];
        }
#pragma unroll
        for (int q = 0; kEqual && linear && q < Q; ++q) {
          const float pose = stage.poses[(e * Q + q) * kSide + p];
          dq += sums[q] * (kSplit ? pose : TruncateToTf32(pose));
        }
        dq = SumOverRow(dq, kSide);
      }
      if (p == 0 && there && out.activations != nullptr) {
        out.activations[to] = kEqual ? state.scale * dq : dq;
      }
#pragma unroll
      for (float& x : sums) x *= kEqual ? state.activation * state.scale : 1;
    }
    if (there) StoreRow(sums, out.poses + (to * kSide + p) * Q);
  }
}

}  // namespace capsops::capsule_moments::mma
