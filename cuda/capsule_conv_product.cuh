// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule convolution, and its input gradient, as one matrix product on tensor cores:
// row = (lattice point, pose row), contraction = (filter position, channel, inner),
// column = (channel, pose column). The left operand is read where it lies, in the patch
// of a block; the right one, the packed filter, passes through a ring of stages. The
// patch of the next planes arrives while those of this chunk are multiplied.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_PRODUCT_CUH_
#define CAPSOPS_CUDA_CAPSULE_CONV_PRODUCT_CUH_

#include <cuda_pipeline.h>

#include <cstdint>

#include "cuda/capsule_conv_pack.cuh"
#include "cuda/capsule_conv_patch.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/tensor_cores.cuh"
#include "cuda/common/types.cuh"
#include "cuda/common/warp.cuh"
#include "cuda/common/warpgroup.cuh"

namespace capsops::capsule_conv {

constexpr int kTileRows = 16;
// Stages that the filter passes through, and how many of them arrive ahead: products
// that a warpgroup makes while it goes on may still read the one before.
template <bool kAsync>
constexpr int kStages = kAsync ? 4 : 3;
constexpr int kAhead = 2;

// Lattice point (i, j) makes pixel (i * stride + offset, ...) of the target.
struct Placement {
  int stride_y, offset_y, stride_x, offset_x;
};

struct Product {
  Image source, target;
  Axis vertical, horizontal;
  Placement placement;
  Patch patch;
  Order order;
  int buffers;           // patches in shared memory
  int stage_steps;       // steps of a stage
  Divisor by_row_tiles;  // tiles of 16 rows in a lattice row of a block
};

// The left operand of a product: 16 rows of one step.
template <typename S, Tf32 kTf32>
struct Rows {
  uint32_t part[kParts<kTf32>][4];

  __device__ void Load(const uint32_t* from) {
    const uint2 upper = *reinterpret_cast<const uint2*>(from);
    const uint2 lower = *reinterpret_cast<const uint2*>(from + 8 * kQuadWords<S>);
    const uint32_t words[4] = {upper.x, lower.x, upper.y, lower.y};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if constexpr (std::is_same_v<S, float>) {
        Operand<1, kTf32> operand;
        operand.Set(0, __uint_as_float(words[e]));
        part[0][e] = operand.high[0];
        if constexpr (kTf32 == Tf32::kSplit) part[1][e] = operand.low[0];
      } else {
        part[0][e] = words[e];
      }
    }
  }
};

// c += a b. What is split is added up in float, rounded to nearest: tensor cores cut
// off.
template <typename S, Tf32 kTf32>
__device__ void MultiplyAdd(const Rows<S, kTf32>& a,
                            const uint32_t (&b)[kParts<kTf32>][2], float (&c)[4]) {
  if constexpr (kTf32 == Tf32::kSplit) {
    float sum[4] = {};
    Multiply(a.part[1], b[0], sum);
    Multiply(a.part[0], b[1], sum);
    Multiply(a.part[0], b[0], sum);
#pragma unroll
    for (int e = 0; e < 4; ++e) c[e] += sum[e];
  } else if constexpr (std::is_same_v<S, float>) {
    Multiply(a.part[0], b[0], c);
  } else {
    MultiplyPairs<S>(a.part[0], b[0], c);
  }
}

// One step of this warp's tiles, whose rows in the planes are at `offset`.
template <typename S, Tf32 kTf32, int kTiles, int kProducts>
__device__ void MultiplyStep(const uint32_t* planes, const uint32_t* filter,
                             const int (&offset)[kTiles],
                             float (&sums)[kTiles][kProducts][4]) {
  Rows<S, kTf32> a[kTiles];
#pragma unroll
  for (int m = 0; m < kTiles; ++m) a[m].Load(planes + offset[m]);
#pragma unroll
  for (int n = 0; n < kProducts; ++n) {
    uint32_t b[kParts<kTf32>][2];
#pragma unroll
    for (int e = 0; e < 2 * kParts<kTf32>; ++e) {
      b[e / 2][e % 2] = filter[(e * kProducts + n) * kLanes];
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m) MultiplyAdd<S, kTf32>(a[m], b, sums[m][n]);
  }
}

// The same by a warpgroup, begun: before `a` is written, the step before the last is
// waited for.
template <typename S, Tf32 kTf32, int kTiles>
__device__ void MultiplyStep(const uint32_t* planes, const uint32_t* filter,
                             const int (&offset)[kTiles], Rows<S, kTf32> (&a)[kTiles],
                             float (&sums)[kTiles][8][4]) {
  WaitForProducts<1>();
#pragma unroll
  for (int m = 0; m < kTiles; ++m) a[m].Load(planes + offset[m]);
  BeginProducts();
  const uint64_t columns = ProductColumns(filter);
#pragma unroll
  for (int m = 0; m < kTiles; ++m) MultiplyAsync<S>(a[m].part[0], columns, sums[m]);
  CommitProducts();
}

