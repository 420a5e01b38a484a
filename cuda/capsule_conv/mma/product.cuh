// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule convolution and its input gradient as one matrix product with mma.sync: row =
// (lattice point, pose row), contraction = (filter tap, channel, inner), column =
// (output channel, pose column). A block computes a tile of lattice points by kColumns
// columns; each of its warps has kTiles tiles of 16 rows and all of the columns.
//
// Both operands are copied to shared memory with cp.async and loaded from there as
// fragments. The rows come from the block's patch, without im2col; the patch of the
// next chunk is copied while this chunk is multiplied. The packed filter passes through
// a ring of stages.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>
#include <type_traits>

#include "cuda/capsule_conv/block.cuh"
#include "cuda/capsule_conv/mma/pack.cuh"
#include "cuda/common/tensor_cores.cuh"
#include "cuda/common/warp.cuh"

namespace capsops::capsule_conv::mma {

constexpr int kStages = 3;  // stages of the filter in the ring in shared memory

// Entries of a chunk's table of quads.
template <typename S>
__host__ __device__ int TableQuads(const Order& order) {
  return order.steps * kStepQuads<S>;
}

// Fills two tables and synchronizes: `quads`, the offset in the patch of each quad of a
// chunk for the block's first row, and `pixels`, each patch pixel's offset in the
// image.
template <typename S>
__device__ void FillTables(const Product& p, const BlockCoord& place, int* quads,
                           int* pixels) {
  FillPixelTable(p.patch, p.source, p.horizontal.stride,
                 place.y * p.vertical.stride + p.vertical.offset,
                 place.x * p.horizontal.stride + p.horizontal.offset, pixels);
  for (int i = threadIdx.x; i < TableQuads<S>(p.order); i += blockDim.x) {
    const int tap = i / p.order.planes;
    const bool there = tap < p.vertical.taps * p.horizontal.taps;
    const int width = max(p.horizontal.taps, 1);
    const int shift = p.patch.Shift(p.vertical, p.horizontal, tap / width, tap % width);
    quads[i] = there ? i % p.order.planes * p.patch.plane +
                           shift * p.source.rows * kQuadWords<S>
                     : 0;  // any quad will do: the filter is zero here
  }
  __syncthreads();
}

// A lane's share of 16 rows by one step, as stored in a plane: words of the upper 8
// rows, and of the lower 8 rows `below` words further.
template <typename S>
struct RawFragment {
  uint2 upper, lower;

  __device__ void Load(const uint32_t* from, int below = 8 * kQuadWords<S>) {
    upper = *reinterpret_cast<const uint2*>(from);
    lower = *reinterpret_cast<const uint2*>(from + below);
  }
};

// The A fragment of a RawFragment, in one or two parts.
template <typename S, Tf32 kTf32>
struct RowFragment {
  uint32_t part[kParts<kRowTf32<kTf32>>][4];

  __device__ void Set(const RawFragment<S>& raw) {
    const uint32_t words[4] = {raw.upper.x, raw.lower.x, raw.upper.y, raw.lower.y};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if constexpr (std::is_same_v<S, float>) {
        constexpr Tf32 kOf = kRowTf32<kTf32>;
        Operand<1, kOf> operand;
        operand.SetWithoutOverflow(0, __uint_as_float(words[e]));
        part[0][e] = operand.high[0];
        if constexpr (kOf == Tf32::kSplit) part[1][e] = operand.low[0];
      } else {
        part[0][e] = words[e];
      }
    }
  }
};

// The row tiles of a warp: kTiles tiles of 16 rows from tile `first` on.
template <typename S, int kTiles>
struct Tiles {
  int first, all;
  int offset[kTiles];  // offsets of this lane's words in a plane

  __device__ Tiles(const Product& p, const BlockCoord& place) {
    const int lane = threadIdx.x % kLanes, g = lane / 4, t = lane % 4;
    first = threadIdx.x / kLanes * kTiles;
    all = min(p.vertical.tile, p.vertical.points - place.y) * p.by_row_tiles.by;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      int at;
      const int y = p.by_row_tiles.Split(min(first + m, all - 1), &at);
      const int row = y * p.patch.row * p.source.rows + at * kTileRows + g;
      offset[m] = row * kQuadWords<S> + (std::is_same_v<S, float> ? t % 2 * 2 : 0);
    }
  }
};

