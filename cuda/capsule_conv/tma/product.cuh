// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The kernel of the forward product and both gradients for poses of one row, with
// wgmma. A block computes tiles of 128 rows by up to 256 columns; blocks divide the
// tiles among them by stream-K (tma/steps.cuh). The kernel is warp-specialized:
//   warps 0 to 7   two consumer warpgroups, which issue wgmma and store 64 rows each
//   warp 8         producer, one thread: loads boxes of both operands by TMA
//   warps 9 to 11  idle, as setmaxnreg applies to a whole warpgroup
// The boxes pass through a ring of stages in shared memory, synchronized by mbarriers.
// wgmma reads its operands from there, or the left one from registers (Left).
#pragma once

#include <cstdint>

#include "cuda/capsule_conv/tma/image.cuh"
#include "cuda/capsule_conv/tma/weights.cuh"
#include "cuda/common/flag.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"
#include "cuda/common/warpgroup.cuh"

namespace capsops::capsule_conv::tma {

// Compile-time shape of the pipeline and of tiles with kColumns columns.
template <typename S, int kColumnsOf>
struct Shape {
  static constexpr int kColumns = kColumnsOf;
  static constexpr int kDepth = kSwizzleBytes / sizeof(S);  // terms per step
  static constexpr int kRowBytes = kRows * kSwizzleBytes;
  static constexpr int kStageBytes = kRowBytes + kColumns * kSwizzleBytes;
  static constexpr int kStages = (192 << 10) / kStageBytes;
  static constexpr int kProducts = kColumns / 8;
};

// Stores 2 columns of a row. Not inlined, as few pose shapes need it.
template <typename S>
__device__ __noinline__ void StoreColumns(const Columns columns, int column, float x,
                                          float y, S* row) {
  if (row == nullptr) return;
  if (column < columns.count) Narrow(x, row + columns.Place(column));
  if (column + 1 < columns.count) Narrow(y, row + columns.Place(column + 1));
}

// The buffer through which a warp rearranges results, padded against bank conflicts.
constexpr int kExchangeColumns = 32;
using Exchange = float[16][kExchangeColumns + 8];

// The layout of shared memory, aligned to 1024 bytes, the period of the swizzle.
template <typename Work, typename Shape>
struct Shared {
  char stages[Shape::kStages][Shape::kStageBytes];
  Exchange exchange[kConsumerWarps];
  Barrier full[Shape::kStages], empty[Shape::kStages];
  typename Work::Tables tables;
};
constexpr int kAlignment = 1024;
template <typename Work, typename Shape>
constexpr int kSharedBytes = sizeof(Shared<Work, Shape>) + kAlignment;

// Epilogue: stores a tile. Unless columns.apart is 0, each warp rearranges its results
// in `exchange`, 32 columns at a time, so that lanes store 4 adjacent elements.
template <typename S, typename Work, int kProducts>
__device__ void StoreTile(const Work& work, const typename Work::Place& place,
                          const float (&sums)[kProducts][4], Exchange& exchange,
                          S* target) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int upper = Work::Upper(lane), lower = Work::Lower(lane);
  const typename Work::template Target<S> to(work, place, target);
  const Columns& columns = work.columns;
  const int first = place.column_block * kProducts * 8;
  if (columns.apart == 0) {
    S* const rows[] = {to.Row(warp * 16 + upper), to.Row(warp * 16 + lower)};
#pragma unroll
    for (int n = 0; n < kProducts; ++n) {
      const int column = first + 8 * n + lane % 4 * 2;
      StoreColumns(columns, column, sums[n][0], sums[n][1], rows[0]);
      StoreColumns(columns, column, sums[n][2], sums[n][3], rows[1]);
    }
    return;
  }
  constexpr int kLanesOfRow = kExchangeColumns / 4, kTurns = 16 * kLanesOfRow / 32;
  const int row = lane / kLanesOfRow, quad = lane % kLanesOfRow * 4;
  int column = first + quad;
  S* rows[kTurns];
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    rows[i] = to.Row(warp * 16 + row + i * (16 / kTurns));
    if (rows[i] != nullptr) rows[i] += columns.Place(column);
  }