// What a block works on.
struct Place2D {
  int64_t image;
  int y, x;  // its first lattice point
  int depth, column_block;

  __device__ explicit Place2D(const Product& p) {
    int64_t rest = blockIdx.x;
    const auto next = [&](int size) {
      const int at = static_cast<int>(rest % size);
      rest /= size;
      return at;
    };
    column_block = next(p.order.column_blocks);
    depth = next(p.source.depth);
    x = next(p.horizontal.tiles) * p.horizontal.tile;
    y = next(p.vertical.tiles) * p.vertical.tile;
    image = rest;
  }
};

// Writes one column of a row of a matrix product; out of line, as few poses need it.
template <typename S>
__device__ __noinline__ void StoreColumn(int column, int columns, int channels,
                                         int64_t stride, float value, S* row) {
  const int channel = column / columns;
  if (channel >= channels) return;
  Narrow(value, row + channel * stride + (column - channel * columns));
}

// Writes a row of a matrix product of which this lane has columns 2 t and 2 t + 1 of
// every 8 from `column` on. kHalf says which row of the products' tiles it is.
template <int kHalf, typename S, int kProducts>
__device__ void StoreRow(const Image& target, int column,
                         const float (&sums)[kProducts][4], S* row) {
  const int t = threadIdx.x % 4;
  const int64_t stride = int64_t{target.depth} * target.pose();
  if (target.columns == kQuad) {
    const int channel = column / kQuad + t / 2;
    S* to = row + channel * stride + t % 2 * 2;
#pragma unroll
    for (int n = 0; n < kProducts; ++n, to += 2 * stride) {
      if (channel + 2 * n >= target.channels) break;
      Pack<S, 2> pair;
      Narrow(sums[n][2 * kHalf], &pair.at[0]);
      Narrow(sums[n][2 * kHalf + 1], &pair.at[1]);
      *reinterpret_cast<Pack<S, 2>*>(to) = pair;
    }
  } else {
#pragma unroll
    for (int n = 0; n < kProducts; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        StoreColumn(column + 8 * n + 2 * t + e, target.columns, target.channels, stride,
                    sums[n][2 * kHalf + e], row);
      }
    }
  }
}

// kWarps warps side by side have kTiles tiles of 16 rows and all kColumns columns each;
// where kAsync, as warpgroups.
template <typename S, Tf32 kTf32, int kTiles, int kColumns, int kWarps, int kBlocks,
          bool kAsync>
