// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The weight gradient as one matrix product with mma.sync: row = (filter tap, channel,
// inner), column = (output channel, pose column), contraction = (lattice point, pose
// row). Split-K: a block computes the partial sum of a tile of the result over its
// share of the lattice. Its warps have different rows and the same columns.
//
// A block loops over lattice tiles. For each it copies two patches to shared memory
// with cp.async, double-buffered: one of the input, as in the forward product, and one
// of `grad`, with a pixel per lattice point. Fragments are loaded from these patches.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>

#include "cuda/capsule_conv/mma/product.cuh"
#include "cuda/capsule_conv/mma/weights_operands.cuh"
#include "cuda/capsule_conv/patch.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/warp.cuh"

namespace capsops::capsule_conv::mma {

constexpr int kWeightWarps = 4;
// Tensor cores truncate when they add, so after at least this many steps accumulators
// are added to the partial sum in global memory, in float, and cleared.
constexpr int kWeightSteps = 512;

// Kernel parameters. The result has a quad of rows for each pair of a tap and an input
// plane. The planes are divided into chunks, and a block takes `quads` quads of its
// chunk's list of (tap, plane). Columns are the planes of `grad`.
struct WeightProduct {
  Image input, grad;
  Axis vertical, horizontal;
  Patch input_patch, grad_patch;
  int chunk_planes, chunks;
  int quads, row_blocks;  // row blocks per chunk
  int column_blocks;
  int splits;     // shares of the lattice
  int64_t tiles;  // lattice tiles of all images
  int64_t weights;

  __host__ __device__ int taps() const { return vertical.taps * horizontal.taps; }
};

// Iterates over tiles of the lattice.
struct TileCoord {
  int64_t image;
  int y, x;  // first lattice point

  __device__ TileCoord(const WeightProduct& p, int64_t tile) {
    x = static_cast<int>(tile % p.horizontal.tiles) * p.horizontal.tile;
    tile /= p.horizontal.tiles;
    y = static_cast<int>(tile % p.vertical.tiles) * p.vertical.tile;
    image = tile / p.vertical.tiles;
  }
  __device__ void Advance(const WeightProduct& p) {
    x += p.horizontal.tile;
    if (x < p.horizontal.points) return;
    x = 0;
    y += p.vertical.tile;
    if (y < p.vertical.points) return;
    y = 0;
    ++image;
  }
};

// A block's coordinates in the product.
struct WeightCoord {
  int column_block, row_block, chunk, depth, split;
  int first_tap_y, first_tap_x;  // first tap that its patch serves

  __device__ explicit WeightCoord(const WeightProduct& p) {
    int rest = blockIdx.x;
    const auto next = [&](int size) {
      const int at = rest % size;
      rest /= size;
      return at;
    };
    column_block = next(p.column_blocks);
    row_block = next(p.row_blocks);
    chunk = next(p.chunks);
    depth = next(p.input.depth);
    split = rest;
    const int first = row_block * p.quads / p.chunk_planes;
    const int last = min((row_block + 1) * p.quads - 1, p.chunk_planes * p.taps() - 1) /
                     p.chunk_planes;
    first_tap_y = first / p.horizontal.taps;
    first_tap_x =
        last / p.horizontal.taps == first_tap_y ? first % p.horizontal.taps : 0;
  }
};

// Quad `i` of the block's rows: its offset in the patch (words), its offset in the
// filter (elements), and how many of its 4 elements exist.
struct RowQuad {
  int word = 0, offset = 0, count = 0;

