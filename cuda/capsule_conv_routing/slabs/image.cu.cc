// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Warps 0 to 7 are two consumer warpgroups, which issue wgmma and store results; one
// thread of the third warpgroup loads boxes of both operands by TMA.
#include "cuda/capsule_conv_routing/slabs/image.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <type_traits>

#include "cuda/common/barrier.cuh"
#include "cuda/common/divisor.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/tensor_map.cuh"
#include "cuda/common/types.cuh"
#include "cuda/common/warpgroup.cuh"

namespace capsops::capsule_conv_routing::slabs {

constexpr int kTilePositions = 128, kDepth = 32;  // rows of a tile, terms of a step
constexpr int kImageThreads = 384, kConsumerWarps = 8;
// Registers per thread at launch, of consumers, and of the producer.
constexpr int kRegisters = 168, kMany = 232, kFew = 40;
constexpr int kRowBytes = kTilePositions * kSwizzleBytes, kAlignment = 1024;

template <int kProducts>
struct SharedImage {
  static constexpr int kStageBytes = kRowBytes + kProducts * 8 * kSwizzleBytes;
  static constexpr int kStages = (192 << 10) / kStageBytes;
  char stages[kStages][kStageBytes];
  Barrier full[kStages], empty[kStages];
};

// Kernel parameters. Image rows in the middle, which most taps reach, are first.
struct ImageProduct {
  int frames, rows, read_rows, positions;
  int terms, columns;  // numbers of a position of the votes, and of the image
  int y_taps, y_stride, y_dilation, y_pad;
  int across, column_tiles, chunks;
  // Of votes: an image row is read at positions shifted by taps.
  int x_taps, x_step, x_begin;

  template <bool kVotes>
  __host__ __device__ int Rows() const {
    return kVotes ? rows : read_rows;
  }
  __host__ __device__ int tiles(bool votes) const {
    return frames * (votes ? rows : read_rows) * across * column_tiles;
  }
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

struct ImageTile {
  int frame, row, across, column_tile;

