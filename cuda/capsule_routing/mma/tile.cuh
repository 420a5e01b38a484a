// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The register layout of the tensor-core kernels of capsule routing.
//
// A warp holds the predictions of one input capsule for 16 samples and 4 output
// capsules, as the accumulators of M = D / 2 products m16n8k8. Rows are samples. The 8
// columns of product m are elements 2m and 2m + 1 of the 4 output capsules, so that
// lane (g, t) = (lane / 4, lane % 4) has all of u_hat for samples g and g + 8 and
// output capsule t, and only the softmax crosses lanes. A lane's elements are ordered
// by m, then sample, then element of the pair: one float4 per m. Vectors of output
// capsules (V, ds, partial sums) are stored in the same order, as [tile of 16
// samples][group of 4 output capsules][m][lane] float4, zero-padded.
#pragma once

#include <cstdint>

#include "cuda/common/tensor_cores.cuh"
#include "cuda/common/types.cuh"
#include "cuda/common/warp.cuh"

namespace capsops::capsule_routing::mma {

constexpr int kTileSamples = 16;
constexpr int kGroupCaps = 4;
constexpr int kStepK = 8;  // in_dim per product

// Sizes of the problem: `tiles` of 16 samples, and `groups` of 4 output capsules.
struct Sizes {
  int64_t batch, in_caps, tiles;
  int out_caps, groups;
  float epsilon;
};

// A lane's position in the fragments of a product.
struct Place {
  int lane = threadIdx.x % kLanes;
  int g = lane / 4, t = lane % 4;
};

// Return the index, in float4, of this lane's m = 0 in a vector of output capsules, and
// the length of such a vector in floats.
template <int D>
__device__ int64_t VectorIndex(const Sizes& z, int64_t tile, int group) {
  return (tile * z.groups + group) * (D / 2 * kLanes) + threadIdx.x % kLanes;
}
template <int D>
__host__ __device__ int64_t VectorFloats(const Sizes& z) {
  return z.tiles * z.groups * (D / 2 * kLanes * 4);
}

// Operands of one product. Contraction index t is k = 2t and index t + 4 is k = 2t + 1,
// so that a lane loads pairs.
template <Tf32 kTf32, typename S>
__device__ Operand<4, kTf32> SamplesOperand(const Pack<S, 2> (&rows)[2]) {
  Operand<4, kTf32> a;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    SetFinite<kTf32>(e, Prepare<kTf32>(Widen(rows[e % 2].at[e / 2])), &a);
  }
  return a;
}
// Returns weights times `factor`, which is at most 1. One of the two has been through
// Prepare().
template <Tf32 kTf32, typename S>
__device__ Operand<2, kTf32> WeightsOperand(const Pack<S, 2>& column,
                                            float factor = 1) {
  // A 16-bit number times a factor of at most 1 cannot overflow when rounded.
  constexpr Tf32 kOf = sizeof(S) < sizeof(float) ? Tf32::kExact : kTf32;
  Operand<2, kTf32> b;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    SetFinite<kOf>(e, factor * Widen(column.at[e]), &b);
  }
  return b;
}

template <typename S>
__device__ Pack<S, 2> LoadPair(const S* from) {
  return *reinterpret_cast<const Pack<S, 2>*>(from);
}

template <typename S>
__device__ void StorePair(float x, float y, S* to) {
  *reinterpret_cast<Pack<S, 2>*>(to) = NarrowPair<S>(x, y);
}

// Stores a pair, added to the old one if `more`.
template <typename S>
__device__ void AddPair(float x, float y, bool more, S* to) {
  if (more) {
    x += Widen(to[0]);
    y += Widen(to[1]);
  }
  StorePair(x, y, to);
}

__device__ inline void Add(const float4& x, float4* to) {
  to->x += x.x;
  to->y += x.y;
  to->z += x.z;
  to->w += x.w;
}

// Adds the products of x and y to N sums: one per element, or with N = 2 one per row.
template <int N>
__device__ void AddProducts(const float (&x)[4], const float4& y, float (&sum)[N]) {
  sum[0] += x[0] * y.x;
  sum[N / 4] += x[1] * y.y;
  sum[N / 2] += x[2] * y.z;
  sum[N - 1] += x[3] * y.w;
}

}  // namespace capsops::capsule_routing::mma
