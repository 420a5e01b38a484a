// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The weight gradient of 4x4 poses with wgmma, in TF32, split TF32 or a 16-bit type. A
// block computes the partial sum of a tile of the gradient over its share of the output
// rows (split-K). The kernel is warp-specialized:
//   warps 0 to 7   two consumer warpgroups, which issue wgmma and store partial sums
//   warps 8 to 10  transpose the input's poses in shared memory
//   warp 11        producer, one thread: loads lines of the input and `grad` by TMA
//
// The rows of the product are (output channel, pose column), 64 per consumer. Its
// columns are units of 64, (pose inner, input channel) of one tap. Its contraction is
// the pose rows of 2 neighboring output pixels in TF32, or of 4 in a 16-bit type.
//
// The input is operand B, in shared memory. For it wgmma needs 4 adjacent terms of a
// column of TF32, or 8 adjacent columns of a term of a 16-bit type. So the poses are
// transposed, once for all taps that read them. `grad` is operand A, in registers,
// where any layout will do. Exact float32 is split into two parts of TF32; their three
// products are added in float, as tensor cores truncate.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/capsule_conv/wgmma/rows.cuh"
#include "cuda/capsule_conv/wgmma/weights_lines.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_conv::wgmma {

// A consumer's unit n: its tap and channel block in the tile. W is a WeightParams.
struct WeightUnit {
  int y_tap, x_tap, block;
  bool there;

  template <typename W>
  __device__ WeightUnit(const W& w, const WeightCoord& place, int group, int n) {
    const int unit = w.halves ? n : kConsumerGroups * n + group;
    const int tap = unit / w.blocks;
    block = unit - tap * w.blocks;
    y_tap = tap / w.x_taps;
    x_tap = tap - y_tap * w.x_taps;
    there = unit < w.Units() && place.y_tap + y_tap < w.moves.kernel_height &&
            place.x_tap + x_tap < w.moves.kernel_width &&
            (place.block + block) * kWeightChannels < w.channels;
  }
};

// Distances in shared memory, in units of 16 bytes: from a product to the next, between
// core matrices (`unit` and `group` of MakeDescriptor), and to the second part.
struct UnitStrides {
  uint32_t product, unit, group, part;

  template <typename W>
  __device__ explicit UnitStrides(const W& w) {
    using S = typename W::S;
    if constexpr (std::is_same_v<S, float>) {
      unit = w.moves.stride_x * (kPixelBytes<S> / 16);
      group = 8;
    } else {
      unit = 8;
      group = w.box_width * (kPairBytes / 16);
    }
    product = 2 * unit;
    part = w.PartBytes() / 16;
  }
};

// Loads the A fragment of a product: two adjacent pose columns of `grad`. A lane has
// pose row `lane % 4` of two pixels (float), or two pose rows, `below` bytes apart, of
// each of two pixels: rows 0 and 2, or 1 and 3 (16-bit types).
template <typename S>
__device__ void LoadGradFragment(const char* grad, int below, uint32_t (&rows)[4]) {
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const char* const from = grad + e * (kProductPixels<S> / 2) * kPixelBytes<S>;
    if constexpr (std::is_same_v<S, float>) {
      const uint2 pair = *reinterpret_cast<const uint2*>(from);
      rows[2 * e] = pair.x;
      rows[2 * e + 1] = pair.y;
    } else {
      const uint32_t upper = *reinterpret_cast<const uint32_t*>(from);
      const uint32_t lower = *reinterpret_cast<const uint32_t*>(from + below);
      rows[2 * e] = __byte_perm(upper, lower, 0x5410);
      rows[2 * e + 1] = __byte_perm(upper, lower, 0x7632);
    }
  }
}

// Multiplies kCount products of each unit and waits for them; `grad` is the first
// product's position in shared memory.
template <typename W, int kCount, int kUnits, typename SumsOfUnits>
__device__ void MultiplyPixels(const char* grad, int below,
                               const uint32_t (&at)[kUnits], const UnitStrides& steps,
                               SumsOfUnits& sums) {
  using S = typename W::S;
  constexpr int kParts = W::kParts;
  uint32_t rows[kParts][kCount][4];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    LoadGradFragment<S>(grad + k * kProductPixels<S> * kPixelBytes<S>, below,
                        rows[0][k]);
    if constexpr (kParts > 1) {
      Operand<4, Tf32::kSplit> split;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        split.SetWithoutOverflow(e, __uint_as_float(rows[0][k][e]));
        rows[0][k][e] = split.high[e];
        rows[1][k][e] = split.low[e];
      }
    }
  }
  WgmmaFence();
  // Smallest terms first.
#pragma unroll
  for (int least = kParts - 1; least >= 0; --least) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
