// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Adds a bias to a convolution's output and applies ReLU, in a separate pass.
#include "cuda/capsule_conv/bias_relu.cuh"

#include <algorithm>
#include <cstdint>

#include "cc/launch/capsule_conv.h"
#include "cuda/capsule_conv/paths.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"

namespace capsops::capsule_conv {

constexpr int kBiasReluThreads = 256;

// Applies bias and ReLU in place. A thread handles every `threads`-th of `packs` packs
// of kPack elements. A pixel has `pixel` packs; a pack's index in its pixel, `at`,
// advances without division.
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
  return Launch(op, BiasReluKernel<S, kPack>, blocks, kBiasReluThreads, 0, exec, packs,
                pixel / kPack, reinterpret_cast<const Pack<S, kPack>*>(bias),
                reinterpret_cast<Pack<S, kPack>*>(image));
}

template <typename T>
BiasReluPlan<GpuExec, T> AddBiasRelu(const char* op, const Problem& p,
                                     const ConvPlan<GpuExec, T>& conv) {
  BiasReluPlan<GpuExec, T> plan;
  plan.error = conv.error;
  if (!conv.run) return plan;
  return BiasReluPlan<GpuExec, T>::Make(
      conv.workspace, [op, conv, pixels = Pixels(p), pixel = PixelSize(p)](
                          const GpuExec& exec, const T* input, const T* weights,
                          const T* bias, T* output, void* workspace) {
        CAPSOPS_RETURN_IF_ERROR(conv.run(exec, input, weights, output, workspace));
        const auto launch = pixel % 4 == 0 ? LaunchBiasRelu<CudaType<T>, 4>
                                           : LaunchBiasRelu<CudaType<T>, 1>;
        return launch(exec, op, pixels, pixel, Native(bias), Native(output));
      });
}

#define CAPSOPS_INSTANTIATE(T)                                                  \
  template BiasReluPlan<GpuExec, T> AddBiasRelu<T>(const char*, const Problem&, \
                                                   const ConvPlan<GpuExec, T>&);
CAPSOPS_FOR_EACH_TYPE(CAPSOPS_INSTANTIATE)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::capsule_conv
