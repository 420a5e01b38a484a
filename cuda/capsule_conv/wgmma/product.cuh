// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The product of mma/product.cuh for GPUs of compute capability 9.0. Tensor
// cores read both operands from shared memory: the rows of a product are groups of 8
// that follow each other in a plane, so that a product is nothing but two addresses,
// and another position of the filter is another address. The poses may be either
// operand: 64 rows on the left, or up to 256 on the right, where an instruction with 64
// columns reads the least from shared memory. Two warpgroups begin products and go on;
// a third brings what comes next. A block makes one tile after the other.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_WGMMA_PRODUCT_CUH_
#define CAPSOPS_CUDA_CAPSULE_CONV_WGMMA_PRODUCT_CUH_

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

// Of patches. With two, one is brought while the other is read; with three, one is
// copied while another is converted.
constexpr int kMostBuffers = 3;

// Of the filter.
constexpr int kMostStages = 8;

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
  static_assert(sizeof(Barriers) <= 4 * C::kBarrierWords);

  int part_words, patch_words;
  int stages, last_steps;  // of a chunk; steps of the last
  Barriers& barriers;
  uint32_t *patches, *ring;
  RowPlace* rows;
  uint32_t* steps;  // where in a patch a step's units are, as DescribeOperand has it
  int* pixels;      // only carriers need them

  __device__ WarpgroupShared(const WarpgroupProduct& s, uint4* memory)
      : part_words(s.product.order.planes * s.product.patch.plane),
        patch_words(C::kParts * part_words),
        stages((s.product.order.steps + C::kSteps - 1) / C::kSteps),
        last_steps(s.product.order.steps - (stages - 1) * C::kSteps),
        barriers(*reinterpret_cast<Barriers*>(memory)),
        patches(reinterpret_cast<uint32_t*>(memory) + C::kBarrierWords),
        ring(patches + s.product.buffers * patch_words),
        rows(reinterpret_cast<RowPlace*>(ring + s.ring * C::kStageWords)),
        steps(reinterpret_cast<uint32_t*>(rows + C::kProducts * C::kRows)),
        pixels(reinterpret_cast<int*>(steps + stages * C::kSteps)) {}

  __device__ int StageSteps(int stage) const {
    return stage == stages - 1 ? last_steps : C::kSteps;
  }

  __device__ void Initialize() {
    if (threadIdx.x == 0) {
      for (int n = 0; n < kMostStages; ++n) {
        barriers.full[n].Init(1);
        barriers.empty[n].Init(C::kWarps);
      }
      for (int n = 0; n < kMostBuffers; ++n) {
        barriers.patch_full[n].Init(C::kBoxes ? 1 : C::kCarriers);
        barriers.patch_empty[n].Init(C::kWarps);
      }
      Barrier::PublishInit();
    }
  }

  // Makes the tables; for the threads that multiply.
  __device__ void FindPlaces(const WarpgroupProduct& s) {
    FindRows<C>(s, rows);
    for (int n = threadIdx.x; n < stages * C::kSteps; n += C::kWarps * kLanes) {
      const UnitStep step(s.product, s.sorted, n);
      steps[n] = (step.at[1] - step.at[0]) << 16 | step.at[0];
    }
    SynchronizeSome<C::kWarps * kLanes, 2>();
  }
};

// One thread brings the filter, stage after stage, for one tile after the other.
template <typename C>
__device__ void BringFilter(const WarpgroupProduct& s, const WarpgroupShared<C>& shared,
                            const uint32_t* packed) {
  constexpr int kStep = C::kStepWords;
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
        slot.Next(s.ring);
      }
    }
  }
}

