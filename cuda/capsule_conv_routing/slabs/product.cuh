// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Tiles of products in TF32 with wgmma, of 128 rows and 8 kProducts columns. Warps 0 to
// 7 of a block are two consumer warpgroups, which multiply and store; of the third
// warpgroup, one warp or thread fills stages with boxes of both operands by TMA.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cc/launch/capsule_conv_slabs.h"
#include "cuda/common/barrier.cuh"
#include "cuda/common/cluster.cuh"
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
  // A thread initializes the barriers. Stages are released by `warps` warps.
  __device__ inline void Init(int warps) {
    for (int n = 0; n < kCount; ++n) {
      full[n].Init(1);
      empty[n].Init(warps);
    }
    Barrier::FenceInit();
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

// Returns the stages in the dynamic shared memory of a block.
template <int kProducts>
__device__ inline Stages<kProducts>& StagesIn(void* memory) {
  return *reinterpret_cast<Stages<kProducts>*>(
      static_cast<char*>(memory) +
      (kAlignment - SharedAddress(memory) % kAlignment) % kAlignment);
}

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

// Multiplies tiles: adds up the products of the boxes of each step, and stores the sums
// in rows of `w.columns` numbers. A step has kDepth terms.
//
// If `w.paired`, a cluster has two blocks, whose tiles have the same columns and steps.
// They take turns at loading columns for both.
//
// Work has:
//   paired, columns
//   Count()                the number of tiles or, if paired, of pairs
//   Tile(w, number, rank)  a tile, whose `column_tile` counts tiles of columns; with
//                          the block's rank in its pair
//   ForSteps(tile, step)   calls step(term, matrix, at...) for each step, with the
//                          coordinates (term, at...) of the rows' box, and (term,
//                          column, matrix) of the columns'
//   Steps(tile)            the number of steps
//   Row(tile, row)         the row of the result that a row of the tile is, or -1
template <int kProducts, typename Work>
__global__ void __launch_bounds__(kProductThreads, 1)
    MultiplyKernel(const __grid_constant__ CUtensorMap rows,
                   const __grid_constant__ CUtensorMap columns, const Work w,
                   float* to) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Tile = typename Work::Tile;
  constexpr int kStages = Stages<kProducts>::kCount;
  extern __shared__ uint4 memory[];
  auto& stages = StagesIn<kProducts>(memory);
  const int pair = w.paired ? 2 : 1, rank = static_cast<int>(blockIdx.x) % pair;
  if (threadIdx.x == 0) stages.Init(pair * kConsumerWarps);
  SyncCluster();  // of a single block is __syncthreads()
  GridDependencySynchronize();
  // Blocks that begin with the first tiles end with the last.
  const auto for_tiles = [&](const auto& visit) {
    const int blocks = gridDim.x / pair, block = blockIdx.x / pair, count = w.Count();
    for (int turn = 0, first = 0; first < count; ++turn, first += blocks) {
      const int number = first + (turn % 2 == 0 ? block : blocks - 1 - block);
      if (number < count) visit(Tile(w, number, rank));
    }
  };
  const int group = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 2) {
    SetMaxRegisters<kFew, false>();
    if (threadIdx.x % 128 == 0) {
      PipelineState at;
      at.parity = 1;  // empty stages count as released
      int turn = 0;
      for_tiles([&](const Tile& tile) {
        const int column = tile.column_tile * kProducts * 8;
        w.ForSteps(tile, [&](int term, int matrix, auto... more) {
          char* const stage = stages.memory[at.at];
          Barrier& full = stages.Claim(at);
          TmaLoad(rows, term, more..., full, stage);
          if (pair == 1) {
            TmaLoad(columns, term, column, matrix, full, stage + kRowBytes);
          } else if (turn == rank) {
            TmaLoadTo(3, columns, term, column, matrix, full, stage + kRowBytes);
          }
          turn ^= 1;
          at.Next(kStages);
        });
      });
    }
  } else {
    SetMaxRegisters<kMany, true>();
    PipelineState at;
    // Both blocks fill a stage of each, so both wait until it is released.
    const auto release = [&](int stage) {
      __syncwarp();
      const int lane = threadIdx.x % 32;
      if (lane < pair) ArriveAt(stages.empty[stage], lane);
    };
    for_tiles([&](const Tile& tile) {
      float sums[kProducts][4];
      Clear(sums);
      int before = -1;
      for (int steps = w.Steps(tile); steps > 0; --steps, at.Next(kStages)) {
        const char* const stage = stages.memory[at.at];
        stages.full[at.at].Wait(at.parity);
        const uint32_t left =
            DescriptorAddress(stage) + group * (64 * kSwizzleBytes / 16);
        const uint32_t right = DescriptorAddress(stage + kRowBytes);
        WgmmaFence();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          Wgmma<float, kProducts>::Begin(MakeSwizzledDescriptor(left + 2 * k),
                                         MakeSwizzledDescriptor(right + 2 * k), sums,
                                         true);
        }
        WgmmaCommit();
        WgmmaWait<1>();
        if (before >= 0) release(before);
        before = at.at;
      }
      WgmmaWait<0>();
      if (before >= 0) release(before);
      Complete(sums);
      const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
      const int64_t upper = w.Row(tile, warp * 16 + lane / 4);
      const int64_t lower = w.Row(tile, warp * 16 + lane / 4 + 8);
      const int first = tile.column_tile * kProducts * 8 + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kProducts; ++n) {
        const int column = first + 8 * n;
        if (column >= w.columns) break;
        if (upper >= 0) {
          *reinterpret_cast<float2*>(to + upper * w.columns + column) =
              make_float2(sums[n][0], sums[n][1]);
        }
        if (lower >= 0) {
          *reinterpret_cast<float2*>(to + lower * w.columns + column) =
              make_float2(sums[n][2], sums[n][3]);
        }
      }
    });
  }
  // The other block may still read this one's barriers, or load into its stages.
  SyncCluster();
#else
  __trap();  // compiled for another GPU
#endif
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

template <int kProducts, typename Work>
LaunchError LaunchMultiply(const char* op, const GpuExec& exec, const CUtensorMap& rows,
                           const CUtensorMap& columns, const Work& w, float* to) {
  constexpr auto kKernel = MultiplyKernel<kProducts, Work>;
  const int cluster = w.paired ? 2 : 1;
  const int clusters = std::min(w.Count(), exec.device.processors / cluster);
  CAPSOPS_RETURN_IF_ERROR(CheckRegisters<kKernel>(op, kRegisters));
  return LaunchClusters<kKernel>(op, cluster, dim3(cluster * clusters), kProductThreads,
                                 Stages<kProducts>::SharedBytes(), exec, rows, columns,
                                 w, to);
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