// Epilogue: stores a warp's results.
template <typename S, int kTiles, int kProducts>
__device__ void StoreTiles(const Product& p, const BlockCoord& place,
                           const Tiles<S, kTiles>& tiles,
                           const float (&sums)[kTiles][kProducts][4], S* target) {
  const int g = threadIdx.x % kLanes / 4;
  const int width = min(p.horizontal.tile, p.horizontal.points - place.x);
  // The target of a row of tile m; nullptr if it does not exist.
  const auto target_row = [&](int m, int half) -> S* {
    const int tile = tiles.first + m;
    int at, pose_row;
    const int y = p.by_row_tiles.Split(tile, &at);
    const int x = p.patch.by_rows.Split(at * kTileRows + half * 8 + g, &pose_row);
    if (tile >= tiles.all || x >= width) return nullptr;
    return TargetRow(p, place, y, x, pose_row, target);
  };
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    const int column = place.column_block * kProducts * 8;
    S* const upper = target_row(m, 0);
    if (upper != nullptr) StoreRow<0>(p.target, p.scale, column, sums[m], upper);
    S* const lower = target_row(m, 1);
    if (lower != nullptr) StoreRow<1>(p.target, p.scale, column, sums[m], lower);
  }
}

// c += a b. Tensor cores truncate sums, so the products of split operands are summed
// separately, smallest terms first, and then added to c in float.
template <typename S, Tf32 kTf32>
__device__ void MultiplyAdd(const RowFragment<S, kTf32>& a,
                            const uint32_t (&b)[kParts<kFilterTf32<kTf32>>][2],
                            float (&c)[4]) {
  if constexpr (kRowTf32<kTf32> == Tf32::kSplit) {
    float sum[4] = {};
    Multiply(a.part[1], b[0], sum);
    if constexpr (kTf32 == Tf32::kSplit) Multiply(a.part[0], b[1], sum);
    Multiply(a.part[0], b[0], sum);
#pragma unroll
    for (int e = 0; e < 4; ++e) c[e] += sum[e];
  } else if constexpr (std::is_same_v<S, float>) {
    Multiply(a.part[0], b[0], c);
  } else {
    MultiplyPairs<S>(a.part[0], b[0], c);
  }
}

// Multiplies one step of this warp's tiles. The lane's rows are at `offset` in the
// planes; `filter` points to the lane's first word of the step.
template <typename S, Tf32 kTf32, int kTiles, int kProducts>
__device__ void MultiplyStep(const uint32_t* planes, const uint32_t* filter,
                             const int (&offset)[kTiles],
                             float (&sums)[kTiles][kProducts][4]) {
  RowFragment<S, kTf32> a[kTiles];
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    RawFragment<S> raw;
    raw.Load(planes + offset[m]);
    a[m].Set(raw);
  }
#pragma unroll
  for (int n = 0; n < kProducts; ++n) {
    constexpr int kFilterParts = kParts<kFilterTf32<kTf32>>;
    uint32_t b[kFilterParts][2];
#pragma unroll
    for (int e = 0; e < 2 * kFilterParts; ++e) {
      b[e / 2][e % 2] = filter[(e * kProducts + n) * kLanes];
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m) MultiplyAdd<S, kTf32>(a[m], b, sums[m][n]);
  }
}