// One thread brings the patches as boxes, one for each plane and class.
template <typename C>
__device__ void BringBoxes(const WarpgroupProduct& s, const WarpgroupShared<C>& shared,
                           const CUtensorMap& map) {
  const Product& p = s.product;
  const SortedPatch& sorted = s.sorted;
  const int quads = p.source.quads(), classes = sorted.horizontal.count;
  const int box_words =
      sorted.vertical.extent * sorted.horizontal.extent * p.source.rows * 4;
  const int bytes = 4 * box_words * p.order.planes * sorted.vertical.count * classes;
  Turn buffer{0, 1};
  for (int tile = blockIdx.x; tile < s.tiles; tile += gridDim.x) {
    const BlockPlace place(p, tile);
    for (int chunk = 0; chunk < p.order.chunks; ++chunk) {
      Barrier& full = shared.barriers.patch_full[buffer.at];
      shared.barriers.patch_empty[buffer.at].Wait(buffer.parity);
      full.ArriveAndExpect(bytes);
      for (int unit = 0; unit < p.order.planes; ++unit) {
        const int plane = chunk * p.order.planes + unit, channel = plane / quads;
        const int pose = channel * p.source.depth + place.depth;
        uint32_t* to =
            shared.patches + buffer.at * shared.patch_words + unit * p.patch.plane;
        for (int down = 0; down < sorted.vertical.count; ++down) {
          for (int across = 0; across < classes; ++across) {
            const ClassPlace from(p, place, down, across);
            CopyBox(map, quads == 1 ? pose * p.source.pose() : plane % quads * kQuad,
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
    FindSortedPixels(p, s.sorted, place, shared.pixels, thread, C::kCarriers);
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

// Warpgroup number `group` multiplies its rows and columns of all tiles.
template <typename S, typename C>
__device__ void MultiplyTiles(const WarpgroupProduct& s,
                              const WarpgroupShared<C>& shared, int group, S* target) {
  const Product& p = s.product;
  Barriers& barriers = shared.barriers;
  const auto pass = [&](Barrier& barrier) {
    __syncwarp();
    if (threadIdx.x % kLanes == 0) barrier.Arrive();
  };
  const int first_product = group / C::kColumnGroups * C::kTiles;
  const int column = group % C::kColumnGroups * kSide;
  const uint32_t apart = s.squares ? s.row : kGroupRows;
  Sums<C::kApart, C::kTiles, C::kOctets> sums;
  Turn slot{0, 0}, buffer{0, 0};
  for (int tile = blockIdx.x; tile < s.tiles; tile += gridDim.x) {
    const BlockPlace place(p, tile);
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
          const uint32_t filter =
              UnitAddress(shared.ring + slot.at * C::kStageWords) + column;
          // Step n of tile m: parts of the poses and the filter that add up to `least`.
          const auto multiply = [&](int n, int m, int least) {
#pragma unroll
            for (int of_filter = 0; of_filter < min(least + 1, C::kFilterParts);
                 ++of_filter) {
              const uint64_t columns =
                  DescribeOperand(filter + n * (C::kStepWords / 4) +
                                      of_filter * (UnitStepWords(C::kColumns) / 4),
                                  C::kColumns, kGroupRows);
              const int part = (least - of_filter) * (shared.part_words / 4);
              const uint64_t poses = DescribeOperand(at[n] + first[m] + part, 0, apart);
              AsyncProduct<typename C::O, C::kOctets>::Begin(
                  C::kLeft ? poses : columns, C::kLeft ? columns : poses, sums.made[m],
                  !C::kApart || n > 0 || of_filter > 0 || least < C::kParts - 1);
            }
          };
          // All products of a stage are begun together, without a loop: one at a time
          // they take three times as long.
          WithCount<C::kSteps>(shared.StageSteps(stage), [&](auto count) {
            BeginProducts();
            // The least parts first.
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
            CommitProducts();
          });
        }
        if constexpr (!C::kApart) WaitForProducts<1>();
        // Products in flight are those of this stage.
        if (slot_before >= 0) pass(barriers.empty[slot_before]);
        slot_before = slot.at;
        slot.Next(s.ring);
        if (stage == 0 && buffer_before >= 0) pass(barriers.patch_empty[buffer_before]);
      }
      buffer_before = buffer.at;
      buffer.Next(p.buffers);
    }
    WaitForProducts<0>();
    if (slot_before >= 0) pass(barriers.empty[slot_before]);
    if (buffer_before >= 0) pass(barriers.patch_empty[buffer_before]);
    sums.AddUp();
    const int first_column = place.column_block * C::kColumns + column;
#pragma unroll
    for (int m = 0; m < C::kTiles; ++m) {
      const RowPlace* const places = shared.rows + (first_product + m) * C::kRows;
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

// What patches are brought from.
template <typename S, typename C>
using SourceOfPatches = std::conditional_t<C::kBoxes, CUtensorMap, const S*>;

template <typename S, typename C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    WarpgroupKernel(const WarpgroupProduct s,
                    const __grid_constant__ SourceOfPatches<S, C> source,
                    const uint32_t* packed, S* target) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) uint4 memory[];
  WarpgroupShared<C> shared(s, memory);
  shared.Initialize();
  __syncthreads();
  const int warpgroup =
      __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / (4 * kLanes), 0);
  if (warpgroup < C::kGroups) {
    TakeRegisters<C::kMany, true>();
    shared.FindPlaces(s);
    // Also where there is no filter to wait for: somebody may still use the target's
    // memory.
    WaitForKernelBefore();
    MultiplyTiles<S, C>(s, shared, warpgroup, target);
  } else {
    TakeRegisters<C::kFew, false>();
    const int thread = static_cast<int>(threadIdx.x) - C::kWarps * kLanes;
    // The kernel before packed the filter, and began when `source` was complete.
    if (thread == C::kCarriers) {
      WaitForKernelBefore();
      BringFilter<C>(s, shared, packed);
    } else if constexpr (C::kBoxes) {
      if (thread == 0) BringBoxes<C>(s, shared, source);
    } else if (thread < C::kCarriers) {
      BringPatches<S, C>(s, shared, source, thread);
    }
  }
#else
  __trap();  // launched on other GPUs by mistake
#endif
}

}  // namespace capsops::capsule_conv::wgmma

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_WGMMA_PRODUCT_CUH_