  template <typename S>
  __device__ static RowQuad Of(const WeightProduct& p, const WeightCoord& place,
                               int i) {
    RowQuad row;
    const int at = place.row_block * p.quads + i;
    const int tap = at / p.chunk_planes, local = at - tap * p.chunk_planes;
    const int plane = place.chunk * p.chunk_planes + local;
    if (i >= p.quads || tap >= p.taps() || plane >= p.input.planes()) return row;
    const int y = tap / p.horizontal.taps, x = tap - y * p.horizontal.taps;
    row.word = local * p.input_patch.plane +
               p.input_patch.Shift(p.vertical, p.horizontal, y - place.first_tap_y,
                                   x - place.first_tap_x) *
                   p.input.rows * kQuadWords<S>;
    const int quads = p.input.quads();
    const int channel = plane / quads, first = (plane - channel * quads) * kQuad;
    const int matrix = p.input.columns * p.grad.columns;
    const int matrices = p.grad.channels * p.grad.depth;
    row.offset =
        ((tap * p.input.channels + channel) * matrices + place.depth) * matrix +
        first * p.grad.columns;
    row.count = min(p.input.columns - first, kQuad);
    return row;
  }
};

// A plane of `grad`: its offset in the filter, and how many of its 4 columns exist.
struct ColumnQuad {
  int offset = 0, count = 0;

