// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Building blocks of the wgmma kernels for slabs: a pipeline of stages in shared
// memory, the consumers' main loop, and an epilogue with TMA stores. A block computes
// tiles of 128 rows by 8 kProducts columns, in TF32 (S is float) or in a 16-bit type S.
// Warps 0 to 7 are two consumer warpgroups, which multiply from shared memory and
// store. One warp or thread of the third warpgroup is the producer, which fills the
// stages with boxes of both operands by TMA. VotesKernel uses the same threads and
// registers, but has its own tiles and stages.
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

constexpr int kTileRows = 128;
// Terms (elements of the contraction) per stage. Its lines have 128 bytes.
template <typename S>
constexpr int kStageTerms = kSwizzleBytes / static_cast<int>(sizeof(S));
constexpr int kProductThreads = 384, kConsumers = 256, kConsumerWarps = 8;
// Registers per thread: at launch, of consumers, and of the producer. Moving them
// between warpgroups needs 256 kMany + 128 kFew <= 384 kRegisters.
constexpr int kRegisters = 168, kMany = 232, kFew = 40;
constexpr int kAlignment = 1024;  // the period of the 128-byte swizzle
// Each consumer warp has two boxes of 16 rows by 32 columns: TMA stores one while the
// warp fills the other.
constexpr int kBoxRows = 16, kStoreColumns = 32;
template <typename S>
constexpr int kStoreLine = kStoreColumns * static_cast<int>(sizeof(S));
template <typename S>
constexpr int kBoxBytes = kBoxRows * kStoreLine<S>;
template <typename S>
constexpr int kStoreBytes = kConsumerWarps * 2 * kBoxBytes<S>;

// Bytes of shared memory for stages and epilogue, and the most that a block uses, with
// barriers and alignment.
constexpr int kRingBytes = 225 << 10, kMostSharedBytes = kRingBytes + kAlignment + 512;

// Lets the two consumer warpgroups multiply in turn, each its own tile.
//
// Barrier::Wait() only tells odd from even phases of a stage, and a warpgroup skips the
// stages of the other's tiles. When its turn comes, all of those have been filled, so
// it cannot mistake a stage of an earlier tile for one of its own.
struct Turns {
  Barrier barriers[2];

  __device__ void Init() {
    for (Barrier& each : barriers) each.Init(kConsumerWarps / 2);
  }
  // Waits for turn `turn` of a warpgroup, counted from 0. The first turn of warpgroup 0
  // begins at once.
  __device__ void Wait(int group, int turn) {
    if (group > 0 || turn > 0) barriers[group].Wait((turn - 1 + group) % 2);
  }
  // Ends the turn of a warpgroup. All its warps call this.
  __device__ void Pass(int group) { barriers[1 - group].ArriveWarp(); }
};

// Layout of shared memory: a ring of stages, kEpilogueBytes for the epilogue (a
// multiple of 1024), and barriers. A stage holds kStageTerms terms of 128 rows, then of
// 8 kProducts columns.
template <typename S, int kProducts, int kEpilogueBytes = kStoreBytes<S>>
struct Stages {
  static_assert(kEpilogueBytes % 1024 == 0);
  static constexpr int kLine = kSwizzleBytes;
  static constexpr int kRowBytes = kTileRows * kLine;
  static constexpr int kBytes = kRowBytes + kProducts * 8 * kLine;
  static constexpr int kCount = (kRingBytes - kEpilogueBytes) / kBytes;
  char memory[kCount][kBytes];
  char epilogue[kEpilogueBytes];
  Barrier full[kCount], empty[kCount];
  Turns turns;  // for the consumer warpgroups to multiply in turn, in ImageGradKernel

  // Bytes of dynamic shared memory.
  static constexpr int SharedBytes() {
    static_assert(sizeof(Stages) + kAlignment <= kMostSharedBytes);
    return static_cast<int>(sizeof(Stages)) + kAlignment;
  }
  // Sets up the block's shared memory. A stage is empty again once `releases` warps
  // have released it. All threads of the block call this.
  __device__ static Stages& Start(int releases) {
    extern __shared__ uint4 dynamic[];
    auto& stages = *reinterpret_cast<Stages*>(
        reinterpret_cast<char*>(dynamic) +
        (kAlignment - SharedAddress(dynamic) % kAlignment) % kAlignment);
    if (threadIdx.x == 0) {
      stages.turns.Init();
      InitRing(kCount, releases, stages.full, stages.empty);
      Barrier::FenceInit();
    }
    __syncthreads();
    return stages;
  }
  // Waits until the stage is released. Returns the barrier that its next boxes, of
  // `bytes` bytes in total, complete on.
  __device__ inline Barrier& Claim(const PipelineState& at, int bytes = kBytes) {
    empty[at.at].Wait(at.parity);
    full[at.at].ArriveAndExpectBytes(bytes);
    return full[at.at];
  }

  // The main loop of a consumer warpgroup: sets `sums` to the products of the next
  // `steps` stages, from `at` on, and then lets the other warpgroup take its turn.
  __device__ inline void Multiply(int group, int steps, PipelineState* at,
                                  float (&sums)[2][kProducts][4]);
};