#pragma unroll
      for (int n = 0; n < kUnits; ++n) {
#pragma unroll
        for (int part = least; part >= 0; --part) {
          const uint32_t from = at[n] + k * steps.product + (least - part) * steps.part;
          WgmmaRs<S, 8>::Begin(
              rows[part][k], MakeDescriptor(from, steps.unit, steps.group),
              sums.accumulators[n], kParts == 1 || k > 0 || part < kParts - 1);
        }
      }
    }
  }
  WgmmaCommit();
  WgmmaWait<0>();  // The registers of `rows` are free only now.
  if constexpr (kParts > 1) sums.Accumulate();
}

// Products per unit that a consumer issues before it waits. Meanwhile the other
// consumer keeps the tensor cores busy.
template <int kUnits>
constexpr int kWeightProducts = kUnits > 3 ? 4 : 6;

// The offset of a lane's two rows, which are adjacent pose columns, in a pixel of
// `grad` (pose row 0) and in a matrix of the result.
template <typename W>
__device__ int LaneRowOffset(const W& w) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int row = 16 * warp + lane / 4 * 2;
  const int channel = row / w.columns, column = row - channel * w.columns;
  return channel * 4 * w.columns + column;
}

// A consumer warpgroup's main loop, for the first kUnits of its units.
template <int kUnits, typename W, typename SumsOfUnits>
__device__ void MultiplyLines(const W& w, const WeightCoord& place, int group,
                              WeightBarriers& barriers, const char* row_slots,
                              const char* grad_slots, SumsOfUnits& sums) {
  using S = typename W::S;
  constexpr bool kFloat = std::is_same_v<S, float>;
  const int lane = threadIdx.x % 32;
  uint32_t offset[kUnits];
  int tap[kUnits];
#pragma unroll
  for (int n = 0; n < kUnits; ++n) {
    const WeightUnit unit(w, place, group, n);
    constexpr int kPixel = kFloat ? kPixelBytes<S> : kPairBytes;
    offset[n] = unit.block * w.box_width * (kPixelBytes<S> / 16) +
                unit.x_tap * w.moves.dilation_x * (kPixel / 16);
    tap[n] = unit.y_tap;
  }
  const int t = lane % 4, pose_row = kFloat ? t : t % 2, pixel = kFloat ? 0 : t / 2;
  const char* const rows = grad_slots +
                           (w.halves ? group * w.strip * kPixelBytes<S> : 0) +
                           pixel * kPixelBytes<S> +
                           (LaneRowOffset(w) + pose_row * w.columns) * int{sizeof(S)};
  const int below = 2 * w.columns * int{sizeof(S)};
  const UnitStrides steps(w);
  const uint32_t slots_at = DescriptorAddress(row_slots);
  const uint32_t slot_units = w.RowBytes() / 16;
  PipelineState newest, other;
  int oldest = 0;  // slot of the line's top input row
  for (LineIterator line(w, place.split); line.left > 0; line.Next()) {
    for (int n = line.first ? 0 : w.y_taps - 1; n < w.y_taps; ++n) {
      barriers.row_ready[newest.at].Wait(newest.parity);
      newest.Next(w.row_slots);
    }
    uint32_t at[kUnits];
#pragma unroll
    for (int n = 0; n < kUnits; ++n) {
      int slot = oldest + tap[n];
      if (slot >= w.row_slots) slot -= w.row_slots;
      at[n] = slots_at + slot * slot_units + offset[n];
    }
    barriers.grad_full[other.at].Wait(other.parity);
    const char* from = rows + other.at * w.GradBytes();
    const auto multiply = [&](auto count) {
      MultiplyPixels<W, count.value>(from, below, at, steps, sums);
      from += count.value * kProductPixels<S> * kPixelBytes<S>;
#pragma unroll
      for (int n = 0; n < kUnits; ++n) at[n] += count.value * steps.product;
    };
    const int pixels = min(w.strip, w.width - line.strip * w.strip);
    int products = (pixels + kProductPixels<S> - 1) / kProductPixels<S>;
#pragma unroll 1
    for (; products >= kWeightProducts<kUnits>; products -= kWeightProducts<kUnits>) {
      multiply(std::integral_constant<int, kWeightProducts<kUnits>>());
    }
#pragma unroll 1
    for (; products >= 2; products -= 2) multiply(std::integral_constant<int, 2>());
    if (products > 0) multiply(std::integral_constant<int, 1>());
    barriers.grad_free[other.at].ArriveWarp();
    other.Next(w.grad_slots);
    for (int n = line.Last() ? w.y_taps : 1; n > 0; --n) {
      if (lane == 0) barriers.row_free[oldest].Arrive();
      if (++oldest == w.row_slots) oldest = 0;
    }
  }
  if constexpr (W::kParts == 1) sums.Accumulate();
}

