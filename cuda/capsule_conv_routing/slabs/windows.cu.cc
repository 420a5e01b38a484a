// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Votes of a slab from a padded copy of its image, [frame][row][type][pixel][dim]. The
// taps across of a pixel are neighbors in it: a tensor map of overlapping windows reads
// them as one row of the product.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "cuda/capsule_conv_routing/slabs/pack.h"
#include "cuda/capsule_conv_routing/slabs/product.cuh"
#include "cuda/capsule_conv_routing/slabs/products.h"
#include "cuda/common/divisor.cuh"

namespace capsops::capsule_conv_routing::slabs {

// Returns the first input frame that a slab may read, and how many.
inline int64_t FirstFrame(const Problem& p, const Slab& slab) {
  return Patch(p, slab).begin_frame();
}
inline int64_t CountFrames(const Problem& p, const Slab& slab) {
  return Patch(p, slab).end_frame() - FirstFrame(p, slab);
}
// The pixels of a padded row: those of all windows.
inline int64_t PaddedWidth(const AxisPhase& x) {
  return (x.out.count - 1) * x.stride + x.taps;
}

// Kernel parameters. Depth is z.
struct Windows {
  int frames, rows, width, types, columns;           // the votes
  int read_rows, padded, pixel_dim, window, chunks;  // the copy
  int y_taps, y_stride, y_dilation, y_pad;
  int z_taps, z_stride, z_dilation, z_pad, depth;
  int first, per_image, first_read;  // frames of the votes and of the input
  // A tile has 2^x_bits pixels of each of 2^(7 - x_bits) types.
  int x_bits, x_tiles, type_tiles, column_tiles;

  Windows(const Problem& p, const Slab& slab);

