// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The forward kernel of capsule prediction (method: capsule_prediction/launch.cu.cc). A
// block computes kForwardSamples samples of one input capsule and 32 V columns. A lane
// loads the weights of V columns to registers once; the samples are staged in shared
// memory, and each warp takes every kForwardWarps-th of them.
#pragma once

#include <cstdint>

#include "cuda/common/warp.cuh"

namespace capsops::capsule_prediction {

constexpr int kForwardWarps = 4;
constexpr int kForwardSamples = 32;  // samples per block

// Sizes for the kernels. `vector`: rows of in_dim elements can be accessed as 16-byte
// words.
struct Sizes {
  int64_t batch, in_caps, columns;
  int in_dim;
  bool vector;
};

// Copies samples [b0, b0 + count) of one input capsule to shared memory, zero-padded.
template <typename S, typename A, int K>
__device__ void StageSamples(const Sizes& z, const S* input, int64_t i, int64_t b0,
                             int count, A (*samples)[K]) {
  for (int e = threadIdx.x; e < count * K; e += blockDim.x) {
    const int b = e / K, k = e % K;
    samples[b][k] =
        k < z.in_dim ? Widen(input[((b0 + b) * z.in_caps + i) * z.in_dim + k]) : A{0};
  }
}

// Computes and stores a block's output. K is in_dim, rounded up.
template <typename S, typename A, int K, int V>
__global__ void __launch_bounds__(kForwardWarps* kLanes)
    ForwardKernel(Sizes z, int64_t column_tiles, const S* __restrict__ input,
                  const S* __restrict__ weights, S* __restrict__ output) {
  __shared__ __align__(16) A samples[kForwardSamples][K];
  // in_caps varies fastest, so that concurrent blocks write neighboring memory.
  const int64_t i = blockIdx.x % z.in_caps;
  const int64_t n0 = blockIdx.x / z.in_caps % column_tiles * (kLanes * V);
  const int64_t b0 = blockIdx.x / z.in_caps / column_tiles * kForwardSamples;
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int count = min(z.batch - b0, int64_t{kForwardSamples});
  A w[V][K];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    // Padded columns repeat the last weights; their results are not stored.
    const int64_t n = min(n0 + v * kLanes + lane, z.columns - 1);
    LoadRow(weights + (i * z.columns + n) * z.in_dim, z.in_dim, z.vector, w[v]);
  }
  StageSamples(z, input, i, b0, count, samples);
  __syncthreads();
  for (int b = warp; b < count; b += kForwardWarps) {
    A x[K];
#pragma unroll
    for (int k = 0; k < K; ++k) x[k] = samples[b][k];
    S* const row = output + ((b0 + b) * z.in_caps + i) * z.columns + n0 + lane;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      A sum = 0;
#pragma unroll
      for (int k = 0; k < K; ++k) sum += w[v][k] * x[k];
      if (n0 + v * kLanes + lane < z.columns) Narrow(sum, row + v * kLanes);
    }
  }
}

}  // namespace capsops::capsule_prediction