__global__ void __launch_bounds__(kWarps* kLanes, kBlocks)
    ProductKernel(const Product p, const S* source, const uint32_t* packed, S* target) {
  constexpr int kStep = StepWords<kTf32>(kColumns);
  constexpr int kProducts = kColumns / 8;  // side by side
  extern __shared__ uint4 shared[];
  const Patch& patch = p.patch;
  const int chunk_words = p.order.planes * patch.plane;
  const int stage_words = p.stage_steps * kStep;
  uint32_t* const patches = reinterpret_cast<uint32_t*>(shared);
  uint32_t* const ring = patches + p.buffers * chunk_words;
  int* const quads = reinterpret_cast<int*>(ring + kStages<kAsync> * stage_words);
  int* const pixels = quads + p.order.steps * kStepQuads<S>;

  const Place2D place(p);
  FindPixels(patch, p.source, p.horizontal.stride,
             place.y * p.vertical.stride + p.vertical.offset,
             place.x * p.horizontal.stride + p.horizontal.offset, pixels);
  const int rows = p.source.rows;
  for (int i = threadIdx.x; i < p.order.steps * kStepQuads<S>; i += blockDim.x) {
    const int tap = i / p.order.planes;
    const bool there = tap < p.vertical.taps * p.horizontal.taps;
    const int shift = patch.Shift(p.vertical, p.horizontal, tap / p.horizontal.taps,
                                  tap % p.horizontal.taps);
    quads[i] = there ? i % p.order.planes * patch.plane + shift * rows * kQuadWords<S>
                     : 0;  // times a zero of the filter
  }
  __syncthreads();

  const S* const from =
      source + place.image * p.source.height * p.source.width * p.source.pixel() +
      place.depth * p.source.pose();
  packed += (int64_t{place.depth} * p.order.column_blocks + place.column_block) *
            p.order.chunks * p.order.steps * kStep;
  Carrier<S> carrier(patch, p.source, pixels, from, p.order.planes);
  carrier.Begin(patch, p.source, 0, patches);
  carrier.Bring(patch.pixels);
  WaitForKernelBefore();
  // The filter comes in stages of `stage_steps` steps, the last of a chunk of what is
  // left. They lie one after the other.
  const int chunk_stages = (p.order.steps + p.stage_steps - 1) / p.stage_steps;
  const int last_steps = p.order.steps - (chunk_stages - 1) * p.stage_steps;
  const int stages = p.order.chunks * chunk_stages;
  int coming = 0, coming_part = 0, coming_slot = 0;
  const auto bring_stage = [&] {
    if (coming < stages) {
      const bool last = ++coming_part == chunk_stages;
      const int steps = last ? last_steps : p.stage_steps;
      BringWords<kStep, kWarps * kLanes>(packed, steps,
                                         ring + coming_slot * stage_words);
      packed += steps * kStep;
      if (last) coming_part = 0;
      if (++coming_slot == kStages<kAsync>) coming_slot = 0;
      ++coming;
    }
    __pipeline_commit();
  };
#pragma unroll 1
  for (int stage = 0; stage < kAhead; ++stage) bring_stage();

  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int g = lane / 4, t = lane % 4;
  const int tiles =
      min(p.vertical.tile, p.vertical.points - place.y) * p.by_row_tiles.by;
  const bool busy = (kAsync ? warp / 4 * 4 : warp) * kTiles < tiles;
  int offset[kTiles];  // of a tile's rows in a plane
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    const int tile = min(warp * kTiles + m, tiles - 1);
    int at;
    const int y = p.by_row_tiles.Split(tile, &at);
    offset[m] = (y * patch.row * rows + at * kTileRows) * kQuadWords<S> +
                g * kQuadWords<S> + (std::is_same_v<S, float> ? t % 2 * 2 : 0);
  }

  float sums[kTiles][kProducts][4] = {};
  Rows<S, kTf32> even[kTiles], odd[kTiles];  // that products in flight may read
  // The next patch arrives in this many pieces, the last of them early enough that no
  // wait for a stage can miss it.
  const int pieces = max(chunk_stages - kAhead + 1, 1);
  const int share = (carrier.share() + pieces - 1) / pieces;
  int chunk = 0, part = 0, slot = 0;
  const uint32_t* planes = patches;
  for (int stage = 0; stage < stages; ++stage) {
    if (part == 0 && chunk_stages < kAhead) {
      __pipeline_wait_prior(0);
    } else {
      __pipeline_wait_prior(kAhead - 1);
    }
    if constexpr (kAsync) ShareWithProducts();
    __syncthreads();
    if (chunk + 1 < p.order.chunks) {
      if (part == 0) {
        carrier.Begin(patch, p.source, (chunk + 1) * p.order.planes,
                      patches + (chunk % 2 == 0 ? chunk_words : 0));
      }
      carrier.Bring(share);
    }
    bring_stage();
    const uint32_t* filter = ring + slot * stage_words;
    const int* quad =
        quads + part * p.stage_steps * kStepQuads<S> + t * kStepQuads<S> / 4;
    const int steps = part == chunk_stages - 1 ? last_steps : p.stage_steps;
    const int* const end = quad + (busy ? steps * kStepQuads<S> : 0);
    if constexpr (kAsync) {
#pragma unroll 1
      for (; quad < end; quad += 2 * kStepQuads<S>, filter += 2 * kStep) {
        MultiplyStep<S, kTf32>(planes + quad[0], filter, offset, even, sums);
        MultiplyStep<S, kTf32>(planes + quad[kStepQuads<S>], filter + kStep, offset,
                               odd, sums);
      }
    } else {
#pragma unroll 1
      for (; quad < end; quad += kStepQuads<S>, filter += kStep) {
        MultiplyStep<S, kTf32>(planes + *quad, filter + lane, offset, sums);
      }
    }
    if (++slot == kStages<kAsync>) slot = 0;
    if (++part == chunk_stages) {
      part = 0;
      ++chunk;
      planes = patches + chunk % 2 * chunk_words;
    }
  }

  if constexpr (kAsync) WaitForProducts<0>();
  const int width = min(p.horizontal.tile, p.horizontal.points - place.x);
  // Where a row of tile m goes, nullptr if nowhere.
  const auto target_row = [&](int m, int half) -> S* {
    const int tile = warp * kTiles + m;
    int at, pose_row;
    const int y = p.by_row_tiles.Split(tile, &at);
    const int x = patch.by_rows.Split(at * kTileRows + half * 8 + g, &pose_row);
    if (tile >= tiles || x >= width) return nullptr;
    const int to_y = (place.y + y) * p.placement.stride_y + p.placement.offset_y;
    const int to_x = (place.x + x) * p.placement.stride_x + p.placement.offset_x;
    const int64_t image = place.image * p.target.height;
    return target + ((image + to_y) * p.target.width + to_x) * p.target.pixel() +
           place.depth * p.target.pose() + pose_row * p.target.columns;
  };
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    const int column = place.column_block * kColumns;
    S* const upper = target_row(m, 0);
    if (upper != nullptr) StoreRow<0>(p.target, column, sums[m], upper);
    S* const lower = target_row(m, 1);
    if (lower != nullptr) StoreRow<1>(p.target, column, sums[m], lower);
  }
}

}  // namespace capsops::capsule_conv

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_PRODUCT_CUH_