  __device__ static ColumnQuad Of(const WeightProduct& p, int plane) {
    ColumnQuad column;
    if (plane >= p.grad.planes()) return column;
    const int quads = p.grad.quads();
    const int channel = plane / quads, first = (plane - channel * quads) * kQuad;
    column.offset = channel * p.grad.depth * p.input.columns * p.grad.columns + first;
    column.count = min(p.grad.columns - first, kQuad);
    return column;
  }
};

// Stores the first `count` of 4 adjacent results or, if `add`, adds them to memory.
static __device__ __noinline__ void StoreGuarded(float4 value, int count, bool add,
                                                 float* to) {
  const float values[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (e < count) to[e] = values[e] + (add ? to[e] : 0);
  }
}

// Computes the partial sum of a tile of the gradient over the block's share of the
// lattice. A warp has kTiles x kProducts tiles of 16 rows by 8 columns.
template <typename S, Tf32 kTf32, int kTiles, int kProducts, bool kEvenRows>
__global__ void __launch_bounds__(kWeightWarps* kLanes, 2)
    WeightsKernel(const WeightProduct p, const S* input, const S* grad, float* parts) {
  using G = QuadFragment<S>;
  constexpr int kLefts = kTiles * 2 / G::kElements, kRights = kProducts / G::kElements;
  constexpr int kWarpQuads = kLefts * G::kQuads;
  constexpr int kRowQuads = kWarpQuads * kWeightWarps;
  constexpr int kColumnQuads = kRights * G::kQuads;
  extern __shared__ uint4 shared[];
  const int rows = p.input.rows;
  const int input_words = p.chunk_planes * p.input_patch.plane;
  const int buffer_words = input_words + kColumnQuads * p.grad_patch.plane;
  uint32_t* const buffers = reinterpret_cast<uint32_t*>(shared);
  PatchPixel* const input_pixels =
      reinterpret_cast<PatchPixel*>(buffers + 2 * buffer_words);
  PatchPixel* const grad_pixels = input_pixels + p.input_patch.pixels;
  RowQuad* const row_quads =
      reinterpret_cast<RowQuad*>(grad_pixels + p.grad_patch.pixels);
  ColumnQuad* const column_quads = reinterpret_cast<ColumnQuad*>(row_quads + kRowQuads);

  const WeightCoord place(p);
  for (int i = threadIdx.x; i < kRowQuads; i += blockDim.x) {
    row_quads[i] = RowQuad::Of<S>(p, place, i);
  }
  const int first_column = place.column_block * kColumnQuads;
  for (int i = threadIdx.x; i < kColumnQuads; i += blockDim.x) {
    column_quads[i] = ColumnQuad::Of(p, first_column + i);
  }
  for (int i = threadIdx.x; i < p.input_patch.pixels; i += blockDim.x) {
    input_pixels[i] = PatchPixel::Of(p.input_patch, p.input, p.horizontal.stride, i);
  }
  for (int i = threadIdx.x; i < p.grad_patch.pixels; i += blockDim.x) {
    grad_pixels[i] = PatchPixel::Of(p.grad_patch, p.grad, 1, i);
  }
  const int input_planes =
      min(p.chunk_planes, p.input.planes() - place.chunk * p.chunk_planes);
  const int column_planes = min(kColumnQuads, p.grad.planes() - first_column);
  input += place.depth * p.input.pose();
  grad += place.depth * p.grad.pose();

  const int64_t begin = p.tiles * place.split / p.splits;
  int left_tiles = static_cast<int>(p.tiles * (place.split + 1) / p.splits - begin);
  TileCoord now(p, begin), prefetch = now;
  const PlaneLoader<S> input_loader(p.input, place.chunk * p.chunk_planes,
                                    input_planes);
  const PlaneLoader<S> grad_loader(p.grad, first_column, column_planes);
  const int patch_width = p.input_patch.pitch * p.horizontal.stride;
  const auto load = [&](int buffer) {
    uint32_t* const to = buffers + buffer * buffer_words;
    const int64_t image = prefetch.image;
    input_loader.Load(p.input_patch, p.input, input_pixels,
                      input + image * p.input.height * p.input.width * p.input.pixel(),
                      prefetch.y * p.vertical.stride + p.vertical.offset +
                          place.first_tap_y * p.vertical.step,
                      prefetch.x * p.horizontal.stride + p.horizontal.offset +
                          place.first_tap_x * p.horizontal.step,
                      p.input_patch.height, patch_width, to);
    grad_loader.Load(p.grad_patch, p.grad, grad_pixels,
                     grad + image * p.grad.height * p.grad.width * p.grad.pixel(),
                     prefetch.y, prefetch.x, p.vertical.tile, p.horizontal.tile,
                     to + input_words);
    __pipeline_commit();
    prefetch.Advance(p);
  };

  const int warp = threadIdx.x / kLanes;
  __syncthreads();
  GridDependencySynchronize();
  load(0);
  int left_at[kLefts], right_at[kRights];  // bytes
#pragma unroll
  for (int m = 0; m < kLefts; ++m) {
    left_at[m] =
        row_quads[warp * kWarpQuads + m * G::kQuads + G::Quad()].word * 4 + G::Byte();
  }
#pragma unroll
  for (int n = 0; n < kRights; ++n) {
    const int plane = n * G::kQuads + G::Quad();
    right_at[n] =
        (plane < column_planes ? plane * p.grad_patch.plane * 4 : 0) + G::Byte();
  }

  float sums[kTiles][kProducts][4] = {};
  parts += place.split * p.weights;
  bool written = false;
  int steps = 0, buffer = 0;
  const int pixel_bytes = rows * kQuadWords<S> * 4;
  for (; left_tiles > 0; --left_tiles, buffer ^= 1) {
    __pipeline_wait_prior(0);
    __syncthreads();
    if (left_tiles > 1) {
      load(buffer ^ 1);
    } else {
      TriggerDependentLaunch();
    }
    const Lines lines{min(p.vertical.tile, p.vertical.points - now.y),
                      min(p.horizontal.tile, p.horizontal.points - now.x) * rows,
                      p.input_patch.row * pixel_bytes, p.horizontal.tile * pixel_bytes};
    now.Advance(p);
    const uint32_t patch = static_cast<uint32_t>(
        __cvta_generic_to_shared(buffers + buffer * buffer_words));
    MultiplyTile<S, kTf32, kEvenRows>(patch, patch + input_words * 4, lines, left_at,
                                      right_at, sums);
    steps += lines.steps<S>();
    if (steps < kWeightSteps && left_tiles > 1) continue;
    const bool whole = p.grad.columns % kQuad == 0;
    ForEachResult<S>(sums, [&](int quad, int q, int plane, float4 value) {
      const RowQuad& row = row_quads[warp * kWarpQuads + quad];
      const ColumnQuad& column = column_quads[plane];
      if (q >= row.count || column.count == 0) return;
      float* const to = parts + row.offset + q * p.grad.columns + column.offset;
      if (!whole) return StoreGuarded(value, column.count, written, to);
      float4* const four = reinterpret_cast<float4*>(to);
      if (written) {
        const float4 before = *four;
        value = {value.x + before.x, value.y + before.y, value.z + before.z,
                 value.w + before.w};
      }
      *four = value;
    });
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kProducts; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[m][n][e] = 0;
      }
    }
    written = true;
    steps = 0;
  }
}

}  // namespace capsops::capsule_conv::mma