template <typename S, int kProducts, int kEpilogueBytes>
__device__ inline void Stages<S, kProducts, kEpilogueBytes>::Multiply(
    int group, int steps, PipelineState* at, float (&sums)[2][kProducts][4]) {
  Clear(sums[0]);
  Clear(sums[1]);
  int before = -1;
  for (; steps > 0; --steps, at->Next(kCount)) {
    const char* const stage = memory[at->at];
    full[at->at].Wait(at->parity);
    const uint32_t left = DescriptorAddress(stage);
    const uint32_t right = DescriptorAddress(stage + kRowBytes);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < kLine / 32; ++k) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        Wgmma<S, kProducts>::Begin(
            MakeSwizzledDescriptor(left + m * 4 * kLine + 2 * k, kLine),
            MakeSwizzledDescriptor(right + 2 * k, kLine), sums[m], true);
      }
    }
    WgmmaCommit();
    WgmmaWait<1>();  // until wgmma has read the previous stage
    if (before >= 0) empty[before].ArriveWarp();
    before = at->at;
  }
  // The other warpgroup may issue its products before these end.
  turns.Pass(group);
  WgmmaWait<0>();
  if (before >= 0) empty[before].ArriveWarp();
  Complete(sums[0]);
  Complete(sums[1]);
}

// Synchronizes a consumer warpgroup.
__device__ inline void SyncGroup(int group) {
  if (group == 0) {
    SyncNamedBarrier<128, 1>();
  } else {
    SyncNamedBarrier<128, 2>();
  }
}

// Adds 4 elements in global memory with one instruction. Subnormal floats become
// zeros.
template <typename S>
__device__ void AddToGlobal(S* to, const float4& sum) {
  const size_t at = __cvta_generic_to_global(to);
  if constexpr (std::is_same_v<S, float>) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(sum.x),
                 "f"(sum.y), "f"(sum.z), "f"(sum.w)
                 : "memory");
  } else {
    const auto low = NarrowPair<S>(sum.x, sum.y), high = NarrowPair<S>(sum.z, sum.w);
    const uint32_t a = reinterpret_cast<const uint32_t&>(low);
    const uint32_t b = reinterpret_cast<const uint32_t&>(high);
    if constexpr (std::is_same_v<S, __half>) {
      asm volatile("red.global.add.noftz.v2.f16x2 [%0], {%1, %2};" ::"l"(at), "r"(a),
                   "r"(b)
                   : "memory");
    } else {
      asm volatile("red.global.add.noftz.v2.bf16x2 [%0], {%1, %2};" ::"l"(at), "r"(a),
                   "r"(b)
                   : "memory");
    }
  }
}

// Stores 4 elements in global memory with one instruction.
template <typename S>
__device__ void StoreQuad(S* to, const float4& sum) {
  if constexpr (std::is_same_v<S, float>) {
    *reinterpret_cast<float4*>(to) = sum;
  } else {
    const auto low = NarrowPair<S>(sum.x, sum.y), high = NarrowPair<S>(sum.z, sum.w);
    *reinterpret_cast<uint2*>(to) = {reinterpret_cast<const uint32_t&>(low),
                                     reinterpret_cast<const uint32_t&>(high)};
  }
}

// Epilogue: stores a consumer warp's 16 rows of sums. For every 32 of `columns`
// columns, the warp fills a box in shared memory, and one lane calls store(column, box)
// to start its TMA store. `boxes` is the warpgroup's memory; `box`, 0 or 1, selects the
// box of the warp to fill next.
template <typename S, int kProducts, typename Store>
__device__ void StoreRows(const float (&sums)[kProducts][4], int columns, char* boxes,
                          int* box, const Store& store) {
  static_assert(kProducts % 4 == 0, "boxes would overlap the next tile");
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, row = lane / 4;
#pragma unroll
  for (int first = 0; first < kProducts; first += 4) {
    if (8 * first >= columns) break;
    char* const to = boxes + (2 * warp + *box) * kBoxBytes<S>;
    *box ^= 1;
    if (lane == 0) WaitForBulkReads<1>();  // until TMA has read this box
    __syncwarp();
#pragma unroll
    for (int n = first; n < first + 4; ++n) {
      const int byte = ((n - first) * 8 + lane % 4 * 2) * static_cast<int>(sizeof(S));
      // TMA's swizzle (tensor_map.cuh), which is equal for rows that are 8 apart.
      const int swizzle = row * kStoreLine<S> / kSwizzleBytes % (kStoreLine<S> / 16);
      char* const at =
          to + row * kStoreLine<S> + ((byte / 16 ^ swizzle) * 16) + byte % 16;
      *reinterpret_cast<Pack<S, 2>*>(at) = NarrowPair<S>(sums[n][0], sums[n][1]);
      *reinterpret_cast<Pack<S, 2>*>(at + 8 * kStoreLine<S>) =
          NarrowPair<S>(sums[n][2], sums[n][3]);
    }
    FenceAsyncProxy();
    __syncwarp();
    if (lane == 0) {
      store(8 * first, to);
      CommitBulkStores();
    }
  }
}

// Launches a kernel that has `Stages` as its shared memory.
template <auto kKernel, typename Stages, typename... Arguments>
LaunchError LaunchProduct(const char* op, const GpuExec& exec, int blocks,
                          const Arguments&... arguments) {
  CAPSOPS_RETURN_IF_ERROR(CheckRegisters<kKernel>(op, kRegisters));
  return LaunchDependent<kKernel>(op, dim3(blocks), kProductThreads,
                                  Stages::SharedBytes(), exec, arguments...);
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