// Computes and stores a tile per block.
template <typename S, Tf32 kTf32, int kTiles, int kColumns, int kWarps, int kBlocks>
__global__ void __launch_bounds__(kWarps* kLanes, kBlocks)
    ProductKernel(const Product p, const S* source, const uint32_t* packed, S* target) {
  constexpr int kStep = StepWords<kTf32>(kColumns);
  extern __shared__ uint4 shared[];
  const Patch& patch = p.patch;
  const int chunk_words = p.order.planes * patch.plane;
  const int stage_words = p.stage_steps * kStep;
  uint32_t* const patches = reinterpret_cast<uint32_t*>(shared);
  uint32_t* const ring = patches + p.buffers * chunk_words;
  int* const quads = reinterpret_cast<int*>(ring + kStages * stage_words);
  int* const pixels = quads + TableQuads<S>(p.order);

  const BlockCoord place(p);
  FillTables<S>(p, place, quads, pixels);
  PatchLoader<S> loader(patch, p.source, pixels, SourceOf(p, place, source),
                        p.order.planes);
  loader.Begin(patch, p.source, 0, patches);
  loader.Load(patch.pixels);
  packed += (int64_t{place.depth} * p.order.column_blocks + place.column_block) *
            p.order.chunks * p.order.steps * kStep;
  // The copy of the first patch need not wait for the kernel that packs the filter.
  GridDependencySynchronize();
  // A stage has `stage_steps` steps, or what remains in the last stage of a chunk.
  const int chunk_stages = (p.order.steps + p.stage_steps - 1) / p.stage_steps;
  const int last_steps = p.order.steps - (chunk_stages - 1) * p.stage_steps;
  const int stages = p.order.chunks * chunk_stages;
  int prefetch = 0, prefetch_part = 0, prefetch_slot = 0;
  const auto load_stage = [&] {
    if (prefetch < stages) {
      const bool last = ++prefetch_part == chunk_stages;
      const int steps = last ? last_steps : p.stage_steps;
      CopyWordsAsync<kStep, kWarps * kLanes>(packed, steps,
                                             ring + prefetch_slot * stage_words);
      packed += steps * kStep;
      if (last) prefetch_part = 0;
      if (++prefetch_slot == kStages) prefetch_slot = 0;
      ++prefetch;
    }
    __pipeline_commit();
  };
#pragma unroll 1
  for (int stage = 0; stage < (kStages - 1); ++stage) load_stage();

  const Tiles<S, kTiles> tiles(p, place);
  const bool busy = tiles.first < tiles.all;
  const int lane = threadIdx.x % kLanes, t = lane % 4;
  float sums[kTiles][kColumns / 8][4] = {};
  // The next patch is copied in this many pieces, one per stage. The last is issued so
  // early that the usual wait, which leaves the newest groups in flight, covers it.
  const int pieces = max(chunk_stages - kStages + 2, 1);
  const int share = (loader.share() + pieces - 1) / pieces;
  int chunk = 0, part = 0, slot = 0;
  const uint32_t* planes = patches;
  for (int stage = 0; stage < stages; ++stage) {
    // With so few stages per chunk, this chunk's patch is in the newest group.
    if (part == 0 && chunk_stages < (kStages - 1)) {
      __pipeline_wait_prior(0);
    } else {
      __pipeline_wait_prior(kStages - 2);
    }
    __syncthreads();
    if (chunk + 1 < p.order.chunks) {
      if (part == 0) {
        loader.Begin(patch, p.source, (chunk + 1) * p.order.planes,
                     patches + (chunk % 2 == 0 ? chunk_words : 0));
      }
      loader.Load(share);
    }
    load_stage();
    const uint32_t* filter = ring + slot * stage_words;
    const int* quad =
        quads + part * p.stage_steps * kStepQuads<S> + t * kStepQuads<S> / 4;
    const int steps = part == chunk_stages - 1 ? last_steps : p.stage_steps;
    const int* const end = quad + (busy ? steps * kStepQuads<S> : 0);
    // With few columns there are registers to unroll more.
#pragma unroll(kColumns <= 16 ? 4 : 1)
    for (; quad < end; quad += kStepQuads<S>, filter += kStep) {
      MultiplyStep<S, kTf32>(planes + *quad, filter + lane, tiles.offset, sums);
    }
    if (++slot == kStages) slot = 0;
    if (++part == chunk_stages) {
      part = 0;
      ++chunk;
      planes = patches + chunk % 2 * chunk_words;
    }
  }

  StoreTiles(p, place, tiles, sums, target);
}

}  // namespace capsops::capsule_conv::mma
