// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule convolution and its input gradient with wgmma. The kernel is persistent (a
// block computes every gridDim.x-th tile of lattice points by kColumns columns) and
// warp-specialized:
//   warps 0 to 7   two consumer warpgroups, which issue wgmma and store results
//   warps 8 to 10  producers of patches: all threads with cp.async, or one with TMA
//   warp 11        producer of the packed filter, one thread with bulk copies
// Producers and consumers are synchronized by mbarriers, in two pipelines: the patches'
// buffers, one chunk each, and the ring of the filter's stages.
//
// wgmma reads both operands from shared memory. 8 pose rows that are adjacent in a
// plane form a core matrix, so a filter tap is only another address. The poses may be
// either operand: A with 64 rows, or B with up to 256. As B, with 64 filter columns as
// A, they need the fewest shared-memory reads per product.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/capsule_conv/block.cuh"
#include "cuda/capsule_conv/wgmma/patch.cuh"
#include "cuda/capsule_conv/wgmma/rows.cuh"
#include "cuda/capsule_conv/wgmma/units.cuh"
#include "cuda/common/barrier.cuh"
#include "cuda/common/tensor_map.cuh"
#include "cuda/common/warpgroup.cuh"

namespace capsops::capsule_conv::wgmma {

// Patch buffers. Two overlap loading with multiplying; a third also overlaps copying
// with converting to the operand type.
constexpr int kMaxBuffers = 3;

// Stages of the filter's pipeline.
constexpr int kMaxStages = 8;

// Barriers of the two pipelines: the filter's stages and the patch buffers.
struct Barriers {
  Barrier full[kMaxStages], empty[kMaxStages];
  Barrier patch_full[kMaxBuffers], patch_empty[kMaxBuffers];
};

// The layout of a block's shared memory.
template <typename C>
struct SharedLayout {
  static_assert(sizeof(Barriers) <= 4 * C::kBarrierWords);

  int part_words, patch_words;
  int stages, last_steps;  // stages of a chunk; steps in the last one
  Barriers& barriers;
  uint32_t *patches, *ring;
  RowOffset* rows;
  // Low word of a descriptor for each step: the distance between its units << 16 | the
  // offset of the first.
  uint32_t* steps;
  int* pixels;  // patch pixel offsets; not used with TMA

  __device__ SharedLayout(const WarpgroupParams& s, uint4* memory)
      : part_words(s.product.order.planes * s.product.patch.plane),
        patch_words(C::kParts * part_words),
        stages((s.product.order.steps + C::kSteps - 1) / C::kSteps),
        last_steps(s.product.order.steps - (stages - 1) * C::kSteps),
        barriers(*reinterpret_cast<Barriers*>(memory)),
        patches(reinterpret_cast<uint32_t*>(memory) + C::kBarrierWords),
        ring(patches + s.product.buffers * patch_words),
        rows(reinterpret_cast<RowOffset*>(ring + s.ring * C::kStageWords)),
        steps(reinterpret_cast<uint32_t*>(rows + C::kProducts * C::kRows)),
        pixels(reinterpret_cast<int*>(steps + stages * C::kSteps)) {}

  __device__ int StageSteps(int stage) const {
    return stage == stages - 1 ? last_steps : C::kSteps;
  }

  __device__ void Initialize() {
    if (threadIdx.x == 0) {
      InitRing(kMaxStages, C::kWarps, barriers.full, barriers.empty);
      for (int n = 0; n < kMaxBuffers; ++n) {
        barriers.patch_full[n].Init(C::kBoxes ? 1 : C::kLoadThreads);
        barriers.patch_empty[n].Init(C::kWarps);
      }
      Barrier::FenceInit();
    }
  }

