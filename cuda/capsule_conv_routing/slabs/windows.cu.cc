// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Warps as in image.cu.cc.
#include "cuda/capsule_conv_routing/slabs/windows.h"

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

constexpr int kTileRows = 128, kDepth = 32;
constexpr int kImageThreads = 384, kConsumerWarps = 8;
constexpr int kRegisters = 168, kMany = 232, kFew = 40;
constexpr int kRowBytes = kTileRows * kSwizzleBytes, kAlignment = 1024;

template <int kProducts>
struct SharedWindows {
  static constexpr int kStageBytes = kRowBytes + kProducts * 8 * kSwizzleBytes;
  static constexpr int kStages = (192 << 10) / kStageBytes;
  char stages[kStages][kStageBytes];
  Barrier full[kStages], empty[kStages];
};

struct Windows {
  int frames, rows, width, types, columns;  // of the votes
  int read_rows, padded, pixel_dim, window, chunks;
  int y_taps, y_stride, y_dilation, y_pad;
  int z_taps, z_stride, z_dilation, z_pad, depth;
  int first, per_image, first_read;
  int x_bits, x_tiles, type_tiles, column_tiles;

  __host__ __device__ int tiles() const {
    return frames * rows * x_tiles * type_tiles * column_tiles;
  }
  // The frame of the copy, and its row, or -1.
  __device__ int Frame(int frame, int tap) const {
    const int image = (first + frame) / per_image;
    const int z =
        (first + frame - image * per_image) * z_stride + tap * z_dilation - z_pad;
    return z >= 0 && z < depth ? image * depth + z - first_read : -1;
  }
  __device__ int Row(int row, int tap) const {
    const int y = row * y_stride + tap * y_dilation - y_pad;
    return y >= 0 && y < read_rows ? y : -1;
  }
  // Calls visit(frame, row, tap) for the taps that read the image.
  template <typename Visit>
  __device__ void ForTaps(int frame, int row, const Visit& visit) const {
    for (int z = 0; z < z_taps; ++z) {
      const int from = Frame(frame, z);
      if (from < 0) continue;
      for (int y = 0; y < y_taps; ++y) {
        const int line = Row(row, y);
        if (line >= 0) visit(from, line, z * y_taps + y);
      }
    }
  }
};

struct WindowTile {
  int frame, row, x, type, column;

  __device__ WindowTile(const Windows& w, int tile) {
    Digits<int> digits(tile);
    column = digits.Next(w.column_tiles);
    type = digits.Next(w.type_tiles) << (7 - w.x_bits);
    x = digits.Next(w.x_tiles) << w.x_bits;
    row = digits.Next(w.rows);
    frame = digits.rest;
  }
};

template <int kProducts>
__global__ void __launch_bounds__(kImageThreads, 1)
    WindowVotesKernel(const __grid_constant__ CUtensorMap image,
                      const __grid_constant__ CUtensorMap weights, const Windows w,
                      float* votes) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Shared = SharedWindows<kProducts>;
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
      for (int n = blockIdx.x; n < w.tiles(); n += gridDim.x) {
        const WindowTile tile(w, n);
        w.ForTaps(tile.frame, tile.row, [&](int frame, int line, int tap) {
          for (int chunk = 0; chunk < w.chunks; ++chunk, at.Next(kStages)) {
            char* const stage = shared.stages[at.at];
            Barrier& full = shared.full[at.at];
            shared.empty[at.at].Wait(at.parity);
            full.ArriveAndExpectBytes(Shared::kStageBytes);
            TmaLoad(image, chunk * kDepth, tile.x, tile.type, line, frame, full, stage);
            TmaLoad(weights, chunk * kDepth, tile.column * kProducts * 8, tap, full,
                    stage + kRowBytes);
          }
        });
      }
    }
  } else {
    SetMaxRegisters<kMany, true>();
    PipelineState at;
    const auto release = [&](int stage) {
      __syncwarp();
      if (threadIdx.x % 32 == 0) shared.empty[stage].Arrive();
    };
    for (int number = blockIdx.x; number < w.tiles(); number += gridDim.x) {
      const WindowTile tile(w, number);
      int steps = 0;
      w.ForTaps(tile.frame, tile.row, [&](int, int, int) { steps += w.chunks; });
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
      const int64_t line = int64_t{tile.frame} * w.rows + tile.row;
      const auto target = [&](int row) -> float* {
        const int x = tile.x + (row & ((1 << w.x_bits) - 1));
        const int type = tile.type + (row >> w.x_bits);
        if (x >= w.width || type >= w.types) return nullptr;
        return votes + ((line * w.width + x) * w.types + type) * w.columns;
      };
      float* const upper = target(warp * 16 + lane / 4);
      float* const lower = target(warp * 16 + lane / 4 + 8);
      const int first = tile.column * kProducts * 8 + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kProducts; ++n) {
        const int column = first + 8 * n;
        if (column >= w.columns) break;
        if (upper != nullptr) {
          *reinterpret_cast<float2*>(upper + column) =
              make_float2(sums[n][0], sums[n][1]);
        }
        if (lower != nullptr) {
          *reinterpret_cast<float2*>(lower + column) =
              make_float2(sums[n][2], sums[n][3]);
        }
      }
    }
  }
