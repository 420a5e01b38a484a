// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The product of capsule_conv_product.cuh for GPUs of compute capability 9.0: two
// warpgroups multiply, and go on while tensor cores do; a third brings what comes next,
// so that they have nothing else to do. Rows of poses are whole quads here.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_WARPGROUPS_CUH_
#define CAPSOPS_CUDA_CAPSULE_CONV_WARPGROUPS_CUH_

#include <cuda_pipeline.h>

#include <cstdint>

#include "cuda/capsule_conv_block.cuh"
#include "cuda/common/barrier.cuh"
#include "cuda/common/warpgroup.cuh"

namespace capsops::capsule_conv {

constexpr int kRingStages = 4;

// A thread has kRegisters registers at the launch, then kMany if it multiplies and kFew
// if it brings. A block gets no more than it had: it would wait for them forever.
template <int kColumnsOf, int kBlocksOf, int kRegisters, int kManyOf, int kFewOf>
struct Warpgroups {
  static constexpr int kTiles = 2, kColumns = kColumnsOf, kWarps = 8;
  static constexpr int kBlocks = kBlocksOf, kMany = kManyOf, kFew = kFewOf;
  static constexpr int kCarriers = 4 * kLanes;  // threads that bring patches
  static constexpr int kThreads = kWarps * kLanes + kCarriers;
  static constexpr int kStages = kRingStages;
  static constexpr int kStageWords = 4096 / kBlocks;
  static constexpr int kBarrierWords = 32;
  static constexpr int kRate = kColumns == 64 ? 530 : 630;
  static_assert(kWarps * kLanes * kMany + kCarriers * kFew <= kThreads * kRegisters);
};
using Warpgroups64 = Warpgroups<64, 2, 80, 104, 32>;
using Warpgroups128 = Warpgroups<128, 1, 168, 232, 40>;
using WarpgroupsApart = Warpgroups<64, 1, 168, 232, 40>;  // for sums kept apart

// Tensor cores cut off when they add. Where products are to be as accurate as float,
// they add up so many steps, and what they made is added in float.
constexpr int kStepsApart = 2;
template <Tf32 kTf32>
constexpr bool kApart = kTf32 == Tf32::kSplitLeft;

// In shared memory, before everything else.
struct Barriers {
  // A stage of the filter is there; was used by all warps. A patch likewise.
  Barrier full[kRingStages], empty[kRingStages];
  Barrier patch_full[2], patch_empty[2];
};
static_assert(sizeof(Barriers) <= 4 * Warpgroups64::kBarrierWords);

// Counts stages: the place in the ring, and the parity of its barriers' phase.
struct Turn {
  int slot = 0, parity = 0;

  __device__ void Next() {
    if (++slot == kRingStages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// What tensor cores add up, and what is added up of it if that is kept apart.
template <Tf32 kTf32, int kTiles, int kProducts>
struct Sums {
  float made[kTiles][kProducts][4] = {};
  float apart[kTiles][kProducts][4] = {};
  int step = 0;

  // Of products that are done. Returns whether the next ones begin anew.
  __device__ bool SetApart() {
    if (!kApart<kTf32> || step++ % kStepsApart != 0) return false;
    AddUp();
    return true;
  }
  // The same, of the last.
  __device__ void AddUp() {
    ReadFromHere(made);
    if constexpr (kApart<kTf32>) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int n = 0; n < kProducts; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) apart[m][n][e] += made[m][n][e];
        }
      }
    }
  }
  __device__ const auto& all() const {
    if constexpr (kApart<kTf32>) {
      return apart;
    } else {
      return made;
    }
  }
};

// Begins one step of this warp's tiles, when the one before is done, which read `a`.
// Other warpgroups keep the tensor cores busy meanwhile.
template <typename S, Tf32 kTf32, int kTiles, int kProducts>
__device__ void BeginStep(const RawRows<S> (&raw)[kTiles], const uint32_t* filter,
                          uint32_t zero, Rows<S, kTf32> (&a)[kTiles],
                          Sums<kTf32, kTiles, kProducts>& sums) {
  WaitForProducts<0>();
  const bool anew = sums.SetApart();
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    const Rows<S, kTf32> before = a[m];
    a[m].Set(raw[m]);
    if constexpr (kTf32 == Tf32::kExact) {  // else it was computed
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        a[m].part[0][e] = InPlaceOf(before.part[0][e], a[m].part[0][e], zero);
      }
    }
  }
  BeginProducts();
  const uint64_t columns = ProductColumns<kProducts * 8>(filter);
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    using Product = AsyncProduct<S, kProducts>;
    if constexpr (kRowTf32<kTf32> == Tf32::kSplit) {
      Product::Begin(a[m].part[1], columns, sums.made[m], !anew);
      Product::Begin(a[m].part[0], columns, sums.made[m]);
    } else {
      Product::Begin(a[m].part[0], columns, sums.made[m]);
    }
  }
  CommitProducts();
}

