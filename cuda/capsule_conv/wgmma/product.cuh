// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The product of mma/product.cuh for GPUs of compute capability 9.0. Tensor
// cores read both operands from shared memory: 64 rows are 8 groups of 8 that follow
// each other in a plane, so that a product is nothing but two addresses, and another
// position of the filter is another address. Two warpgroups begin products and go on; a
// third brings what comes next. A block makes one tile after the other.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_WGMMA_PRODUCT_CUH_
#define CAPSOPS_CUDA_CAPSULE_CONV_WGMMA_PRODUCT_CUH_

#include <cstdint>
#include <type_traits>

#include "cuda/capsule_conv/block.cuh"
#include "cuda/capsule_conv/wgmma/rows.cuh"
#include "cuda/capsule_conv/wgmma/units.cuh"
#include "cuda/common/barrier.cuh"
#include "cuda/common/warpgroup.cuh"

namespace capsops::capsule_conv::wgmma {

// Of patches. With two, one is brought while the other is read; with three, one is
// copied while another is converted.
constexpr int kMostBuffers = 3;

// Of the filter.
constexpr int kMostStages = 4;

struct Barriers {
  Barrier full[kMostStages], empty[kMostStages];
  Barrier patch_full[kMostBuffers], patch_empty[kMostBuffers];
};

// A place in a ring of `places`, and the parity of the phase to wait for there.
struct Turn {
  int at, parity;

  __device__ void Next(int places) {
    if (++at == places) {
      at = 0;
      parity ^= 1;
    }
  }
};

// What lies in a block's shared memory.
template <typename C>
struct WarpgroupShared {
  static constexpr int kStep = UnitStepWords(C::kColumns);
  static_assert(C::kStages <= kMostStages && sizeof(Barriers) <= 4 * C::kBarrierWords);

  int part_words, patch_words;
  int stages, last_steps;  // of a chunk; steps of the last
  Barriers& barriers;
  uint32_t *patches, *ring;
  uint32_t* steps;  // where in a patch a step's units are, as DescribeOperand has it
  int* pixels;

  __device__ WarpgroupShared(const WarpgroupProduct& s, uint4* memory)
      : part_words(s.product.order.planes * s.product.patch.plane),
        patch_words(C::kParts * part_words),
        stages((s.product.order.steps + C::kSteps - 1) / C::kSteps),
        last_steps(s.product.order.steps - (stages - 1) * C::kSteps),
        barriers(*reinterpret_cast<Barriers*>(memory)),
        patches(reinterpret_cast<uint32_t*>(memory) + C::kBarrierWords),
        ring(patches + s.product.buffers * patch_words),
        steps(ring + C::kStages * C::kStageWords),
        pixels(reinterpret_cast<int*>(steps + stages * C::kSteps)) {}

  __device__ int StageSteps(int stage) const {
    return stage == stages - 1 ? last_steps : C::kSteps;
  }