#else
  __trap();  // compiled for another GPU
#endif
}

// Copies quads of the rows that a slab reads to [frame][row][type][padded pixel][dim].
__global__ void __launch_bounds__(256)
    PadImageKernel(int rows, int types, int padded, int quads, int pad, int width,
                   int height, int first_row, int first_frame, const float4* input,
                   float4* copy) {
  GridDependencySynchronize();
  const int frame = blockIdx.x / rows, row = blockIdx.x - frame * rows;
  const float4* const from =
      input + (int64_t{first_frame + frame} * height + first_row + row) * width * types *
                  quads;
  const int all = types * padded * quads;
  float4* const to = copy + int64_t{blockIdx.x} * all;
  for (int n = blockIdx.y * blockDim.x + threadIdx.x; n < all;
       n += gridDim.y * blockDim.x) {
    Digits<int> digits(n);
    const int quad = digits.Next(quads), x = digits.Next(padded) - pad;
    const int type = digits.rest;
    to[n] = x >= 0 && x < width ? from[(int64_t{x} * types + type) * quads + quad]
                                : float4{};
  }
}

// Packs weights, [y][x][z][dim][columns], as [z][y][columns][x][dim].
__global__ void __launch_bounds__(256)
    PackWindowsKernel(int y_taps, int x_taps, int z_taps, int dim, int columns,
                      const float* weights, float* packed) {
  __shared__ float tile[32][33];
  GridDependencySynchronize();
  const int z = blockIdx.z / y_taps, y = blockIdx.z - z * y_taps;
  const int window = x_taps * dim;
  const int column = blockIdx.x * 32, k = blockIdx.y * 32, lane = threadIdx.x % 32;
  for (int n = threadIdx.x / 32; n < 32; n += 8) {
    if (k + n >= window || column + lane >= columns) continue;
    const int x = (k + n) / dim, e = k + n - x * dim;
    tile[n][lane] =
        weights[(((int64_t{y} * x_taps + x) * z_taps + z) * dim + e) * columns + column +
                lane];
  }
  __syncthreads();
  for (int n = threadIdx.x / 32; n < 32; n += 8) {
    if (column + n >= columns || k + lane >= window) continue;
    packed[(int64_t{blockIdx.z} * columns + column + n) * window + k + lane] =
        tile[lane][n];
  }
}

// The pixels of a padded row: those of all windows.
int64_t PaddedWidth(const AxisPhase& x) {
  return (x.out.count - 1) * x.stride + x.taps;
}
Patch Folded(const Problem& p, Slab slab) {
  slab.unfolded = false;
  return Patch(p, slab);
}
int64_t PaddedImage(const Problem& p, const Slab& slab) {
  const Patch patch = Folded(p, slab);
  return (patch.end_frame() - patch.begin_frame()) * slab.band.read_rows * p.types *
         PaddedWidth(slab.phase.x) * p.in_dim;
}

bool ReadsWindows(const GpuExec& exec, const Problem& p) {
  const char* const wanted = std::getenv("TFC_VOTES");
  if (wanted == nullptr || wanted[0] != '3') return false;
  if (!exec.tf32 || !HasWgmma(exec.device) || !p.shared_weights || p.types == 0) {
    return false;
  }
  constexpr int64_t kMost = 1 << 20;
  if (Columns(p) % 4 != 0 || Columns(p) > 65535 || p.in_dim % 4 != 0 ||
      p.in_dim == 0 || p.out_width * p.types * p.in_dim > kMost ||
      p.in_width * p.types * p.in_dim > kMost || p.in_height > kMost ||
      p.in_depth > kMost || p.batch > kMost) {
    return false;
  }
  return ForEachPhase(p, [&](const Phase& phase) -> LaunchError {
           const bool serves = (phase.x.dilation == 1 || phase.x.taps == 1) &&
                               phase.x.taps > 0 && phase.x.stride <= 64 &&
                               phase.x.taps * p.in_dim <= 65535 &&
                               phase.depth.taps * phase.y.taps <= 65535;
           return serves ? LaunchError() : LaunchError("no");
         })
      .empty();
}

LaunchError PackWindows(const GpuExec& exec, const char* op, const Problem& p,
                        const Slab& slab, const float* weights, float* packed) {
  const Phase& phase = slab.phase;
  return LaunchDependent(
      op, PackWindowsKernel,
      dim3(CeilDivide(Columns(p), 32), CeilDivide(phase.x.taps * p.in_dim, 32),
           phase.depth.taps * phase.y.taps),
      256, 0, exec, phase.y.taps, phase.x.taps, phase.depth.taps, p.in_dim, Columns(p),
      weights, packed);
}