// Epilogue: stages the sums in the row slots, and stores them with bulk copies, one per
// input channel of a unit.
template <int kUnits, typename W, typename SumsOfUnits>
__device__ void StoreUnits(const W& w, const WeightCoord& place, int group,
                           const SumsOfUnits& sums, char* row_slots, float* parts) {
  constexpr bool kFloat = std::is_same_v<typename W::S, float>;
  const int lane_row_offset = LaneRowOffset(w), t = threadIdx.x % 4;
  SyncNamedBarrier<128 * kConsumerGroups>();  // All slots are free now.
  char* const staged = row_slots + group * kWeightUnits<W::kParts> * kUnitBytes;
#pragma unroll
  for (int n = 0; n < kUnits; ++n) {
#pragma unroll
    for (int m = 0; m < 8; ++m) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int of_octet = t * 2 + e;
        const int in = kFloat ? m / 4 * 8 + of_octet : m * 2 + of_octet / 4;
        const int inner = kFloat ? m % 4 : of_octet % 4;
        float* const to =
            reinterpret_cast<float*>(staged + n * kUnitBytes + in * kSumsBytes);
        *reinterpret_cast<float2*>(to + lane_row_offset + inner * w.columns) =
            make_float2(sums.all()[n][m][e], sums.all()[n][m][2 + e]);
      }
    }
  }
  FenceAsyncProxy();
  SyncNamedBarrier<128 * kConsumerGroups>();
  const int in = threadIdx.x % 128;
  if (in >= kWeightChannels) return;
  const int outs_of_group = kWeightRows / w.columns;
  const int out = (place.rows + (w.halves ? group : 0)) * outs_of_group;
  const int outs = min(outs_of_group, w.out_channels - out);
#pragma unroll 1
  for (int n = 0; n < kUnits; ++n) {
    const WeightUnit unit(w, place, group, n);
    const int from = (place.block + unit.block) * kWeightChannels + in;
    if (!unit.there || from >= w.channels || outs <= 0) continue;
    const int at_tap =
        (place.y_tap + unit.y_tap) * w.moves.kernel_width + place.x_tap + unit.x_tap;
    const int64_t matrix = (at_tap * w.channels + from) * w.out_channels + out;
    StartBulkStore(staged + n * kUnitBytes + in * kSumsBytes,
                   outs * 4 * w.columns * sizeof(float),
                   parts + int64_t{place.split} * w.weights + matrix * 4 * w.columns);
  }
  WaitForBulkStores();
}

// Computes a tile of the gradient for the block's share of lines, and stores it as a
// partial sum. kUnits is the largest number of units of a consumer.
template <typename W, int kUnits>
__global__ void __launch_bounds__(kWeightThreads, 1)
    WeightKernel(const __grid_constant__ CUtensorMap input,
                 const __grid_constant__ CUtensorMap grad, const W w, float* parts) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint4 memory[];
  // Aligns the slots to the period of TMA's swizzle.
  char* const aligned =
      reinterpret_cast<char*>(memory) + (1024 - SharedAddress(memory) % 1024) % 1024;
  auto& barriers = *reinterpret_cast<WeightBarriers*>(aligned);
  char* const row_slots = aligned + 1024;
  char* const grad_slots = row_slots + w.row_slots * w.RowBytes();
  if (threadIdx.x < kMaxSlots) {
    barriers.row_full[threadIdx.x].Init(1);
    barriers.row_ready[threadIdx.x].Init(kTransposeWarps);
    barriers.row_free[threadIdx.x].Init(4 * kConsumerGroups);
    barriers.grad_full[threadIdx.x].Init(1);
    barriers.grad_free[threadIdx.x].Init(4 * kConsumerGroups);
    Barrier::FenceInit();
  }
  const WeightCoord place(w);
  __syncthreads();
  GridDependencySynchronize();
  const int group = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0);
  if (group >= kConsumerGroups) {
    SetMaxRegisters<kProducerRegisters, false>();
    const int warp = threadIdx.x / 32 - 4 * kConsumerGroups;
    if (warp < kTransposeWarps) {
      TransposeRows(w, place, barriers, row_slots, warp);
    } else if (threadIdx.x % 32 == 0) {
      LoadLines(w, place, input, grad, barriers, row_slots, grad_slots);
    }
  } else {
    SetMaxRegisters<kConsumerRegisters, true>();
    Sums<(W::kParts > 1), kUnits, 8> sums;
    sums.Clear();
    // With an odd number of units, the second consumer has one fewer.
    const int fewer = !w.halves && group == 1 ? w.Units() % 2 : 0;
    if (fewer == 0 || kUnits == 1) {
      MultiplyLines<kUnits>(w, place, group, barriers, row_slots, grad_slots, sums);
    } else {
      MultiplyLines<kUnits - (kUnits > 1)>(w, place, group, barriers, row_slots,
                                           grad_slots, sums);
    }
    TriggerDependentLaunch();
    StoreUnits<kUnits>(w, place, group, sums, row_slots, parts);
  }
#else
  __trap();  // compiled for another GPU
#endif
}

}  // namespace capsops::capsule_conv::wgmma
