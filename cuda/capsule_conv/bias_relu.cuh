// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Adds a bias to a convolution and makes what is negative zero: while it stores its
// results, or in a pass of its own.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_BIAS_RELU_CUH_
#define CAPSOPS_CUDA_CAPSULE_CONV_BIAS_RELU_CUH_

#include <algorithm>
#include <cstdint>

#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"

namespace capsops::capsule_conv {

// NaN stays NaN.
template <typename A, typename S>
__device__ A BiasRelu(A x, S bias) {
  x += Widen(bias);
  return x < 0 ? 0 : x;
}

constexpr int kBiasReluThreads = 256;

// An image of `packs` packs, and `pixel` of them in a pixel, as in the bias.
template <typename S, int kPack>
__global__ void BiasReluKernel(int64_t packs, int64_t pixel,
                               const Pack<S, kPack>* __restrict__ bias,
                               Pack<S, kPack>* __restrict__ image) {
  const int64_t threads = int64_t{gridDim.x} * kBiasReluThreads;
  int64_t i = int64_t{blockIdx.x} * kBiasReluThreads + threadIdx.x;
  int64_t at = i % pixel;
  const int64_t advance = threads % pixel;
  for (; i < packs; i += threads) {
    Pack<S, kPack> pack = image[i];
#pragma unroll
    for (int e = 0; e < kPack; ++e) {
      Narrow(BiasRelu(Widen(pack.at[e]), bias[at].at[e]), &pack.at[e]);
    }
    image[i] = pack;
    at += advance;
    if (at >= pixel) at -= pixel;
  }
}

template <typename S, int kPack>
LaunchError LaunchBiasRelu(const GpuExec& exec, const char* op, int64_t pixels,
                           int64_t pixel, const S* bias, S* image) {
  const int64_t packs = pixels * (pixel / kPack);
  if (packs == 0) return {};
  const int64_t blocks = std::min((packs + kBiasReluThreads - 1) / kBiasReluThreads,
                                  int64_t{16} * exec.device.processors);
  BiasReluKernel<S, kPack><<<blocks, kBiasReluThreads, 0, exec.stream>>>(
      packs, pixel / kPack, reinterpret_cast<const Pack<S, kPack>*>(bias),
      reinterpret_cast<Pack<S, kPack>*>(image));
  return CheckLaunch(op);
}

// In a pass of its own over `pixels` pixels, which have as many elements as `bias`.
template <typename S>
LaunchError AddBiasRelu(const GpuExec& exec, const char* op, int64_t pixels,
                        int64_t pixel, const S* bias, S* image) {
  return pixel % 4 == 0 ? LaunchBiasRelu<S, 4>(exec, op, pixels, pixel, bias, image)
                        : LaunchBiasRelu<S, 1>(exec, op, pixels, pixel, bias, image);
}

}  // namespace capsops::capsule_conv

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_BIAS_RELU_CUH_