  // Fills the tables of rows and steps; called by the consumers. The producers use
  // named barrier 1.
  __device__ void FillTables(const WarpgroupParams& s) {
    FillRowTable<C>(s, rows);
    for (int n = threadIdx.x; n < stages * C::kSteps; n += C::kWarps * kLanes) {
      const UnitStep step(s.product, s.sorted, n);
      steps[n] = (step.at[1] - step.at[0]) << 16 | step.at[0];
    }
    SyncNamedBarrier<C::kWarps * kLanes, 2>();
  }
};

// Producer of the filter, one thread: loads stage after stage of all the block's tiles.
template <typename C>
__device__ void LoadFilter(const WarpgroupParams& s, const SharedLayout<C>& shared,
                           const uint32_t* packed) {
  constexpr int kStep = C::kStepWords;
  const Product& p = s.product;
  // Waits for parity 1 pass at once in the first round, when all slots are empty.
  PipelineState slot{0, 1};
  for (int tile = blockIdx.x; tile < s.tiles; tile += gridDim.x) {
    const BlockCoord place(p, tile);
    const uint32_t* from =
        packed + (int64_t{place.depth} * p.order.column_blocks + place.column_block) *
                     p.order.chunks * p.order.steps * kStep;
    for (int chunk = 0; chunk < p.order.chunks; ++chunk) {
      for (int stage = 0; stage < shared.stages; ++stage) {
        const int words = shared.StageSteps(stage) * kStep;
        shared.barriers.empty[slot.at].Wait(slot.parity);
        shared.barriers.full[slot.at].ArriveAndBulkCopy(
            from, words * 4, shared.ring + slot.at * C::kStageWords);
        from += words;
        slot.Next(s.ring);
      }
    }
  }
}

// Producer of patches by TMA, one thread: a box per plane and residue class.
template <typename C>
__device__ void LoadPatchesByTma(const WarpgroupParams& s,
                                 const SharedLayout<C>& shared,
                                 const CUtensorMap& map) {
  const Product& p = s.product;
  const SortedPatch& sorted = s.sorted;
  const int quads = p.source.quads(), classes = sorted.horizontal.count;
  const int box_words =
      sorted.vertical.extent * sorted.horizontal.extent * p.source.rows * 4;
  const int bytes = 4 * box_words * p.order.planes * sorted.vertical.count * classes;
  PipelineState buffer{0, 1};
  for (int tile = blockIdx.x; tile < s.tiles; tile += gridDim.x) {
    const BlockCoord place(p, tile);
    for (int chunk = 0; chunk < p.order.chunks; ++chunk) {
      Barrier& full = shared.barriers.patch_full[buffer.at];
      shared.barriers.patch_empty[buffer.at].Wait(buffer.parity);
      full.ArriveAndExpectBytes(bytes);
      for (int unit = 0; unit < p.order.planes; ++unit) {
        const int plane = chunk * p.order.planes + unit, channel = plane / quads;
        const int pose = channel * p.source.depth + place.depth;
        uint32_t* to =
            shared.patches + buffer.at * shared.patch_words + unit * p.patch.plane;
        for (int down = 0; down < sorted.vertical.count; ++down) {
          for (int across = 0; across < classes; ++across) {
            const ClassCoord from(p, place, down, across);
            TmaLoad(map, quads == 1 ? pose * p.source.pose() : plane % quads * kQuad,
                    quads == 1 ? 0 : pose * p.source.rows, from.x, from.y,
                    static_cast<int>(place.image), full, to);
            to += sorted.pixels * p.source.rows * 4;
          }
        }
      }
      buffer.Next(p.buffers);
    }
  }
}

// Producer of patches without TMA: thread number `thread` of C::kLoadThreads.
template <typename S, typename C>
__device__ void LoadPatchesByWarps(const WarpgroupParams& s,
                                   const SharedLayout<C>& shared, const S* source,
                                   int thread) {
  const Product& p = s.product;
  const UnitLoader<S, typename C::O, C::kParts> loader(
      p.patch, p.source, p.order.planes, thread, C::kLoadThreads);
  PipelineState buffer{0, 1};
  int copied = -1;  // the buffer not yet converted, or -1
  // Waits until at most `groups` copy groups are in flight, then converts the oldest
  // buffer and hands it to the consumers.
  const auto finish = [&](auto groups) {
    WaitForAsyncCopies<groups.value>();
    loader.Convert(p.patch, p.source, shared.part_words,
                   shared.patches + copied * shared.patch_words);
    FenceAsyncProxy();
    shared.barriers.patch_full[copied].Arrive();
  };
  for (int tile = blockIdx.x; tile < s.tiles; tile += gridDim.x) {
    const BlockCoord place(p, tile);
    SyncNamedBarrier<C::kLoadThreads>();  // All have read the previous tile's table.
    FillSortedPixelTable(p, s.sorted, place, shared.pixels, thread, C::kLoadThreads);
    SyncNamedBarrier<C::kLoadThreads>();
    const S* const from = SourceOf(p, place, source);
    for (int chunk = 0; chunk < p.order.chunks; ++chunk) {
      shared.barriers.patch_empty[buffer.at].Wait(buffer.parity);
      loader.Copy(p.patch, p.source, shared.pixels, from, chunk * p.order.planes,
                  shared.part_words, shared.patches + buffer.at * shared.patch_words);
      __pipeline_commit();
      if (copied >= 0) finish(std::integral_constant<int, 1>());
      copied = buffer.at;
      // Consumers free a buffer only after they start on the next one. So with two
      // buffers, this one must be finished before the wait for the other.
      if (p.buffers < kMaxBuffers) {
        finish(std::integral_constant<int, 0>());
        copied = -1;
      }
      buffer.Next(p.buffers);
    }
  }
  if (copied >= 0) finish(std::integral_constant<int, 0>());
}

// Calls `then` with `count`, from 1 to kMax, as a compile-time constant.
template <int kMax, typename Then>
__device__ void DispatchCount(int count, const Then& then) {
  if constexpr (kMax == 1) {
    then(std::integral_constant<int, 1>());
  } else if (count == kMax) {
    then(std::integral_constant<int, kMax>());
  } else {
    DispatchCount<kMax - 1>(count, then);
  }
}

// Consumer warpgroup number `group`: multiplies and stores its part of all tiles. Each
// warp arrives once at a barrier to release a slot.
template <typename S, typename C>
__device__ void MultiplyTiles(const WarpgroupParams& s, const SharedLayout<C>& shared,
                              int group, S* target) {
  const Product& p = s.product;
  Barriers& barriers = shared.barriers;
  const int first_product = group / C::kColumnGroups * C::kTiles;
  const int column = group % C::kColumnGroups * kWgmmaRows;
  // The distance between core matrices, in rows, which are units of 16 bytes.
  const uint32_t apart = s.rows_2d ? s.row : kGroupRows;
  Sums<C::kPromotes, C::kTiles, C::kOctets> sums;
  PipelineState slot, buffer;
  for (int tile = blockIdx.x; tile < s.tiles; tile += gridDim.x) {
    const BlockCoord place(p, tile);
    const ProductRows<C::kRows> rows(s, place);
    const bool busy = first_product < rows.all;
    uint32_t first[C::kTiles];
#pragma unroll
    for (int m = 0; m < C::kTiles; ++m) {
      first[m] = rows.First(s, min(first_product + m, rows.all - 1));
    }
    sums.Clear();
    int slot_before = -1, buffer_before = -1;
    for (int chunk = 0; chunk < p.order.chunks; ++chunk) {
      barriers.patch_full[buffer.at].Wait(buffer.parity);
      const uint32_t planes =
          DescriptorAddress(shared.patches + buffer.at * shared.patch_words);
      for (int stage = 0; stage < shared.stages; ++stage) {
        uint32_t at[C::kSteps];
#pragma unroll
        for (int n = 0; n < C::kSteps; ++n) {
          at[n] = planes + shared.steps[stage * C::kSteps + n];
        }
        barriers.full[slot.at].Wait(slot.parity);
        if constexpr (C::kPromotes) {
          WgmmaWait<0>();
          sums.Accumulate();
        }
        if (busy) {
          const uint32_t filter =
              DescriptorAddress(shared.ring + slot.at * C::kStageWords) + column;
          // Issues step n of row tile m for the parts whose indices add up to `least`.
          // If kPromotes, the first product of a stage overwrites the accumulators.
          const auto multiply = [&](int n, int m, int least) {
#pragma unroll
            for (int of_filter = 0; of_filter < min(least + 1, C::kFilterParts);
                 ++of_filter) {
              const uint64_t columns =
                  MakeDescriptor(filter + n * (C::kStepWords / 4) +
                                     of_filter * (UnitStepWords(C::kColumns) / 4),
                                 C::kColumns, kGroupRows);
              const int part = (least - of_filter) * (shared.part_words / 4);
              // at[n] includes the distance between units.
              const uint64_t poses = MakeDescriptor(at[n] + first[m] + part, 0, apart);
              Wgmma<typename C::O, C::kOctets>::Begin(
                  C::kLeft ? poses : columns, C::kLeft ? columns : poses,
                  sums.accumulators[m],
                  !C::kPromotes || n > 0 || of_filter > 0 || least < C::kParts - 1);
            }
          };
          // Unrolled, so that all products of a stage are issued back to back: with a
          // loop they take three times as long.
          DispatchCount<C::kSteps>(shared.StageSteps(stage), [&](auto count) {
            WgmmaFence();
            // Smallest terms first.
#pragma unroll
            for (int least = C::kParts - 1; least >= 0; --least) {
#pragma unroll
              for (int n = 0; n < count.value; ++n) {
#pragma unroll
                for (int m = 0; m < C::kTiles; ++m) {
                  multiply(n, m, least);
                }
              }
            }
            WgmmaCommit();
          });
        }
        if constexpr (!C::kPromotes) WgmmaWait<1>();
        // At most this stage's products are in flight, so the previous slot is free.
        if (slot_before >= 0) barriers.empty[slot_before].ArriveWarp();
        slot_before = slot.at;
        slot.Next(s.ring);
        if (stage == 0 && buffer_before >= 0)
          barriers.patch_empty[buffer_before].ArriveWarp();
      }
      buffer_before = buffer.at;
      buffer.Next(p.buffers);
    }
    WgmmaWait<0>();
    if (slot_before >= 0) barriers.empty[slot_before].ArriveWarp();
    if (buffer_before >= 0) barriers.patch_empty[buffer_before].ArriveWarp();
    sums.Accumulate();
    const int first_column = place.column_block * C::kColumns + column;
#pragma unroll
    for (int m = 0; m < C::kTiles; ++m) {
      const RowOffset* const places = shared.rows + (first_product + m) * C::kRows;
      if constexpr (C::kLeft) {
        StoreLeft(s, place, rows.height, rows.width, places, first_column,
                  sums.all()[m], target);
      } else {
        StoreRight(s, place, rows.height, rows.width, places, first_column,
                   sums.all()[m], target);
      }
    }
  }
}

// The source of patches: a tensor map for TMA, or a pointer if warps copy them.
template <typename S, typename C>
using PatchSource = std::conditional_t<C::kBoxes, CUtensorMap, const S*>;

// Computes and stores the block's tiles, with consumer and producer warps.
template <typename S, typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    WarpgroupKernel(const WarpgroupParams s,
                    const __grid_constant__ PatchSource<S, C> source,
                    const uint32_t* packed, S* target) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) uint4 memory[];
  SharedLayout<C> shared(s, memory);
  shared.Initialize();
  __syncthreads();
  const int warpgroup =
      __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / (4 * kLanes), 0);
  if (warpgroup < C::kGroups) {
    SetMaxRegisters<C::kMany, true>();
    shared.FillTables(s);
    // Consumers wait as well, as the preceding kernel may still use the target.
    GridDependencySynchronize();
    MultiplyTiles<S, C>(s, shared, warpgroup, target);
  } else {
    SetMaxRegisters<C::kFew, false>();
    const int thread = static_cast<int>(threadIdx.x) - C::kWarps * kLanes;
    // The preceding kernel packed the filter; `source` was complete before it started.
    if (thread == C::kLoadThreads) {
      GridDependencySynchronize();
      LoadFilter<C>(s, shared, packed);
    } else if constexpr (C::kBoxes) {
      if (thread == 0) LoadPatchesByTma<C>(s, shared, source);
    } else if (thread < C::kLoadThreads) {
      LoadPatchesByWarps<S, C>(s, shared, source, thread);
    }
  }
#else
  __trap();  // compiled for another GPU
#endif
}

}  // namespace capsops::capsule_conv::wgmma
