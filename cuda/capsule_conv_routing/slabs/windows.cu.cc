// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Computes the votes of a slab from a padded copy of its image,
// [frame][row][type][pixel][dim]. There the pixels that the horizontal taps of a window
// read are adjacent, so that a tensor map of overlapping windows reads them as one row
// of the product.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "cuda/capsule_conv_routing/slabs/axes.cuh"
#include "cuda/capsule_conv_routing/slabs/pack.h"
#include "cuda/capsule_conv_routing/slabs/product.cuh"
#include "cuda/capsule_conv_routing/slabs/products.h"
#include "cuda/common/divisor.cuh"

namespace capsops::capsule_conv_routing::slabs {

// Pixels per padded row: as many as all windows span.
inline int64_t PaddedWidth(const AxisPhase& x) {
  return (x.out.count - 1) * x.stride + x.taps;
}

// Parameters of WindowVotesKernel.
struct Windows {
  FrameAxis z;
  RowAxis y;
  int width, types, columns;              // sizes of the votes
  int padded, pixel_dim, window, chunks;  // sizes of the copy
  // A tile has 2^x_bits pixels of each of 2^(7 - x_bits) types.
  int x_bits, x_tiles, type_tiles, column_tiles;

  Windows(const Problem& p, const Slab& slab);

  __host__ __device__ int tiles() const {
    return z.count * y.count * x_tiles * type_tiles * column_tiles;
  }
};

// The first column, pixel, type, row and frame of a tile; `column` counts column tiles.
struct WindowTile {
  int frame, row, x, type, column;

  __device__ WindowTile(const Windows& w, int tile) {
    Digits<int> digits(tile);
    column = digits.Next(w.column_tiles);
    type = digits.Next(w.type_tiles) << (7 - w.x_bits);
    x = digits.Next(w.x_tiles) << w.x_bits;
    row = digits.Next(w.y.count);
    frame = digits.rest;
  }
};

// Computes the votes of the block's tiles. The dimensions of the tensor map `votes` are
// column, pixel, type, and row over all frames.
template <typename S, int kProducts>
__global__ void __launch_bounds__(kProductThreads, 1)
    WindowVotesKernel(const __grid_constant__ CUtensorMap image,
                      const __grid_constant__ CUtensorMap weights,
                      const __grid_constant__ CUtensorMap votes,
                      const __grid_constant__ Windows w) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Ring = Stages<S, kFewTerms, kProducts>;
  auto& stages = Ring::Start(kConsumerWarps);
  GridDependencySynchronize();
  const int group = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 2) {
    SetMaxRegisters<kFew, false>();
    if (threadIdx.x % 128 == 0) {
      PipelineState at;
      at.parity = 1;  // Empty stages count as released.
      for (int n = blockIdx.x; n < w.tiles(); n += gridDim.x) {
        const WindowTile tile(w, n);
        ForTaps<true>(
            w.z, w.y, tile.frame, tile.row, 1,
            [&](int frame, int row, int z_tap, int y_tap) {
              const int tap = z_tap * w.y.taps + y_tap;
              for (int chunk = 0; chunk < w.chunks; ++chunk, at.Next(Ring::kCount)) {
                char* const stage = stages.memory[at.at];
                Barrier& full = stages.Claim(at);
                TmaLoad(image, chunk * kFewTerms, tile.x, tile.type, row, frame, full,
                        stage);
                TmaLoad(weights, chunk * kFewTerms, tile.column * kProducts * 8, tap,
                        full, stage + Ring::kRowBytes);
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
      const int steps = CountTaps<true>(w.z, w.y, tile.frame, tile.row, 1) * w.chunks;
      float sums[kProducts][4];
      stages.Multiply(steps, &at, sums);
      const int row = threadIdx.x / 32 * kBoxRows, column = tile.column * kProducts * 8;
      const int x = tile.x + (row & ((1 << w.x_bits) - 1));
      const int type = tile.type + (row >> w.x_bits);
      const int line = tile.frame * w.y.count + tile.row;
      StoreRows<S>(sums, w.columns - column, stages.epilogue, &box,
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
    : z(p, slab),
      y(slab),
      width(static_cast<int>(slab.phase.x.out.count)),
      types(static_cast<int>(p.types)),
      columns(static_cast<int>(Columns(p))),
      padded(static_cast<int>(PaddedWidth(slab.phase.x))),
      pixel_dim(static_cast<int>(p.in_dim)),
      window(static_cast<int>(slab.phase.x.taps * p.in_dim)),
      chunks(static_cast<int>(CeilDivide(window, kFewTerms))),
      column_tiles(static_cast<int>(CeilDivide(columns, 256))) {
  // Chooses the shape with the fewest tiles.
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
  return FrameAxis(p, slab).read * slab.band.read_rows * p.types *
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

template <typename S>
LaunchError MakeWindowVotes(const GpuExec& exec, const char* op, const Problem& p,
                            const Slab& slab, const S* input, const S* packed,
                            S* padded, S* votes) {
  const Windows w(p, slab);
  CAPSOPS_RETURN_IF_ERROR(PadImage(exec, op, p, slab, w.padded, w.z.first_read,
                                   w.z.read, p.in_dim * sizeof(S) / 16, input, padded));
  const uint64_t dim = w.pixel_dim, row = w.padded * dim, types = w.types;
  const uint64_t window = w.window, width = w.width, rows = w.y.read;
  TmaTensor<5> image;
  image.size = {window, width, types, rows,
                static_cast<uint64_t>(std::max(w.z.read, 1))};
  image.apart = {dim * slab.phase.x.stride, row, types * row, rows * types * row};
  image.swizzle = kFewTerms * sizeof(S);
  image.box = {kFewTerms, 1u << w.x_bits, 1u << (7 - w.x_bits), 1, 1};
  image.every = {1, 1, 1, 1, 1};
  CUtensorMap left;
  CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, padded, image, &left));
  // A box has 32 columns of the 16 rows of a warp.
  const uint64_t columns = w.columns, lines = uint64_t{1} * w.z.count * w.y.count;
  const int x_bits = std::min(w.x_bits, 4);
  TmaTensor<4> stored;
  stored.size = {columns, width, types, lines};
  stored.apart = {types * columns, columns, width * types * columns};
  stored.swizzle = kStoreLine<S>;
  stored.box = {kStoreColumns, 1u << x_bits, 1u << (4 - x_bits), 1};
  stored.every = {1, 1, 1, 1};
  stored.rounded = false;
  CUtensorMap to;
  CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, votes, stored, &to));
  const auto launch = [&](auto products) -> LaunchError {
    CUtensorMap right;
    CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(
        op, packed,
        Matrices<S>({window, columns, uint64_t{1} * w.z.image.taps * w.y.taps},
                    kFewTerms, products.value * 8),
        &right));
    return LaunchProduct<WindowVotesKernel<S, products.value>,
                         Stages<S, kFewTerms, products.value>>(
        op, exec, std::min(w.tiles(), exec.device.processors), left, right, to, w);
  };
  return WithProducts<8, 16, 24, 32>(CeilDivide(w.columns, w.column_tiles), launch);
}

#define CAPSOPS_INSTANTIATE(S)                                                         \
  template LaunchError MakeWindowVotes<S>(const GpuExec&, const char*, const Problem&, \
                                          const Slab&, const S*, const S*, S*, S*);
CAPSOPS_FOR_EACH_PRODUCT_TYPE(CAPSOPS_INSTANTIATE)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::capsule_conv_routing::slabs
