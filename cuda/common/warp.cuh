// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Operations on short rows in registers, by a lane or a warp.
#pragma once

#include "cuda/common/types.cuh"

namespace capsops {

constexpr int kLanes = 32;

// 2^x and 1 / x to a few units in the last place; denormals are flushed to zero.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// exp(x - maximum).
__device__ inline float ExpBelow(float x, float maximum) {
  constexpr float kLog2E = 1.44269504f;
  return Exp2((x - maximum) * kLog2E);
}
__device__ inline double ExpBelow(double x, double maximum) { return exp(x - maximum); }

// Loads K elements and widens them; those from `in_dim` on are zero. `vector`: all K
// exist and are aligned for vector loads.
template <typename S, typename A, int K>
__device__ void LoadRow(const S* from, int in_dim, bool vector, A (&row)[K]) {
  if (vector) {
    constexpr int kStep = sizeof(S) * K < 16 ? K : 16 / sizeof(S);
#pragma unroll
    for (int k = 0; k < K; k += kStep) LoadPack<kStep>(from + k, row + k);
  } else {
#pragma unroll
    for (int k = 0; k < K; ++k) row[k] = k < in_dim ? Widen(from[k]) : A{0};
  }
}

// Stores the first `in_dim` of K accumulators; `vector` is as in LoadRow.
template <typename S, typename A, int K>
__device__ void StoreRow(const A (&row)[K], int in_dim, bool vector, S* to) {
  if (vector) {
    constexpr int kStep = sizeof(S) * K < 16 ? K : 16 / sizeof(S);
#pragma unroll
    for (int k = 0; k < K; k += kStep) StorePack<kStep>(row + k, to + k);
  } else {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (k < in_dim) Narrow(row[k], to + k);
    }
  }
}

// Return the sum and the maximum over the warp, in all lanes.
template <typename A>
__device__ A SumOfWarp(A value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(~0u, value, offset);
  }
  return value;
}
template <typename A>
__device__ A MaxOfWarp(A value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value = max(value, __shfl_xor_sync(~0u, value, offset));
  }
  return value;
}

// Sums each of the K elements over the warp in a fixed order; lane l returns the sum of
// element l / (32 / K). Each step halves the elements per lane, so this takes K - 1 +
// log2(32 / K) shuffles instead of 5 K.
template <int Offset = kLanes / 2, typename A, int K>
__device__ A SumOverLanes(const A (&row)[K]) {
  if constexpr (K > 1) {
    const bool upper = threadIdx.x & Offset;
    A kept[K / 2];
#pragma unroll
    for (int k = 0; k < K / 2; ++k) {
      const A sent = upper ? row[k] : row[k + K / 2];
      kept[k] = upper ? row[k + K / 2] : row[k];
      kept[k] += __shfl_xor_sync(~0u, sent, Offset);
    }
    return SumOverLanes<Offset / 2>(kept);
  } else {
    A sum = row[0];
#pragma unroll
    for (int offset = Offset; offset > 0; offset /= 2) {
      sum += __shfl_xor_sync(~0u, sum, offset);
    }
    return sum;
  }
}

}  // namespace capsops
