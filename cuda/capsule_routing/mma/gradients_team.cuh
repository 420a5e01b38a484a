// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Shared memory and fragment operations of a team of warps of GradientsKernel.
#pragma once

#include "cuda/capsule_routing/mma/pass.cuh"

namespace capsops::capsule_routing::mma {

constexpr int kIterations = 3;      // iterations per launch
constexpr int kGradientWarps = 16;  // most warps per block
constexpr int kGradientTeams = 15;  // most teams per block, as named barriers allow

// Shared memory of a block: the stages, then the teams. A team has one warp per group
// of output capsules, and kCaps input capsules. stage(), weights() and team() are in
// bytes, vector_length() and exchange() in float4, and row() in elements.
template <typename S, int D, int K>
struct GradientsShared {
  static constexpr int M = D / 2, KS = K / kStepK;
  static constexpr int kCaps = 2 / KS;
  static constexpr int kWeights = 4 * D * kStepK;  // weights per product
  static constexpr int kPad = 32 / sizeof(S);      // spreads samples over the banks

  int groups, teams, vectors;  // groups of 4 output capsules, teams, staged vectors

  // One stage: `vectors` vectors of one tile of samples, and its input.
  __host__ __device__ int vector_length() const { return groups * M * kLanes; }
  __host__ __device__ int row() const { return teams * kCaps * K + kPad; }
  __host__ __device__ int stage() const {
    return vectors * vector_length() * static_cast<int>(sizeof(float4)) +
           kTileSamples * row() * static_cast<int>(sizeof(S));
  }
  // One team: operands of weights [capsule][KS][group], then the buffer that its warps
  // exchange: Rows of c and of db [iteration with V][capsule], or partial grad_input
  // [group][capsule][KS][lane].
  __host__ __device__ int weights() const {
    return kCaps * KS * groups * kWeights * static_cast<int>(sizeof(float));
  }
  __host__ __device__ Rows rows() const { return Rows(groups, vectors / 2 * kCaps); }
  __host__ __device__ int exchange() const {
    const int parts = kCaps * KS * kLanes * groups, both = 2 * rows().length();
    return both > parts ? both : parts;
  }
  __host__ __device__ int team() const {
    return weights() + exchange() * static_cast<int>(sizeof(float4));
  }
};

// Swizzled offset of weight (k, output capsule j, d) in the operand of one product.
// Loads by (j, d), for products with input, and by (k, j), for products with du_hat,
// have no bank conflicts. Four k are contiguous.
__device__ inline int WeightPlace(int k, int j, int d) {
  return d * 32 + ((j * kStepK + k) ^ ((d & 1) * 16));
}

// Transposes an 8 x 8 matrix, of which a lane has row g, columns 2t and 2t + 1. The
// high and low halves of the floats move separately, since movmatrix moves 16 bits.
__device__ inline float2 Transpose(float x, float y) {
  const auto move = [](uint32_t halves) {
    uint32_t moved;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(moved) : "r"(halves));
    return moved;
  };
  const uint32_t a = __float_as_uint(x), b = __float_as_uint(y);
  const uint32_t low = move(__byte_perm(a, b, 0x5410));
  const uint32_t high = move(__byte_perm(a, b, 0x7632));
  return {__uint_as_float(__byte_perm(low, high, 0x5410)),
          __uint_as_float(__byte_perm(low, high, 0x7632))};
}

// Returns the sum over the lanes with the same column.
__device__ inline float SumOverRows(float value) {
#pragma unroll
  for (int offset = 4; offset < kLanes; offset *= 2) {
    value += __shfl_xor_sync(~0u, value, offset);
  }
  return value;
}

// sum += factors x, for each of two rows.
__device__ inline void AddScaled(const float (&factors)[2], const float4& x,
                                 float (&sum)[4]) {
  sum[0] += factors[0] * x.x;
  sum[1] += factors[0] * x.y;
  sum[2] += factors[1] * x.z;
  sum[3] += factors[1] * x.w;
}

}  // namespace capsops::capsule_routing::mma