  __device__ ImageTile(const ImageProduct& w, int all_rows, int tile) {
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
__device__ void ForImageTiles(const ImageProduct& w, const Visit& visit) {
  const int blocks = gridDim.x, block = blockIdx.x, tiles = w.tiles(kVotes);
  for (int turn = 0, first = 0; first < tiles; ++turn, first += blocks) {
    const int tile = first + (turn % 2 == 0 ? block : blocks - 1 - block);
    if (tile < tiles) visit(ImageTile(w, kVotes ? w.rows : w.read_rows, tile));
  }
}

template <int kProducts, bool kVotes>
__global__ void __launch_bounds__(kImageThreads, 1)
    GradImageKernel(const __grid_constant__ CUtensorMap grads,
                    const __grid_constant__ CUtensorMap weights, const ImageProduct w,
                    float* grad_image) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Shared = SharedImage<kProducts>;
  constexpr int kStages = Shared::kStages;
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<Shared*>(
      reinterpret_cast<char*>(memory) +
      (kAlignment - SharedAddress(memory) % kAlignment) % kAlignment);
  if (threadIdx.x == 0) {
    for (int n = 0; n < kStages; ++n) {
      shared.full[n].Init(1);
      shared.empty[n].Init(kConsumerWarps);
    }
    Barrier::FenceInit();
  }
  __syncthreads();
  GridDependencySynchronize();
  const int group = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 2) {
    SetMaxRegisters<kFew, false>();
    if (threadIdx.x % 128 == 0) {
      PipelineState at;
      at.parity = 1;  // empty stages count as released
      ForImageTiles<kVotes>(w, [&](const ImageTile& tile) {
        for (int tap = 0; tap < w.y_taps; ++tap) {
          const int from = kVotes ? w.Read(tile.row, tap) : w.From(tile.row, tap);
          if (from < 0) continue;
          const int line = tile.frame * (kVotes ? w.read_rows : w.rows) + from;
          int x_tap = 0, shift = kVotes ? w.x_begin : 0;
          const int steps = kVotes ? w.chunks * w.x_taps : w.chunks;
          for (int n = 0, chunk = 0; n < steps; ++n, at.Next(kStages)) {
            char* const stage = shared.stages[at.at];
            Barrier& full = shared.full[at.at];
            shared.empty[at.at].Wait(at.parity);
            full.ArriveAndExpectBytes(Shared::kStageBytes);
            TmaLoad(grads, chunk * kDepth, tile.across * kTilePositions + shift, line,
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
    const auto release = [&](int stage) {
      __syncwarp();
      if (threadIdx.x % 32 == 0) shared.empty[stage].Arrive();
    };
    ForImageTiles<kVotes>(w, [&](const ImageTile& tile) {
      int steps = 0;
      for (int tap = 0; tap < w.y_taps; ++tap) {
        if constexpr (kVotes) {
          if (w.Read(tile.row, tap) >= 0) steps += w.chunks * w.x_taps;
        } else {
          if (w.From(tile.row, tap) >= 0) steps += w.chunks;
        }
      }
      float sums[kProducts][4];
#pragma unroll
      for (int n = 0; n < kProducts; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sums[n][e] = 0;
          asm volatile("" : "+f"(sums[n][e]));  // keeps this before the products
        }
      }
      int before = -1;
      for (; steps > 0; --steps, at.Next(kStages)) {
        const char* const stage = shared.stages[at.at];
        shared.full[at.at].Wait(at.parity);
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
        if (before >= 0) release(before);
        before = at.at;
      }
      WgmmaWait<0>();
      if (before >= 0) release(before);
#pragma unroll
      for (int n = 0; n < kProducts; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(sums[n][e])::"memory");
      }
      const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
      const int position = tile.across * kTilePositions + warp * 16 + lane / 4;
      const int first = tile.column_tile * kProducts * 8 + lane % 4 * 2;
      const int64_t line = int64_t{tile.frame} * w.Rows<kVotes>() + tile.row;
      float* const upper = grad_image + (line * w.positions + position) * w.columns;
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

// The numbers of a position of the unfolded image.
int64_t ImageColumns(const Problem& p, const Phase& phase) {
  return phase.x.taps * phase.depth.taps * p.in_dim;
}

bool GradsImage(const GpuExec& exec, const Problem& p) {
  const char* const wanted = std::getenv("TFC_DX");
  if (wanted != nullptr && wanted[0] != '2') return false;
  if (!exec.tf32 || !HasWgmma(exec.device) || !p.shared_weights || p.types == 0) {
    return false;
  }
  constexpr int64_t kMost = 1 << 20;
  if (Columns(p) % 4 != 0 || Columns(p) > kMost || p.in_dim % 4 != 0 ||
      p.out_width * p.types > kMost || p.in_height > kMost || p.batch > kMost ||
      kAlignment + static_cast<int64_t>(sizeof(SharedImage<32>)) > exec.device.shared) {
    return false;
  }
  return ForEachPhase(p, [&](const Phase& phase) -> LaunchError {
           const bool serves = ImageColumns(p, phase) <= 4096 && phase.y.pad < kMost &&
                               phase.y.dilation < kMost && phase.y.stride < kMost;
           return serves ? LaunchError() : LaunchError("no");
         })
      .empty();
}

LaunchError GradImage(const GpuExec& exec, const char* op, const Problem& p,
                      const Slab& slab, const float* grads, const float* weights,
                      float* grad_image) {
  const auto narrow = [](int64_t n) { return static_cast<int>(n); };
  const Phase& phase = slab.phase;
  ImageProduct w{};
  w.frames = narrow(slab.frames);
  w.rows = narrow(slab.band.rows);
  w.read_rows = narrow(slab.band.read_rows);
  w.positions = narrow(phase.x.out.count * p.types);
  w.terms = narrow(Columns(p));
  w.columns = narrow(ImageColumns(p, phase));
  w.y_taps = narrow(phase.y.taps);
  w.y_stride = narrow(phase.y.stride);
  w.y_dilation = narrow(phase.y.dilation);
  w.y_pad = narrow(slab.band.pad);
  w.across = narrow(CeilDivide(w.positions, kTilePositions));
  w.chunks = narrow(CeilDivide(w.terms, kDepth));
  w.column_tiles = narrow(CeilDivide(w.columns, 256));
  const int64_t wide = CeilDivide(w.columns, w.column_tiles);
  const auto launch = [&](auto products) -> LaunchError {
    using Shared = SharedImage<products.value>;
    const uint64_t terms = w.terms, positions = w.positions, columns = w.columns;
    TmaTensor<3> left, right;
    left.size = {terms, positions, static_cast<uint64_t>(w.frames * w.rows)};
    left.apart = {terms, positions * terms};
    left.box = {kDepth, kTilePositions, 1};
    right.size = {terms, columns, static_cast<uint64_t>(w.y_taps)};
    right.apart = {terms, columns * terms};
    right.box = {kDepth, products.value * 8, 1};
    left.every = right.every = {1, 1, 1};
    CUtensorMap left_map, right_map;
    CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, grads, left, &left_map));
    CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, weights, right, &right_map));
    constexpr auto kKernel = GradImageKernel<products.value, false>;
    CAPSOPS_RETURN_IF_ERROR(CheckRegisters<kKernel>(op, kRegisters));
    return LaunchDependent<kKernel>(
        op, dim3(std::min(w.tiles(false), exec.device.processors)), kImageThreads,
        static_cast<int>(sizeof(Shared)) + kAlignment, exec, left_map, right_map, w,
        grad_image);
  };
  if (wide <= 64) return launch(std::integral_constant<int, 8>());
  if (wide <= 128) return launch(std::integral_constant<int, 16>());
  if (wide <= 168) return launch(std::integral_constant<int, 21>());
  if (wide <= 192) return launch(std::integral_constant<int, 24>());
  if (wide <= 224) return launch(std::integral_constant<int, 28>());
  return launch(std::integral_constant<int, 32>());
}

// Transposes the weights of each tap, [dim][columns], to [columns][dim].
__global__ void __launch_bounds__(256)
    PackVotesKernel(int dim, int columns, const float* weights, float* packed) {
  __shared__ float tile[32][33];
  GridDependencySynchronize();
  const float* const from = weights + int64_t{blockIdx.z} * dim * columns;
  float* const to = packed + int64_t{blockIdx.z} * dim * columns;
  const int column = blockIdx.x * 32, k = blockIdx.y * 32;
  const int lane = threadIdx.x % 32;
  for (int n = threadIdx.x / 32; n < 32; n += 8) {
    if (k + n < dim && column + lane < columns) {
      tile[n][lane] = from[int64_t{k + n} * columns + column + lane];
    }
  }
  __syncthreads();
  for (int n = threadIdx.x / 32; n < 32; n += 8) {
    if (column + n < columns && k + lane < dim) {
      to[int64_t{column + n} * dim + k + lane] = tile[lane][n];
    }
  }
}

bool MakesVotes(const GpuExec& exec, const Problem& p) {
  const char* const wanted = std::getenv("TFC_VOTES");
  if (wanted != nullptr && wanted[0] != '2') return false;
  if (!exec.tf32 || !HasWgmma(exec.device) || !p.shared_weights || p.types == 0) {
    return false;
  }
  constexpr int64_t kMost = 1 << 20;
  if (Columns(p) % 4 != 0 || Columns(p) > kMost || p.in_dim % 32 != 0 ||
      p.out_width * p.types > kMost || p.in_width * p.types > kMost ||
      p.in_height > kMost || p.batch > kMost ||
      kAlignment + static_cast<int64_t>(sizeof(SharedImage<32>)) > exec.device.shared) {
    return false;
  }
  return ForEachPhase(p, [&](const Phase& phase) -> LaunchError {
           const bool serves =
               phase.x.stride == 1 && phase.depth.taps == 1 &&
               ReadsFrames(p, phase.depth) && phase.y.pad < kMost &&
               phase.y.dilation < kMost && phase.y.stride < kMost &&
               (phase.x.pad + phase.x.taps * phase.x.dilation) * p.types < kMost &&
               phase.x.taps * phase.y.taps < 65536;
           return serves ? LaunchError() : LaunchError("no");
         })
      .empty();
}

LaunchError PackVotes(const GpuExec& exec, const char* op, const Problem& p,
                      const Slab& slab, const float* weights, float* packed) {
  const int dim = static_cast<int>(p.in_dim), columns = static_cast<int>(Columns(p));
  return LaunchDependent(
      op, PackVotesKernel,
      dim3(CeilDivide(columns, 32), CeilDivide(dim, 32),
           slab.phase.x.taps * slab.phase.y.taps),
      256, 0, exec, dim, columns, weights, packed);
}

LaunchError MakeVotes(const GpuExec& exec, const char* op, const Problem& p,
                      const Slab& slab, const float* image, const float* packed,
                      float* votes) {
  const auto narrow = [](int64_t n) { return static_cast<int>(n); };
  const Phase& phase = slab.phase;
  ImageProduct w{};
  w.frames = narrow(slab.frames);
  w.rows = narrow(slab.band.rows);
  w.read_rows = narrow(slab.band.read_rows);
  w.positions = narrow(phase.x.out.count * p.types);
  w.terms = narrow(p.in_dim);
  w.columns = narrow(Columns(p));
  w.y_taps = narrow(phase.y.taps);
  w.y_stride = narrow(phase.y.stride);
  w.y_dilation = narrow(phase.y.dilation);
  w.y_pad = narrow(slab.band.pad);
  w.x_taps = narrow(phase.x.taps);
  w.x_step = narrow(phase.x.dilation * p.types);
  w.x_begin = narrow(-phase.x.pad * p.types);
  w.across = narrow(CeilDivide(w.positions, kTilePositions));
  w.chunks = narrow(CeilDivide(w.terms, kDepth));
  w.column_tiles = narrow(CeilDivide(w.columns, 256));
  const int64_t wide = CeilDivide(w.columns, w.column_tiles);
  const auto launch = [&](auto products) -> LaunchError {
    using Shared = SharedImage<products.value>;
    const uint64_t terms = w.terms, columns = w.columns;
    const uint64_t positions = p.in_width * p.types;
    TmaTensor<3> left, right;
    left.size = {terms, positions, static_cast<uint64_t>(w.frames * w.read_rows)};
    left.apart = {terms, positions * terms};
    left.box = {kDepth, kTilePositions, 1};
    right.size = {terms, columns, static_cast<uint64_t>(w.y_taps * w.x_taps)};
    right.apart = {terms, columns * terms};
    right.box = {kDepth, products.value * 8, 1};
    left.every = right.every = {1, 1, 1};
    CUtensorMap left_map, right_map;
    CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, image, left, &left_map));
    CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, packed, right, &right_map));
    constexpr auto kKernel = GradImageKernel<products.value, true>;
    CAPSOPS_RETURN_IF_ERROR(CheckRegisters<kKernel>(op, kRegisters));
    return LaunchDependent<kKernel>(
        op, dim3(std::min(w.tiles(true), exec.device.processors)), kImageThreads,
        static_cast<int>(sizeof(Shared)) + kAlignment, exec, left_map, right_map, w,
        votes);
  };
  if (wide <= 64) return launch(std::integral_constant<int, 8>());
  if (wide <= 128) return launch(std::integral_constant<int, 16>());
  if (wide <= 192) return launch(std::integral_constant<int, 24>());
  return launch(std::integral_constant<int, 32>());
}

}  // namespace capsops::capsule_conv_routing::slabs