  __host__ __device__ int tiles() const {
    return frames * rows * x_tiles * type_tiles * column_tiles;
  }
  // Return the frame of the copy, and its row, that a tap reads, or -1.
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

// `votes` has the dimensions column, pixel, type and row of all frames.
template <int kProducts>
__global__ void __launch_bounds__(kProductThreads, 1)
    WindowVotesKernel(const __grid_constant__ CUtensorMap image,
                      const __grid_constant__ CUtensorMap weights,
                      const __grid_constant__ CUtensorMap votes,
                      const __grid_constant__ Windows w) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Ring = Stages<kProducts>;
  auto& stages = Ring::Start(kConsumerWarps);
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
          for (int chunk = 0; chunk < w.chunks; ++chunk, at.Next(Ring::kCount)) {
            char* const stage = stages.memory[at.at];
            Barrier& full = stages.Claim(at);
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
    int box = 0;
    for (int number = blockIdx.x; number < w.tiles(); number += gridDim.x) {
      const WindowTile tile(w, number);
      int steps = 0;
      w.ForTaps(tile.frame, tile.row, [&](int, int, int) { steps += w.chunks; });
      float sums[kProducts][4];
      stages.Multiply(steps, &at, sums);
      const int row = threadIdx.x / 32 * kBoxRows, column = tile.column * kProducts * 8;
      const int x = tile.x + (row & ((1 << w.x_bits) - 1));
      const int type = tile.type + (row >> w.x_bits);
      const int line = tile.frame * w.rows + tile.row;
      StoreRows(sums, w.columns - column, stages.epilogue, &box,
                [&](int n, const char* from) {
                  TmaStore(votes, column + n, x, type, line, from);
                });
    }
    WaitForBulkStores();
  }
#else
  __trap();  // compiled for another GPU
#endif
}

Windows::Windows(const Problem& p, const Slab& slab)
    : frames(static_cast<int>(slab.frames)),
      rows(static_cast<int>(slab.band.rows)),
      width(static_cast<int>(slab.phase.x.out.count)),
      types(static_cast<int>(p.types)),
      columns(static_cast<int>(Columns(p))),
      read_rows(static_cast<int>(slab.band.read_rows)),
      padded(static_cast<int>(PaddedWidth(slab.phase.x))),
      pixel_dim(static_cast<int>(p.in_dim)),
      window(static_cast<int>(slab.phase.x.taps * p.in_dim)),
      chunks(static_cast<int>(CeilDivide(window, kDepth))),
      y_taps(static_cast<int>(slab.phase.y.taps)),
      y_stride(static_cast<int>(slab.phase.y.stride)),
      y_dilation(static_cast<int>(slab.phase.y.dilation)),
      y_pad(static_cast<int>(slab.band.pad)),
      z_taps(static_cast<int>(slab.phase.depth.taps)),
      z_stride(static_cast<int>(slab.phase.depth.stride)),
      z_dilation(static_cast<int>(slab.phase.depth.dilation)),
      z_pad(static_cast<int>(slab.phase.depth.pad)),
      depth(static_cast<int>(p.in_depth)),
      first(static_cast<int>(slab.first)),
      per_image(static_cast<int>(slab.phase.depth.out.count)),
      first_read(static_cast<int>(FirstFrame(p, slab))),
      column_tiles(static_cast<int>(CeilDivide(columns, 256))) {
  // The fewest tiles.
  int64_t fewest = INT64_MAX;
  for (int bits = 7; bits >= 0; --bits) {
    const int64_t across = CeilDivide(width, 1 << bits);
    const int64_t down = CeilDivide(types, 1 << (7 - bits));
    if (across * down >= fewest) continue;
    fewest = across * down;
    x_bits = bits;
    x_tiles = static_cast<int>(across);
    type_tiles = static_cast<int>(down);
  }
}

int64_t PaddedImage(const Problem& p, const Slab& slab) {
  return CountFrames(p, slab) * slab.band.read_rows * p.types *
         PaddedWidth(slab.phase.x) * p.in_dim;
}

bool ReadsWindows(const Problem& p) {
  constexpr int64_t kMost = 1 << 20;
  if (Columns(p) > 65535 || p.out_width * p.types * p.in_dim > kMost ||
      p.in_width * p.types * p.in_dim > kMost || p.in_height > kMost) {
    return false;
  }
  return AllPhases(p, [&](const Phase& phase) {
    return (phase.x.dilation == 1 || phase.x.taps == 1) && phase.x.taps > 0 &&
           phase.x.stride <= 64 && phase.x.taps * p.in_dim <= 65535 &&
           phase.depth.taps * phase.y.taps <= 65535;
  });
}

LaunchError MakeWindowVotes(const GpuExec& exec, const char* op, const Problem& p,
                            const Slab& slab, const float* input, const float* packed,
                            float* padded, float* votes) {
  const Windows w(p, slab);
  const int64_t frames = CountFrames(p, slab);
  CAPSOPS_RETURN_IF_ERROR(
      PadImage(exec, op, p, slab, w.padded, w.first_read, frames, input, padded));
  const uint64_t dim = w.pixel_dim, row = w.padded * dim, types = w.types;
  const uint64_t window = w.window, width = w.width, rows = w.read_rows;
  TmaTensor<5> image;
  image.size = {window, width, types, rows,
                static_cast<uint64_t>(std::max<int64_t>(frames, 1))};
  image.apart = {dim * slab.phase.x.stride, row, types * row, rows * types * row};
  image.box = {kDepth, 1u << w.x_bits, 1u << (7 - w.x_bits), 1, 1};
  image.every = {1, 1, 1, 1, 1};
  CUtensorMap left;
  CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, padded, image, &left));
  // A box has 32 columns of a warp's 16 rows.
  const uint64_t columns = w.columns, lines = uint64_t{1} * w.frames * w.rows;
  const int x_bits = std::min(w.x_bits, 4);
  CUtensorMap to;
  CAPSOPS_RETURN_IF_ERROR(
      MakeTensorMap(op, votes,
                    Stored({columns, width, types, lines},
                           {types * columns, columns, width * types * columns},
                           1u << x_bits, 1u << (4 - x_bits)),
                    &to));
  const auto launch = [&](auto products) -> LaunchError {
    CUtensorMap right;
    CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(
        op, packed,
        Matrices(window, w.columns, w.z_taps * w.y_taps, products.value * 8), &right));
    return LaunchProduct<WindowVotesKernel<products.value>, Stages<products.value>>(
        op, exec, std::min(w.tiles(), exec.device.processors), left, right, to, w);
  };
  return WithProducts<8, 16, 24, 32>(CeilDivide(w.columns, w.column_tiles), launch);
}

}  // namespace capsops::capsule_conv_routing::slabs
