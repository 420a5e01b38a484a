// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Computes the votes of a slab straight from the input, by wgmma. The product is
// transposed: its rows are columns of the votes, and its columns are positions (pixel,
// type), because wgmma of 64 rows by 256 columns reads the least shared memory. A block
// computes tiles of 64 columns by 256 positions. A producer thread loads pixels and
// weights by TMA to a ring of stages. A stage holds all pixels that a tile reads by the
// horizontal taps of a window, so that a tap is an offset in shared memory. The two
// consumer warpgroups work on different tiles: one multiplies, from shared memory,
// while the other stores, through shared memory and TMA.
#include "cuda/capsule_conv_routing/slabs/votes.cuh"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "cuda/capsule_conv_routing/slabs/axes.cuh"
#include "cuda/capsule_conv_routing/slabs/product.cuh"
#include "cuda/capsule_conv_routing/slabs/products.h"

namespace capsops::capsule_conv_routing::slabs {

// The block's shared memory: a ring of stages, buffers of the epilogue, and barriers.
struct VoteMemory {
  char *ring, *buffers;
  Barrier *full, *empty;
  Turns* turns;

  template <typename S>
  __device__ static VoteMemory Start(const VoteStage& stage) {
    extern __shared__ uint4 dynamic[];
    char* const from = reinterpret_cast<char*>(dynamic);
    VoteMemory memory;
    memory.ring = from + (kAlignment - SharedAddress(from) % kAlignment) % kAlignment;
    memory.buffers = memory.ring + stage.count * stage.bytes();
    memory.full = reinterpret_cast<Barrier*>(memory.buffers + kStoreBytes<S>);
    memory.empty = memory.full + kMostStages;
    memory.turns = reinterpret_cast<Turns*>(memory.empty + kMostStages);
    if (threadIdx.x == 0) {
      memory.turns->Init();
      for (int n = 0; n < stage.count; ++n) {
        memory.full[n].Init(1);
        memory.empty[n].Init(kConsumerWarps / 2);
      }
      Barrier::FenceInit();
    }
    __syncthreads();
    return memory;
  }
};

// Epilogue: a consumer warpgroup stores its sums, through its two buffers in turn.
// `buffer`, 0 or 1, selects the next.
template <typename S, int kRows, int kProducts>
__device__ void StoreVotes(const float (&sums)[kRows][kProducts][4],
                           const CUtensorMap& votes, const VoteTiles& w,
                           const VoteTile& tile, int group, char* buffers,
                           int* buffer) {
  constexpr int kSize = sizeof(S), kLineColumns = kSwizzleBytes / kSize;
  constexpr int kBoxes = kTileColumns / kLineColumns;
  constexpr int kBox = kStoredPositions * kSwizzleBytes;
  static_assert(4 * kBoxes * kBox == kStoreBytes<S>);
  const int lane = threadIdx.x % 32;
  const bool leads = threadIdx.x % 128 == 0;
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
#pragma unroll
    for (int first = 0; first < kProducts; first += kStoredPositions / 8) {
      const int position = tile.across * kTilePositions + first * 8;
      if (position >= w.positions) break;
      char* const to = buffers + (2 * group + *buffer) * kBoxes * kBox;
      *buffer ^= 1;
      if (leads) WaitForBulkReads<1>();  // until TMA has read this buffer
      SyncGroup(group);
#pragma unroll
      for (int n = 0; n < kStoredPositions / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          // The place of this sum in wgmma's layout, and in a swizzled box.
          const int column = threadIdx.x % 128 / 32 * 16 + lane / 4 + e / 2 * 8;
          const int line = n * 8 + lane % 4 * 2 + e % 2;
          const int byte = column % kLineColumns * kSize;
          Narrow(sums[row][first + n][e],
                 reinterpret_cast<S*>(to + column / kLineColumns * kBox +
                                      line * kSwizzleBytes +
                                      ((byte / 16 ^ line % 8) * 16) + byte % 16));
        }
      }
      FenceAsyncProxy();
      SyncGroup(group);
      if (!leads) continue;
      for (int box = 0; box < kBoxes; ++box) {
        const int column = tile.column + box * kLineColumns;
        if (column >= w.columns) break;
        TmaStore(votes, column, position, tile.row + row, tile.frame, to + box * kBox);
      }
      CommitBulkStores();
    }
  }
}