template <typename S, Tf32 kTf32, typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    WarpgroupKernel(const Product p, const S* source, const uint32_t* packed,
                    S* target) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kStep = StepWords<kTf32>(C::kColumns);
  extern __shared__ uint4 shared[];
  const Patch& patch = p.patch;
  const int chunk_words = p.order.planes * patch.plane;
  const int stage_words = p.stage_steps * kStep;
  Barriers& barriers = *reinterpret_cast<Barriers*>(shared);
  uint32_t* const patches = reinterpret_cast<uint32_t*>(shared) + C::kBarrierWords;
  uint32_t* const ring = patches + p.buffers * chunk_words;
  int* const quads = reinterpret_cast<int*>(ring + C::kStages * stage_words);
  int* const pixels = quads + TableQuads<S>(p.order);

  if (threadIdx.x == 0) {
    for (int n = 0; n < C::kStages; ++n) {
      barriers.full[n].Init(1);
      barriers.empty[n].Init(C::kWarps);
    }
    for (int n = 0; n < 2; ++n) {
      barriers.patch_full[n].Init(C::kCarriers);
      barriers.patch_empty[n].Init(C::kWarps);
    }
    Barrier::PublishInit();
  }
  const BlockPlace place(p);
  FillTables<S>(p, place, quads, pixels);

  const S* const from = SourceOf(p, place, source);
  const int chunk_stages = (p.order.steps + p.stage_steps - 1) / p.stage_steps;
  const int last_steps = p.order.steps - (chunk_stages - 1) * p.stage_steps;
  const int stages = p.order.chunks * chunk_stages;
  const int lane = threadIdx.x % kLanes;
  const int carrier_thread = static_cast<int>(threadIdx.x) - C::kWarps * kLanes;
  packed += (int64_t{place.depth} * p.order.column_blocks + place.column_block) *
            p.order.chunks * p.order.steps * kStep;
  int coming_part = 0;
  const auto bring_stage = [&](int slot) {
    const bool last = ++coming_part == chunk_stages;
    const int words = (last ? last_steps : p.stage_steps) * kStep;
    barriers.full[slot].ArriveWithCopy(packed, words * 4, ring + slot * stage_words);
    packed += words;
    if (last) coming_part = 0;
  };
  {
    Carrier<S> carrier(patch, p.source, pixels, from, p.order.planes);
    carrier.Begin(patch, p.source, 0, patches);
    carrier.Bring(patch.pixels);
  }
  __pipeline_commit();
  if (carrier_thread == 0) {
    WaitForKernelBefore();
    for (int stage = 0; stage < min(stages, C::kStages); ++stage) bring_stage(stage);
  }
  __pipeline_wait_prior(0);
  __syncthreads();

  if (carrier_thread >= 0) {
    TakeRegisters<C::kFew, false>();
    // The next patch is sent for when its place is free, which is when the warps are at
    // part 0, and here stages run ahead of them.
    const int first_part = min(2, chunk_stages - 1);
    Carrier<S> carrier(patch, p.source, pixels, from, p.order.planes, carrier_thread,
                       C::kCarriers);
    const int parts = chunk_stages - first_part;
    const int share = (carrier.share() + parts - 1) / parts;
    Turn turn;
    int stage = 0;
    for (int chunk = 0; chunk < p.order.chunks; ++chunk) {
      const int next = chunk + 1, place_of_next = next % 2;
      for (int part = 0; part < chunk_stages; ++part, ++stage, turn.Next()) {
        if (carrier_thread == 0 && stage >= C::kStages) {
          barriers.empty[turn.slot].Wait(turn.parity ^ 1);
          bring_stage(turn.slot);
        }
        __syncwarp();
        if (next == p.order.chunks || part < first_part) continue;
        if (part == first_part) {
          if (next >= 2) barriers.patch_empty[place_of_next].Wait(next / 2 % 2 ^ 1);
          carrier.Begin(patch, p.source, next * p.order.planes,
                        patches + place_of_next * chunk_words);
        }
        carrier.Bring(share);
        if (part == chunk_stages - 1) {
          barriers.patch_full[place_of_next].ArriveAfterCopies();
        }
      }
    }
    return;
  }

  TakeRegisters<C::kMany, true>();
  const Tiles<S, C::kTiles> tiles(p, place);
  // Warpgroups multiply as a whole.
  const bool busy = tiles.first / (4 * C::kTiles) * (4 * C::kTiles) < tiles.all;
  const int t = lane % 4;
  Sums<kTf32, C::kTiles, C::kColumns / 8> sums;
  // Rows that products read, and those of the next step.
  Rows<S, kTf32> rows[C::kTiles] = {};
  RawRows<S> raw[C::kTiles];
  const uint32_t zero = p.order.steps < 0 ? 1 : 0;
  const auto load = [&](const uint32_t* from) {
#pragma unroll
    for (int m = 0; m < C::kTiles; ++m) raw[m].Load(from + tiles.offset[m]);
  };
  const auto pass = [&](Barrier& barrier) {
    __syncwarp();
    if (lane == 0) barrier.Arrive();
  };
  Turn turn;
  int before = -1;  // the slot of the stage before
  for (int chunk = 0; chunk < p.order.chunks; ++chunk) {
    if (chunk > 0) barriers.patch_full[chunk % 2].Wait((chunk - 1) / 2 % 2);
    const uint32_t* const planes = patches + chunk % 2 * chunk_words;
    const int* quad = quads + t * kStepQuads<S> / 4;
    load(planes + *quad);
    for (int part = 0; part < chunk_stages; ++part, turn.Next()) {
      const int steps = part == chunk_stages - 1 ? last_steps : p.stage_steps;
      barriers.full[turn.slot].Wait(turn.parity);
      const uint32_t* filter = ring + turn.slot * stage_words;
      const uint32_t* const end = filter + (busy ? steps * kStep : 0);
#pragma unroll 1
      for (; filter < end; filter += kStep, quad += kStepQuads<S>) {
        BeginStep<S>(raw, filter, zero, rows, sums);
        load(planes + quad[kStepQuads<S>]);
      }
      // Products in flight read this stage at most.
      if (before >= 0) pass(barriers.empty[before]);
      before = turn.slot;
    }
    pass(barriers.patch_empty[chunk % 2]);
  }
  WaitForProducts<0>();
  sums.AddUp();
  StoreTiles(p, place, tiles, sums.all(), target);
#else
  __trap();  // launched on other GPUs by mistake
#endif
}

}  // namespace capsops::capsule_conv

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_WARPGROUPS_CUH_