#pragma unroll
  for (int n = 0; n < kProducts; n += 4) {
    __syncwarp();
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int at = 8 * e + lane % 4 * 2;
      *reinterpret_cast<float2*>(&exchange[upper][at]) =
          make_float2(sums[n + e][0], sums[n + e][1]);
      *reinterpret_cast<float2*>(&exchange[lower][at]) =
          make_float2(sums[n + e][2], sums[n + e][3]);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      if (rows[i] == nullptr || column >= columns.count) continue;
      const float4 from =
          *reinterpret_cast<const float4*>(&exchange[row + i * (16 / kTurns)][quad]);
      Pack<S, 4> pack;
      Narrow(from.x, &pack.at[0]);
      Narrow(from.y, &pack.at[1]);
      Narrow(from.z, &pack.at[2]);
      Narrow(from.w, &pack.at[3]);
      *reinterpret_cast<Pack<S, 4>*>(rows[i]) = pack;
      rows[i] += columns.apart;
    }
    column += kExchangeColumns;
  }
}

// The descriptor of an operand of the k-th of a step's four products.
template <typename Work, typename Shape>
__device__ uint64_t MakeOperandDescriptor(uint32_t operand, int k) {
  if constexpr (Work::kLeft == Left::kRows) {
    constexpr int kUnits = kSwizzleBytes / 16;
    return MakeMnMajorDescriptor(operand + k * (Shape::kDepth / 4 * kUnits),
                                 Shape::kDepth * kUnits);
  } else {
    return MakeSwizzledDescriptor(operand + 2 * k);
  }
}

// Stream-K workspace: for each range, a partial tile and a flag that tells whether the
// tile has been written. A range has at most one, as only its first tile can begin in
// an earlier range.
struct PartialTiles {
  int* there;
  float4* sums;

  template <int kProducts>
  __device__ float4* Of(int block) const {
    return sums + int64_t{block} * (kProducts * kPartThreads) + threadIdx.x;
  }

  template <int kProducts>
  __device__ void Write(int block, const float (&from)[kProducts][4]) const {
    float4* const to = Of<kProducts>(block);
#pragma unroll
    for (int n = 0; n < kProducts; ++n) {
      to[n * kPartThreads] =
          make_float4(from[n][0], from[n][1], from[n][2], from[n][3]);
    }
    __threadfence();
    SyncNamedBarrier<kPartThreads>();
    if (threadIdx.x == 0) SetFlag(there + block, 1);
  }

  // Waits for a range's partial tile and adds it. This cannot deadlock, however few
  // blocks are resident: later ranges belong to blocks with lower numbers, which GPUs
  // start first, and blocks write their partial tile before they wait.
  template <int kProducts>
  __device__ void Add(int block, float (&to)[kProducts][4]) const {
    WaitForFlag(there + block, 1);
    const float4* const from = Of<kProducts>(block);
#pragma unroll
    for (int n = 0; n < kProducts; ++n) {
      const float4 part = from[n * kPartThreads];
      to[n][0] += part.x;
      to[n][1] += part.y;
      to[n][2] += part.z;
      to[n][3] += part.w;
    }
  }
};