// votes[position, column] = sum over taps and channels of
//     image[position + tap, channel] * weights[tap, column, channel]
template <typename S, int kLine, int kRows>
__global__ void __launch_bounds__(kProductThreads, 1)
    VotesKernel(const __grid_constant__ CUtensorMap image,
                const __grid_constant__ CUtensorMap weights,
                const __grid_constant__ CUtensorMap votes,
                const __grid_constant__ VoteTiles w) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const VoteStage& stage = w.stage;
  const auto memory = VoteMemory::Start<S>(stage);
  GridDependencySynchronize();
  const int group = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0);
  PipelineState at;
  if (group == 2) {
    SetMaxRegisters<kFew, false>();
    if (threadIdx.x % 128 == 0) {
      at.parity = 1;  // Empty stages count as released.
      const int part_pixels = stage.load_lines / stage.types * stage.stride;
      const auto load = [&](const VoteTile& tile, int frame, int row, int z_tap,
                            int y_tap, int channel) {
        char* to = memory.ring + at.at * stage.bytes();
        Barrier& full = memory.full[at.at];
        memory.empty[at.at].Wait(at.parity);
        full.ArriveAndExpectBytes(stage.bytes());
        for (int n = 0; n < kRows; ++n, row += w.y.stride) {
          for (int box = 0; box < stage.boxes; ++box) {
            int pixel =
                stage.first_pixel + tile.across * stage.pixels * stage.stride + box;
            for (int part = 0; part < stage.loads; ++part, pixel += part_pixels) {
              TmaLoad(image, channel, 0, pixel, row, frame, full, to);
              to += stage.load_lines * kLine;
            }
          }
        }
        TmaLoad(weights, channel, tile.column, z_tap, 0, y_tap, full, to);
        at.Next(stage.count);
      };
      for (int n = blockIdx.x; n < w.tiles(); n += gridDim.x) {
        const VoteTile tile(w, n);
        ForTaps<true>(w.z, w.y, tile.frame, tile.row, kRows,
                      [&](int frame, int row, int z_tap, int y_tap) {
                        for (int chunk = 0; chunk < stage.chunks; ++chunk) {
                          load(tile, frame, row, z_tap, y_tap,
                               chunk * (kLine / static_cast<int>(sizeof(S))));
                        }
                      });
      }
    }
  } else {
    SetMaxRegisters<kMany, true>();
    int buffer = 0, tiles = 0;
    for (int n = blockIdx.x; n < w.tiles(); n += gridDim.x, ++tiles) {
      const VoteTile tile(w, n);
      const int steps =
          CountTaps<true>(w.z, w.y, tile.frame, tile.row, kRows) * stage.chunks;
      if (tiles % 2 != group) {
        at.Skip(steps, stage.count);
        continue;
      }
      constexpr int kProducts = kTilePositions / 8 / kRows;
      float sums[kRows][kProducts][4];
#pragma unroll
      for (int row = 0; row < kRows; ++row) Clear(sums[row]);
      memory.turns->Wait(group, tiles / 2);
      int before = -1;
      const auto release = [&] {
        __syncwarp();
        if (before >= 0 && threadIdx.x % 32 == 0) memory.empty[before].Arrive();
      };
      for (int left = steps * stage.x_taps, tap = 0; left > 0; --left) {
        const uint32_t pixels = DescriptorAddress(memory.ring + at.at * stage.bytes());
        const uint32_t line = pixels + stage.shifts[tap] * (kLine / 16);
        const uint32_t filter =
            pixels + (kRows * stage.row_bytes + tap * stage.tap_bytes) / 16;
        if (tap == 0) memory.full[at.at].Wait(at.parity);
        WgmmaFence();
#pragma unroll
        for (int k = 0; k < kLine / 16; k += 2) {
#pragma unroll
          for (int row = 0; row < kRows; ++row) {
            Wgmma<S, kProducts>::Begin(
                MakeSwizzledDescriptor(filter + k, kLine),
                MakeSwizzledDescriptor(line + row * (stage.row_bytes / 16) + k, kLine),
                sums[row], true);
          }
        }
        WgmmaCommit();
        WgmmaWait<1>();
        // After the first tap of a stage, wgmma has read all of the previous stage.
        if (tap == 0) {
          release();
          before = at.at;
        }
        if (++tap < stage.x_taps) continue;
        tap = 0;
        at.Next(stage.count);
      }
      // The other warpgroup may issue its products before these end.
      memory.turns->Pass(group);
      WgmmaWait<0>();
      release();
#pragma unroll
      for (int row = 0; row < kRows; ++row) Complete(sums[row]);
      StoreVotes<S>(sums, votes, w, tile, group, memory.buffers, &buffer);
    }
    WaitForBulkStores();
  }
