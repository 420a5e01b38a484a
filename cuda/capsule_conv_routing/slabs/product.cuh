// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Tiles of products in TF32 with wgmma, of 128 rows and 8 kProducts columns. Warps 0 to
// 7 of a block are two consumer warpgroups, which multiply and store; of the third
// warpgroup, one warp or thread fills stages with boxes of both operands by TMA.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cc/launch/capsule_conv_slabs.h"
#include "cuda/common/barrier.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/tensor_map.cuh"
#include "cuda/common/types.cuh"
#include "cuda/common/warpgroup.cuh"

namespace capsops::capsule_conv_routing::slabs {

constexpr int kTileRows = 128, kDepth = 32;  // kDepth: terms of a stage
constexpr int kProductThreads = 384, kConsumers = 256, kConsumerWarps = 8;
// Registers per thread at launch, of consumers, and of the producer.
constexpr int kRegisters = 168, kMany = 232, kFew = 40;
constexpr int kRowBytes = kTileRows * kSwizzleBytes, kAlignment = 1024;

// The ring of stages in shared memory: rows, then columns, each of kDepth terms.
template <int kProducts>
struct Stages {
  static constexpr int kBytes = kRowBytes + kProducts * 8 * kSwizzleBytes;
  static constexpr int kCount = (192 << 10) / kBytes;
  char memory[kCount][kBytes];
  Barrier full[kCount], empty[kCount];

  // The bytes of dynamic shared memory.
  static constexpr int SharedBytes() {
    return static_cast<int>(sizeof(Stages)) + kAlignment;
  }
  // Each warp of consumers releases a stage.
  __device__ inline void Release(int stage) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) empty[stage].Arrive();
  }
  // Waits until a stage is released. Returns the barrier for the boxes that fill it.
  __device__ inline Barrier& Claim(const PipelineState& at) {
    empty[at.at].Wait(at.parity);
    full[at.at].ArriveAndExpectBytes(kBytes);
    return full[at.at];
  }
};

// Keep the compiler from moving sums into the asynchronous products.
template <int kProducts>
__device__ inline void Clear(float (&sums)[kProducts][4]) {
#pragma unroll
  for (int n = 0; n < kProducts; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      sums[n][e] = 0;
      asm volatile("" : "+f"(sums[n][e]));
    }
  }
}
template <int kProducts>
__device__ inline void Complete(float (&sums)[kProducts][4]) {
#pragma unroll
  for (int n = 0; n < kProducts; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(sums[n][e])::"memory");
  }
}

// Boxes of `box` rows of kDepth terms in matrices [planes][rows][terms].
inline TmaTensor<3> Matrices(uint64_t terms, uint64_t rows, uint64_t planes,
                             uint32_t box) {
  TmaTensor<3> tensor;
  tensor.size = {terms, rows, planes};
  tensor.apart = {terms, rows * terms};
  tensor.box = {kDepth, box, 1};
  tensor.every = {1, 1, 1};
  return tensor;
}

// Calls launch(products) with the first number of products that has all columns, or
// with the last.
template <int kFirst, int... kMore, typename Launch>
LaunchError WithProducts(int64_t columns, const Launch& launch) {
  if constexpr (sizeof...(kMore) > 0) {
    if (columns > 8 * kFirst) return WithProducts<kMore...>(columns, launch);
  }
  return launch(std::integral_constant<int, kFirst>());
}

template <auto kKernel, int kProducts, typename... Arguments>
LaunchError LaunchProduct(const char* op, const GpuExec& exec, int blocks,
                          const Arguments&... arguments) {
  CAPSOPS_RETURN_IF_ERROR(CheckRegisters<kKernel>(op, kRegisters));
  return LaunchDependent<kKernel>(op, dim3(blocks), kProductThreads,
                                  Stages<kProducts>::SharedBytes(), exec, arguments...);
}

// Whether test(phase) holds for all phases.
template <typename Test>
bool AllPhases(const Problem& p, const Test& test) {
  return ForEachPhase(
             p,
             [&](const Phase& phase) { return LaunchError(test(phase) ? "" : "no"); })
      .empty();
}

}  // namespace capsops::capsule_conv_routing::slabs