LaunchError MakeWindowVotes(const GpuExec& exec, const char* op, const Problem& p,
                            const Slab& slab, const float* input, const float* packed,
                            float* padded, float* votes) {
  const auto narrow = [](int64_t n) { return static_cast<int>(n); };
  const Phase& phase = slab.phase;
  const Patch patch = Folded(p, slab);
  const int64_t frames_read = patch.end_frame() - patch.begin_frame();
  Windows w{};
  w.frames = narrow(slab.frames);
  w.rows = narrow(slab.band.rows);
  w.width = narrow(phase.x.out.count);
  w.types = narrow(p.types);
  w.columns = narrow(Columns(p));
  w.read_rows = narrow(slab.band.read_rows);
  w.padded = narrow(PaddedWidth(phase.x));
  w.pixel_dim = narrow(p.in_dim);
  w.window = narrow(phase.x.taps * p.in_dim);
  w.chunks = narrow(CeilDivide(w.window, kDepth));
  w.y_taps = narrow(phase.y.taps);
  w.y_stride = narrow(phase.y.stride);
  w.y_dilation = narrow(phase.y.dilation);
  w.y_pad = narrow(slab.band.pad);
  w.z_taps = narrow(phase.depth.taps);
  w.z_stride = narrow(phase.depth.stride);
  w.z_dilation = narrow(phase.depth.dilation);
  w.z_pad = narrow(phase.depth.pad);
  w.depth = narrow(p.in_depth);
  w.first = narrow(slab.first);
  w.per_image = narrow(phase.depth.out.count);
  w.first_read = narrow(patch.begin_frame());
  int64_t fewest = INT64_MAX;
  for (int bits = 7; bits >= 0; --bits) {
    const int64_t across = CeilDivide(w.width, 1 << bits);
    const int64_t down = CeilDivide(w.types, 1 << (7 - bits));
    if (across * down >= fewest) continue;
    fewest = across * down;
    w.x_bits = bits;
    w.x_tiles = narrow(across);
    w.type_tiles = narrow(down);
  }
  w.column_tiles = narrow(CeilDivide(w.columns, 256));
  if (frames_read > 0) {
    const int all = w.types * w.padded * w.pixel_dim / 4;
    const int64_t lines = frames_read * w.read_rows;
    CAPSOPS_RETURN_IF_ERROR(LaunchDependent(
        op, PadImageKernel, dim3(lines, CeilDivide(all, 1024)), 256, 0, exec,
        w.read_rows, w.types, w.padded, w.pixel_dim / 4, phase.x.pad, p.in_width,
        p.in_height, slab.band.read, patch.begin_frame(),
        reinterpret_cast<const float4*>(input), reinterpret_cast<float4*>(padded)));
  }
  const int64_t wide = CeilDivide(w.columns, w.column_tiles);
  const auto launch = [&](auto products) -> LaunchError {
    using Shared = SharedWindows<products.value>;
    const uint64_t dim = w.pixel_dim, row = w.padded * dim, window = w.window;
    const uint64_t types = w.types, read = w.read_rows, columns = w.columns;
    TmaTensor<5> left;
    left.size = {window, static_cast<uint64_t>(w.width), types, read,
                 static_cast<uint64_t>(std::max<int64_t>(frames_read, 1))};
    left.apart = {dim * phase.x.stride, row, types * row, read * types * row};
    left.box = {kDepth, 1u << w.x_bits, 1u << (7 - w.x_bits), 1, 1};
    left.every = {1, 1, 1, 1, 1};
    TmaTensor<3> right;
    right.size = {window, columns, static_cast<uint64_t>(w.z_taps * w.y_taps)};
    right.apart = {window, columns * window};
    right.box = {kDepth, products.value * 8, 1};
    right.every = {1, 1, 1};
    CUtensorMap left_map, right_map;
    CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, padded, left, &left_map));
    CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, packed, right, &right_map));
    constexpr auto kKernel = WindowVotesKernel<products.value>;
    CAPSOPS_RETURN_IF_ERROR(CheckRegisters<kKernel>(op, kRegisters));
    return LaunchDependent<kKernel>(
        op, dim3(std::min(w.tiles(), exec.device.processors)), kImageThreads,
        static_cast<int>(sizeof(Shared)) + kAlignment, exec, left_map, right_map, w,
        votes);
  };
  if (wide <= 64) return launch(std::integral_constant<int, 8>());
  if (wide <= 128) return launch(std::integral_constant<int, 16>());
  if (wide <= 192) return launch(std::integral_constant<int, 24>());
  return launch(std::integral_constant<int, 32>());
}

}  // namespace capsops::capsule_conv_routing::slabs