#else
  __trap();  // compiled for another GPU
#endif
}

template <typename T>
LaunchError OwnProducts<T>::MakeVotes(const GpuExec& exec, const char* op,
                                      const Slab& slab, const T* input, const T* packed,
                                      T* votes) const {
  using S = CudaType<T>;
  const Problem& p = p_;
  const VoteTiles w(p, slab, sizeof(S));
  const VoteStage& stage = w.stage;
  const auto terms = static_cast<uint32_t>(stage.line / sizeof(S));
  const uint64_t dim = p.in_dim, types = stage.types, row = InRow(p);
  TmaTensor<5> image;
  image.size = {dim, types, row / dim / types, static_cast<uint64_t>(w.y.read),
                static_cast<uint64_t>(std::max(w.z.read, 1))};
  image.apart = {dim, types * dim, row, p.in_height * row};
  image.swizzle = stage.line;
  image.box = {terms, static_cast<uint32_t>(types),
               static_cast<uint32_t>(stage.load_lines / types * stage.stride), 1, 1};
  image.every[2] = static_cast<uint32_t>(stage.stride);
  const uint64_t columns = w.columns;
  const uint64_t z_taps = w.z.image.taps, x_taps = stage.x_taps, y_taps = w.y.taps;
  TmaTensor<5> weights({dim, columns, z_taps, x_taps, y_taps});
  weights.swizzle = stage.line;
  weights.box = {terms, kTileColumns, 1, static_cast<uint32_t>(x_taps), 1};
  const uint64_t positions = w.positions, rows = w.y.count;
  TmaTensor<4> stored({columns, positions, rows, static_cast<uint64_t>(w.z.count)});
  stored.box = {kSwizzleBytes / sizeof(S), kStoredPositions, 1, 1};
  stored.rounded = false;
  CUtensorMap left, right, to;
  CAPSOPS_RETURN_IF_ERROR(
      MakeTensorMap(op, Native(input) + FirstRow(p, slab), image, &left));
  CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, Native(packed), weights, &right));
  CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, Native(votes), stored, &to));
  const auto launch = [&](auto line, auto rows) -> LaunchError {
    constexpr auto kKernel = VotesKernel<S, line.value, rows.value>;
    CAPSOPS_RETURN_IF_ERROR(CheckRegisters<kKernel>(op, kRegisters));
    const int shared = stage.count * stage.bytes() + kStoreBytes<S> + kAlignment +
                       2 * kMostStages * static_cast<int>(sizeof(Barrier)) +
                       static_cast<int>(sizeof(Turns));
    return LaunchDependent<kKernel>(op,
                                    dim3(std::min(w.tiles(), exec.device.processors)),
                                    kProductThreads, shared, exec, left, right, to, w);
  };
  return WithConstant<32, 64, 128>(stage.line, [&](auto line) {
    return WithConstant<1, 2>(stage.rows,
                              [&](auto rows) { return launch(line, rows); });
  });
}

#define CAPSOPS_INSTANTIATE(T)                    \
  template LaunchError OwnProducts<T>::MakeVotes( \
      const GpuExec&, const char*, const Slab&, const T*, const T*, T*) const;
CAPSOPS_FOR_EACH_PRODUCT_TYPE(CAPSOPS_INSTANTIATE)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::capsule_conv_routing::slabs