// Computes and stores the tiles of the block's range of steps. Work is ImageWork or
// WeightWork: it maps steps to tiles, loads their operands and maps rows to the target.
template <typename Work, typename S, typename Shape>
__global__ void __launch_bounds__(kThreads, 1)
    ProductKernel(const __grid_constant__ CUtensorMap rows,
                  const __grid_constant__ CUtensorMap columns, const Work work,
                  const PartialTiles parts, S* target) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<Shared<Work, Shape>*>(
      reinterpret_cast<char*>(memory) +
      (kAlignment - SharedAddress(memory) % kAlignment) % kAlignment);
  auto& tables = shared.tables;
  if (threadIdx.x == 0) {
    InitRing(Shape::kStages, kConsumerWarps, shared.full, shared.empty);
    Barrier::FenceInit();
  }
  work.Count(&tables);
  __syncthreads();
  work.Accumulate(&tables);
  __syncthreads();
  GridDependencySynchronize();

  const int range = gridDim.x - 1 - blockIdx.x;  // Lower blocks take later ranges.
  const int end = work.ranges.Begin(range + 1);
  int step = work.ranges.Begin(range);
  const int warpgroup = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0);
  if (warpgroup == kGroups) {
    SetMaxRegisters<kFew, false>();
    if (threadIdx.x % 128 == 0) {
      PipelineState at{0, 1};  // The first wait for each stage passes at once.
      while (step < end) {
        const auto place = work.Find(tables, step);
        const int last = min(end, place.steps.MultiplyEnd());
        typename Work::template Loader<Shape> loader(work, place,
                                                     step - place.steps.first);
        for (; step < last; ++step, at.Next(Shape::kStages)) {
          shared.empty[at.at].Wait(at.parity);
          shared.full[at.at].ArriveAndExpectBytes(Shape::kStageBytes);
          loader.Load(rows, columns, shared.full[at.at], shared.stages[at.at]);
        }
        step = place.steps.End();
      }
    }
  } else {
    SetMaxRegisters<kMany, true>();
    PipelineState at;
    const auto release = [&](int stage) {
      __syncwarp();
      if (threadIdx.x % 32 == 0) shared.empty[stage].Arrive();
    };
    while (step < end) {
      const auto place = work.Find(tables, step);
      const int first = step, last = min(end, place.steps.MultiplyEnd());
      step = place.steps.End();
      if (first >= last) continue;  // Only steps that store are left.
      float sums[Shape::kProducts][4];
      Clear(sums);
      int before = -1;
      for (int n = first; n < last; ++n, at.Next(Shape::kStages)) {
        const char* const stage = shared.stages[at.at];
        shared.full[at.at].Wait(at.parity);
        const uint32_t right = DescriptorAddress(stage + Shape::kRowBytes);
        if constexpr (Work::kLeft == Left::kRegisters) {
          uint32_t left[4][4];
          LoadFragments(stage, left);
          WgmmaFence();
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            WgmmaRs<S, Shape::kProducts>::Begin(
                left[k], MakeSwizzledDescriptor(right + 2 * k), sums, true);
          }
          WgmmaCommit();
          // The registers of `left` are free only now; the other consumer runs on.
          WgmmaWait<0>();
          release(at.at);
        } else {
          const uint32_t left =
              DescriptorAddress(stage) + warpgroup * (64 * kSwizzleBytes / 16);
          WgmmaFence();
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            Wgmma<S, Shape::kProducts, Work::kLeft == Left::kRows>::Begin(
                MakeOperandDescriptor<Work, Shape>(left, k),
                MakeOperandDescriptor<Work, Shape>(right, k), sums, true);
          }
          WgmmaCommit();
          // Completes the products of the previous stage, which can then be refilled.
          WgmmaWait<1>();
          if (before >= 0) release(before);
          before = at.at;
        }
      }
      WgmmaWait<0>();
      if (before >= 0) release(before);
      Complete(sums);
      if (first > place.steps.first) {
        parts.Write(range, sums);
        continue;
      }
      if (last < place.steps.MultiplyEnd()) {
        const int others = work.ranges.Owner(place.steps.MultiplyEnd() - 1);
        for (int other = range + 1; other <= others; ++other) {
          parts.Add(other, sums);
        }
      }
      StoreTile(work, place, sums, shared.exchange[threadIdx.x / 32], target);
    }
    // Tiles without steps are in no range; they become zeros.
    if (work.empty) {
      for (int tile = blockIdx.x; tile < work.tiles; tile += gridDim.x) {
        const auto place = work.At(tables, tile);
        if (place.steps.count > 0) continue;
        const float zeros[Shape::kProducts][4]{};
        StoreTile(work, place, zeros, shared.exchange[threadIdx.x / 32], target);
      }
    }
  }
#else
  __trap();  // compiled for another GPU
#endif
}

}  // namespace capsops::capsule_conv::tma
