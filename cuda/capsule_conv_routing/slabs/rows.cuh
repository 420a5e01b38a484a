// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Products of rows of a slab's votes and of its image, tap by tap. A row of a tile is a
// position: a pixel and a type.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "cc/launch/capsule_conv_slabs.h"
#include "cc/launch/round.h"
#include "cuda/capsule_conv_routing/slabs/product.cuh"
#include "cuda/common/divisor.cuh"

namespace capsops::capsule_conv_routing::slabs {

// Kernel parameters.
struct RowProduct {
  int frames, rows, read_rows, positions;
  int terms, columns;  // numbers of a position that is read, and of the result
  int y_taps, y_stride, y_dilation, y_pad;
  int across, column_tiles, chunks;
  // For votes, an image row is read at positions shifted by taps.
  int x_taps, x_step, x_begin;

  RowProduct(const Problem& p, const Slab& slab, int64_t terms, int64_t columns)
      : frames(static_cast<int>(slab.frames)),
        rows(static_cast<int>(slab.band.rows)),
        read_rows(static_cast<int>(slab.band.read_rows)),
        positions(static_cast<int>(slab.phase.x.out.count * p.types)),
        terms(static_cast<int>(terms)),
        columns(static_cast<int>(columns)),
        y_taps(static_cast<int>(slab.phase.y.taps)),
        y_stride(static_cast<int>(slab.phase.y.stride)),
        y_dilation(static_cast<int>(slab.phase.y.dilation)),
        y_pad(static_cast<int>(slab.band.pad)),
        across(static_cast<int>(CeilDivide(positions, kTileRows))),
        column_tiles(static_cast<int>(CeilDivide(columns, 256))),
        chunks(static_cast<int>(CeilDivide(terms, kDepth))),
        x_taps(static_cast<int>(slab.phase.x.taps)),
        x_step(static_cast<int>(slab.phase.x.dilation * p.types)),
        x_begin(static_cast<int>(-slab.phase.x.pad * p.types)) {}

  template <bool kVotes>
  __host__ __device__ int Rows() const {
    return kVotes ? rows : read_rows;
  }
  __host__ __device__ int tiles(bool votes) const {
    return frames * (votes ? rows : read_rows) * across * column_tiles;
  }
  // The columns of a tile.
  int64_t wide() const { return CeilDivide(columns, column_tiles); }

  // Returns the image row that row `row` of the votes reads by a tap, or -1.
  __device__ int Read(int row, int tap) const {
    const int y = row * y_stride + tap * y_dilation - y_pad;
    return y >= 0 && y < read_rows ? y : -1;
  }
  // Returns the row of the votes that reads image row `row` by a tap, or -1.
  __device__ int From(int row, int tap) const {
    const int y = row + y_pad - tap * y_dilation;
    const int from = y / y_stride;
    return y >= 0 && from < rows && from * y_stride == y ? from : -1;
  }
};

// Rows in the middle, which most taps reach, are first.
struct RowTile {
  int frame, row, across, column_tile;