  __device__ void Initialize(const Product& p) {
    if (threadIdx.x == 0) {
      for (int n = 0; n < C::kStages; ++n) {
        barriers.full[n].Init(1);
        barriers.empty[n].Init(C::kWarps);
      }
      for (int n = 0; n < kMostBuffers; ++n) {
        barriers.patch_full[n].Init(C::kCarriers);
        barriers.patch_empty[n].Init(C::kWarps);
      }
      Barrier::PublishInit();
    }
    for (int n = threadIdx.x; n < stages * C::kSteps; n += blockDim.x) {
      const UnitStep step(p, n);
      steps[n] = (step.at[1] - step.at[0]) << 16 | step.at[0];
    }
  }
};

// One thread brings the filter, stage after stage, for one tile after the other.
template <typename C>
__device__ void BringFilter(const WarpgroupProduct& s, const WarpgroupShared<C>& shared,
                            const uint32_t* packed) {
  constexpr int kStep = WarpgroupShared<C>::kStep;
  const Product& p = s.product;
  // The first phase of what nobody has used yet counts as over.
  Turn slot{0, 1};
  for (int tile = blockIdx.x; tile < s.tiles; tile += gridDim.x) {
    const BlockPlace place(p, tile);
    const uint32_t* from =
        packed + (int64_t{place.depth} * p.order.column_blocks + place.column_block) *
                     p.order.chunks * p.order.steps * kStep;
    for (int chunk = 0; chunk < p.order.chunks; ++chunk) {
      for (int stage = 0; stage < shared.stages; ++stage) {
        const int words = shared.StageSteps(stage) * kStep;
        shared.barriers.empty[slot.at].Wait(slot.parity);
        shared.barriers.full[slot.at].ArriveWithCopy(
            from, words * 4, shared.ring + slot.at * C::kStageWords);
        from += words;
        slot.Next(C::kStages);
      }
    }
  }
}

// C::kCarriers threads, of which this is number `thread`, bring the patches.
template <typename S, typename C>
__device__ void BringPatches(const WarpgroupProduct& s,
                             const WarpgroupShared<C>& shared, const S* source,
                             int thread) {
  const Product& p = s.product;
  const UnitCarrier<S, typename C::O, C::kParts> carrier(
      p.patch, p.source, p.order.planes, thread, C::kCarriers);
  Turn buffer{0, 1};
  int copied = -1;  // the buffer that is not converted yet
  // Until all but the last groups of copies are there; and then the next is operands.
  const auto finish = [&](auto groups) {
    WaitForCopies<groups.value>();
    carrier.Convert(p.patch, p.source, shared.part_words,
                    shared.patches + copied * shared.patch_words);
    ShareWithProducts();
    shared.barriers.patch_full[copied].Arrive();
  };
  for (int tile = blockIdx.x; tile < s.tiles; tile += gridDim.x) {
    const BlockPlace place(p, tile);
    SynchronizeSome<C::kCarriers>();
    FindPixels(p, place, shared.pixels, thread, C::kCarriers);
    SynchronizeSome<C::kCarriers>();
    const S* const from = SourceOf(p, place, source);
    for (int chunk = 0; chunk < p.order.chunks; ++chunk) {
      shared.barriers.patch_empty[buffer.at].Wait(buffer.parity);
      carrier.Copy(p.patch, p.source, shared.pixels, from, chunk * p.order.planes,
                   shared.part_words, shared.patches + buffer.at * shared.patch_words);
      __pipeline_commit();
      if (copied >= 0) finish(std::integral_constant<int, 1>());
      copied = buffer.at;
      if (p.buffers < kMostBuffers) {
        finish(std::integral_constant<int, 0>());
        copied = -1;
      }
      buffer.Next(p.buffers);
    }
  }
  if (copied >= 0) finish(std::integral_constant<int, 0>());
}

// Calls `then` with `count`, of 1 to kMost, as a constant.
template <int kMost, typename Then>
__device__ void WithCount(int count, const Then& then) {
  if constexpr (kMost == 1) {
    then(std::integral_constant<int, 1>());
  } else if (count == kMost) {
    then(std::integral_constant<int, kMost>());
  } else {
    WithCount<kMost - 1>(count, then);
  }
}

// Warpgroup number `group` multiplies its rows of all tiles.
template <typename S, typename C>
__device__ void MultiplyTiles(const WarpgroupProduct& s,
                              const WarpgroupShared<C>& shared, int group, S* target) {
  constexpr int kProducts = C::kColumns / 8;
  constexpr int kStep = WarpgroupShared<C>::kStep;
  const Product& p = s.product;
  Barriers& barriers = shared.barriers;
  const auto pass = [&](Barrier& barrier) {
    __syncwarp();
    if (threadIdx.x % kLanes == 0) barrier.Arrive();
  };
  const int first_product = group * C::kTiles;
  Sums<C::kApart, C::kTiles, kProducts> sums;
  Turn slot{0, 0}, buffer{0, 0};
  for (int tile = blockIdx.x; tile < s.tiles; tile += gridDim.x) {
    const BlockPlace place(p, tile);
    const ProductRows rows(s, place);
    const bool busy = first_product < rows.all;
    uint32_t first[C::kTiles];
#pragma unroll
    for (int m = 0; m < C::kTiles; ++m) {
      first[m] = rows.First(s, min(first_product + m, rows.all - 1));
    }
    const uint32_t apart = s.squares ? s.row : kGroupRows;
    sums.Clear();
    int slot_before = -1, buffer_before = -1;
    for (int chunk = 0; chunk < p.order.chunks; ++chunk) {
      barriers.patch_full[buffer.at].Wait(buffer.parity);
      const uint32_t planes =
          UnitAddress(shared.patches + buffer.at * shared.patch_words);
      for (int stage = 0; stage < shared.stages; ++stage) {
        uint32_t at[C::kSteps];
#pragma unroll
        for (int n = 0; n < C::kSteps; ++n) {
          at[n] = planes + shared.steps[stage * C::kSteps + n];
        }
        barriers.full[slot.at].Wait(slot.parity);
        if constexpr (C::kApart) {
          WaitForProducts<0>();
          sums.AddUp();
        }
        if (busy) {
          const uint32_t filter = UnitAddress(shared.ring + slot.at * C::kStageWords);
          // All products of a stage are begun together, without a loop: one at a time
          // they take three times as long.
          WithCount<C::kSteps>(shared.StageSteps(stage), [&](auto count) {
            BeginProducts();
#pragma unroll
            for (int n = 0; n < count.value; ++n) {
              const uint64_t columns =
                  DescribeOperand(filter + n * (kStep / 4), C::kColumns, kGroupRows);
#pragma unroll
              for (int m = 0; m < C::kTiles; ++m) {
#pragma unroll
                for (int k = C::kParts - 1; k >= 0; --k) {
                  const uint32_t unit = at[n] + first[m] + k * (shared.part_words / 4);
                  AsyncProduct<typename C::O, kProducts>::Begin(
                      DescribeOperand(unit, 0, apart), columns, sums.made[m],
                      !C::kApart || n > 0 || k < C::kParts - 1);
                }
              }
            }
            CommitProducts();
          });
        }
        if constexpr (!C::kApart) WaitForProducts<1>();
        // Products in flight are those of this stage.
        if (slot_before >= 0) pass(barriers.empty[slot_before]);
        slot_before = slot.at;
        slot.Next(C::kStages);
        if (stage == 0 && buffer_before >= 0) pass(barriers.patch_empty[buffer_before]);
      }
      buffer_before = buffer.at;
      buffer.Next(p.buffers);
    }
    WaitForProducts<0>();
    if (slot_before >= 0) pass(barriers.empty[slot_before]);
    if (buffer_before >= 0) pass(barriers.patch_empty[buffer_before]);
    sums.AddUp();
#pragma unroll
    for (int m = 0; m < C::kTiles; ++m) {
      StoreProduct(s, place, rows, first_product + m, sums.all()[m], target);
    }
  }
}

template <typename S, typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    WarpgroupKernel(const WarpgroupProduct s, const S* source, const uint32_t* packed,
                    S* target) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint4 memory[];
  WarpgroupShared<C> shared(s, memory);
  shared.Initialize(s.product);
  __syncthreads();
  const int warpgroup =
      __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / (4 * kLanes), 0);
  if (warpgroup < C::kGroups) {
    TakeRegisters<C::kMany, true>();
    // Also where there is no filter to wait for: somebody may still use the target's
    // memory.
    WaitForKernelBefore();
    MultiplyTiles<S, C>(s, shared, warpgroup, target);
  } else {
    TakeRegisters<C::kFew, false>();
    const int thread = static_cast<int>(threadIdx.x) - C::kWarps * kLanes;
    if (thread < C::kCarriers) {
      // The kernel before packed the filter, and began when `source` was complete.
      BringPatches<S, C>(s, shared, source, thread);
    } else if (thread == C::kCarriers) {
      WaitForKernelBefore();
      BringFilter<C>(s, shared, packed);
    }
  }
#else
  __trap();  // launched on other GPUs by mistake
#endif
}

}  // namespace capsops::capsule_conv::wgmma

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_WGMMA_PRODUCT_CUH_