  __device__ RowTile(const RowProduct& w, int all_rows, int tile) {
    Digits<int> digits(tile);
    column_tile = digits.Next(w.column_tiles);
    across = digits.Next(w.across);
    frame = digits.Next(w.frames);
    const int rank = digits.rest, middle = all_rows / 2;
    row = rank % 2 == 0 ? middle + rank / 2 : middle - (rank + 1) / 2;
  }
};

// Calls visit(tile) for the tiles of this block. Blocks that begin with the largest
// tiles end with the smallest.
template <bool kVotes, typename Visit>
__device__ void ForRowTiles(const RowProduct& w, const Visit& visit) {
  const int blocks = gridDim.x, block = blockIdx.x, tiles = w.tiles(kVotes);
  for (int turn = 0, first = 0; first < tiles; ++turn, first += blocks) {
    const int tile = first + (turn % 2 == 0 ? block : blocks - 1 - block);
    if (tile < tiles) visit(RowTile(w, kVotes ? w.rows : w.read_rows, tile));
  }
}

// With kVotes, makes votes of an image:
//   votes[position, column] = sum over taps and channels of
//       image[position + tap, channel] * weights[tap, column, channel]
// Otherwise makes the gradient of an unfolded image, row by row:
//   to[position, (tap across, channel)] = sum over taps down and columns of
//       votes_grad[position of the row that reads by this tap, column] *
//           weights[tap down, (tap across, channel), column]
template <int kProducts, bool kVotes>
__global__ void __launch_bounds__(kProductThreads, 1)
    RowProductKernel(const __grid_constant__ CUtensorMap positions,
                     const __grid_constant__ CUtensorMap weights, const RowProduct w,
                     float* to) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint4 memory[];
  auto& stages = *reinterpret_cast<Stages<kProducts>*>(
      reinterpret_cast<char*>(memory) +
      (kAlignment - SharedAddress(memory) % kAlignment) % kAlignment);
  if (threadIdx.x == 0) {
    for (int n = 0; n < Stages<kProducts>::kCount; ++n) {
      stages.full[n].Init(1);
      stages.empty[n].Init(kConsumerWarps);
    }
    Barrier::FenceInit();
  }
  constexpr int kStages = Stages<kProducts>::kCount;
  __syncthreads();
  GridDependencySynchronize();
  const int group = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 2) {
    SetMaxRegisters<kFew, false>();
    if (threadIdx.x % 128 == 0) {
      PipelineState at;
      at.parity = 1;  // empty stages count as released
      ForRowTiles<kVotes>(w, [&](const RowTile& tile) {
        for (int tap = 0; tap < w.y_taps; ++tap) {
          const int from = kVotes ? w.Read(tile.row, tap) : w.From(tile.row, tap);
          if (from < 0) continue;
          const int line = tile.frame * (kVotes ? w.read_rows : w.rows) + from;
          int x_tap = 0, shift = kVotes ? w.x_begin : 0;
          const int steps = kVotes ? w.chunks * w.x_taps : w.chunks;
          for (int n = 0, chunk = 0; n < steps; ++n, at.Next(kStages)) {
            char* const stage = stages.memory[at.at];
            Barrier& full = stages.Claim(at);
            TmaLoad(positions, chunk * kDepth, tile.across * kTileRows + shift, line,
                    full, stage);
            TmaLoad(weights, chunk * kDepth, tile.column_tile * kProducts * 8,
                    kVotes ? tap * w.x_taps + x_tap : tap, full, stage + kRowBytes);
            if (++chunk < w.chunks) continue;
            chunk = 0;
            ++x_tap;
            shift += w.x_step;
          }
        }
      });
    }
  } else {
    SetMaxRegisters<kMany, true>();
    PipelineState at;
    ForRowTiles<kVotes>(w, [&](const RowTile& tile) {
      int steps = 0;
      for (int tap = 0; tap < w.y_taps; ++tap) {
        if constexpr (kVotes) {
          if (w.Read(tile.row, tap) >= 0) steps += w.chunks * w.x_taps;
        } else {
          if (w.From(tile.row, tap) >= 0) steps += w.chunks;
        }
      }
      float sums[kProducts][4];
      Clear(sums);
      int before = -1;
      for (; steps > 0; --steps, at.Next(kStages)) {
        const char* const stage = stages.memory[at.at];
        stages.full[at.at].Wait(at.parity);
        const uint32_t left =
            DescriptorAddress(stage) + group * (64 * kSwizzleBytes / 16);
        const uint32_t right = DescriptorAddress(stage + kRowBytes);
        WgmmaFence();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          Wgmma<float, kProducts>::Begin(MakeSwizzledDescriptor(left + 2 * k),
                                         MakeSwizzledDescriptor(right + 2 * k), sums,
                                         true);
        }
        WgmmaCommit();
        WgmmaWait<1>();
        if (before >= 0) stages.Release(before);
        before = at.at;
      }
      WgmmaWait<0>();
      if (before >= 0) stages.Release(before);
      Complete(sums);
      const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
      const int position = tile.across * kTileRows + warp * 16 + lane / 4;
      const int first = tile.column_tile * kProducts * 8 + lane % 4 * 2;
      const int64_t line = int64_t{tile.frame} * w.Rows<kVotes>() + tile.row;
      float* const upper = to + (line * w.positions + position) * w.columns;
      float* const lower = upper + int64_t{8} * w.columns;
      const bool has_upper = position < w.positions;
      const bool has_lower = position + 8 < w.positions;
#pragma unroll
      for (int n = 0; n < kProducts; ++n) {
        const int column = first + 8 * n;
        if (column >= w.columns) break;
        if (has_upper) {
          *reinterpret_cast<float2*>(upper + column) =
              make_float2(sums[n][0], sums[n][1]);
        }
        if (has_lower) {
          *reinterpret_cast<float2*>(lower + column) =
              make_float2(sums[n][2], sums[n][3]);
        }
      }
    });
  }
#else
  __trap();  // compiled for another GPU
#endif
}

// Launches it for `lines` rows of `read` positions, and matrices of `taps` taps.
template <int kProducts, bool kVotes>
LaunchError LaunchRowProduct(const GpuExec& exec, const char* op, const RowProduct& w,
                             int64_t read, int64_t lines, int64_t taps,
                             const float* positions, const float* weights, float* to) {
  CUtensorMap left, right;
  CAPSOPS_RETURN_IF_ERROR(
      MakeTensorMap(op, positions, Matrices(w.terms, read, lines, kTileRows), &left));
  CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(
      op, weights, Matrices(w.terms, w.columns, taps, kProducts * 8), &right));
  return LaunchProduct<RowProductKernel<kProducts, kVotes>, kProducts>(
      op, exec, std::min(w.tiles(kVotes), exec.device.processors), left, right, w, to);
}

}  // namespace capsops::capsule_conv_routing::slabs
