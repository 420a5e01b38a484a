// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Computes the votes of a slab straight from the input, by wgmma. The product is
// transposed: its rows are columns of the votes, and its columns are positions (pixel,
// type), because wgmma of 64 rows by 256 columns reads the least shared memory. A stage
// of the pipeline holds all pixels that a tile reads by the horizontal taps of a
// window: a tap is an offset in shared memory. The two consumer warpgroups work on
// different tiles, so that one multiplies while the other stores.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "cc/launch/round.h"
#include "cuda/capsule_conv_routing/slabs/axes.cuh"
#include "cuda/capsule_conv_routing/slabs/product.cuh"
#include "cuda/capsule_conv_routing/slabs/products.h"
#include "cuda/common/divisor.cuh"

namespace capsops::capsule_conv_routing::slabs {

// A tile has kTileColumns columns of the votes and kTilePositions positions.
constexpr int kTileColumns = 64, kTilePositions = 256;
constexpr int kMostTaps = 16, kMostStages = 8;
// Each consumer warpgroup stores through two buffers of kStoredPositions positions.
constexpr int kStoredPositions = 32;

// A stage: the pixels that the windows of a tile read in a row, then the weights of all
// horizontal taps. A line holds terms of a position. Where windows have a horizontal
// stride, there is a box of pixels for each remainder of their number by the stride:
// box n begins with pixel n of the first window, and its pixels are `stride` apart.
// Otherwise the types of a pixel count as pixels. If a tile has two rows of the votes,
// as rows are short, there are such boxes for each.
struct VoteStage {
  int rows, types, pixels;  // rows of a tile, types of a pixel, pixels of a tile's row
  int stride, first_pixel, x_taps;
  int boxes, loads, load_lines;  // TMA loads a box in `loads` equal parts
  int line, chunks;              // bytes of a line, and stages for in_dim
  int row_bytes, tap_bytes, count;
  uint16_t shifts[kMostTaps];  // the first line of each horizontal tap in a row

  VoteStage(const Problem& p, const AxisPhase& x, int element);

  __host__ __device__ int bytes() const {
    return rows * row_bytes + x_taps * tap_bytes;
  }
};

// Parameters of VotesKernel.
struct VoteTiles {
  FrameAxis z;
  RowAxis y;
  VoteStage stage;
  int positions, columns;    // of a row of the votes: positions, and numbers of parents
  int across, column_tiles;  // tiles of a row of the votes, and of all columns

  VoteTiles(const Problem& p, const Slab& slab, int element);

  __host__ __device__ int row_tiles() const {
    return (y.count + stage.rows - 1) / stage.rows;
  }
  __host__ __device__ int tiles() const {
    return z.count * row_tiles() * across * column_tiles;
  }
};

// The place of a tile: its first row, its number in the row, and its first column.
// Tiles in the middle rows, which most taps reach, come first.
struct VoteTile {
  int frame, row, across, column;

  __device__ VoteTile(const VoteTiles& w, int tile) {
    Digits<int> digits(tile);
    column = digits.Next(w.column_tiles) * kTileColumns;
    across = digits.Next(w.across);
    frame = digits.Next(w.z.count);
    const int rank = digits.rest, middle = w.row_tiles() / 2;
    row = w.stage.rows * (rank % 2 == 0 ? middle + rank / 2 : middle - (rank + 1) / 2);
  }
};

// The block's shared memory: a ring of stages, buffers of the epilogue, and barriers.
struct VoteStages {
  char *memory, *buffers;
  Barrier *full, *empty;
  Barrier* turns;  // of the consumer warpgroups, which multiply in turn

  template <typename S>
  __device__ static VoteStages Start(const VoteStage& stage) {
    extern __shared__ uint4 dynamic[];
    char* const from = reinterpret_cast<char*>(dynamic);
    VoteStages stages;
    stages.memory = from + (kAlignment - SharedAddress(from) % kAlignment) % kAlignment;
    stages.buffers = stages.memory + stage.count * stage.bytes();
    stages.full = reinterpret_cast<Barrier*>(stages.buffers + kStoreBytes<S>);
    stages.empty = stages.full + kMostStages;
    stages.turns = stages.empty + kMostStages;
    if (threadIdx.x == 0) {
      for (int n = 0; n < 2; ++n) stages.turns[n].Init(kConsumerWarps / 2);
      for (int n = 0; n < stage.count; ++n) {
        stages.full[n].Init(1);
        stages.empty[n].Init(kConsumerWarps / 2);
      }
      Barrier::FenceInit();
    }
    __syncthreads();
    return stages;
  }
};

// Synchronizes a consumer warpgroup.
__device__ inline void SyncGroup(int group) {
  if (group == 0) {
    SyncNamedBarrier<128, 1>();
  } else {
    SyncNamedBarrier<128, 2>();
  }
}

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
  const VoteStage& z = w.stage;
  const auto stages = VoteStages::Start<S>(z);
  GridDependencySynchronize();
  const int group = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0);
  PipelineState at;
  if (group == 2) {
    SetMaxRegisters<kFew, false>();
    if (threadIdx.x % 128 == 0) {
      at.parity = 1;  // Empty stages count as released.
      const int load_pixels = z.load_lines / z.types * z.stride;
      const auto load = [&](const VoteTile& tile, int frame, int row, int z_tap,
                            int y_tap, int channel) {
        char* to = stages.memory + at.at * z.bytes();
        Barrier& full = stages.full[at.at];
        stages.empty[at.at].Wait(at.parity);
        full.ArriveAndExpectBytes(z.bytes());
        for (int n = 0; n < kRows; ++n, row += w.y.stride) {
          for (int box = 0; box < z.boxes; ++box) {
            int pixel = z.first_pixel + tile.across * z.pixels * z.stride + box;
            for (int part = 0; part < z.loads; ++part, pixel += load_pixels) {
              TmaLoad(image, channel, 0, pixel, row, frame, full, to);
              to += z.load_lines * kLine;
            }
          }
        }
        TmaLoad(weights, channel, tile.column, z_tap, 0, y_tap, full, to);
        at.Next(z.count);
      };
      for (int n = blockIdx.x; n < w.tiles(); n += gridDim.x) {
        const VoteTile tile(w, n);
        ForTaps<true>(w.z, w.y, tile.frame, tile.row, kRows,
                      [&](int frame, int row, int z_tap, int y_tap) {
                        for (int chunk = 0; chunk < z.chunks; ++chunk) {
                          load(tile, frame, row, z_tap, y_tap,
                               chunk * (kLine / static_cast<int>(sizeof(S))));
                        }
                      });
      }
    }
  } else {
    SetMaxRegisters<kMany, true>();
    int buffer = 0, turn = 0, turn_parity = 0;
    for (int n = blockIdx.x; n < w.tiles(); n += gridDim.x, turn ^= 1) {
      const VoteTile tile(w, n);
      const int steps =
          CountTaps<true>(w.z, w.y, tile.frame, tile.row, kRows) * z.chunks;
      if (turn != group) {
        const int next = at.at + steps;
        at.parity ^= next / z.count % 2;
        at.at = next % z.count;
        continue;
      }
      constexpr int kProducts = kTilePositions / 8 / kRows;
      float sums[kRows][kProducts][4];
#pragma unroll
      for (int row = 0; row < kRows; ++row) Clear(sums[row]);
      // Barriers have two parities, so a stage of an earlier tile could be taken for
      // one of this tile. By its turn all of those have been filled.
      if (n != blockIdx.x) {
        stages.turns[group].Wait(turn_parity);
        turn_parity ^= 1;
      }
      int before = -1;
      const auto release = [&] {
        __syncwarp();
        if (before >= 0 && threadIdx.x % 32 == 0) stages.empty[before].Arrive();
      };
      for (int left = steps * z.x_taps, tap = 0; left > 0; --left) {
        const uint32_t pixels = DescriptorAddress(stages.memory + at.at * z.bytes());
        const uint32_t line = pixels + z.shifts[tap] * (kLine / 16);
        const uint32_t filter = pixels + (kRows * z.row_bytes + tap * z.tap_bytes) / 16;
        if (tap == 0) stages.full[at.at].Wait(at.parity);
        WgmmaFence();
#pragma unroll
        for (int k = 0; k < kLine / 16; k += 2) {
#pragma unroll
          for (int row = 0; row < kRows; ++row) {
            Wgmma<S, kProducts>::Begin(
                MakeSwizzledDescriptor(filter + k, kLine),
                MakeSwizzledDescriptor(line + row * (z.row_bytes / 16) + k, kLine),
                sums[row], true);
          }
        }
        WgmmaCommit();
        WgmmaWait<1>();
        if (tap == 0) {
          release();
          before = at.at;
        }
        if (++tap < z.x_taps) continue;
        tap = 0;
        at.Next(z.count);
      }
      if (threadIdx.x % 32 == 0) stages.turns[1 - group].Arrive();
      WgmmaWait<0>();
      release();
#pragma unroll
      for (int row = 0; row < kRows; ++row) Complete(sums[row]);
      StoreVotes<S>(sums, votes, w, tile, group, stages.buffers, &buffer);
    }
    WaitForBulkStores();
  }
#else
  __trap();  // compiled for another GPU
#endif
}

VoteStage::VoteStage(const Problem& p, const AxisPhase& x, int element)
    : rows(2 * x.out.count * p.types > kTilePositions ? 1 : 2),
      types(static_cast<int>(x.stride == 1 ? 1 : p.types)),
      pixels(kTilePositions / rows / types),
      stride(static_cast<int>(x.stride)),
      first_pixel(static_cast<int>(-x.pad * (p.types / types))),
      x_taps(static_cast<int>(x.taps)) {
  const int dilation = static_cast<int>(x.dilation * (p.types / types));
  const int reach = (x_taps - 1) * dilation, all = pixels + reach / stride;
  boxes = std::min(stride, reach + 1);
  const int bytes = static_cast<int>(p.in_dim) * element;
  // Chooses the widest line that in_dim fills, if three stages fit, and as few loads as
  // TMA allows, whose boxes span at most 256 pixels.
  for (line = 128;; line /= 2) {
    const int unit = std::max(1024 / line, types);
    for (loads = 1;; ++loads) {
      load_lines = static_cast<int>(RoundUp(CeilDivide(all, loads) * types, unit));
      if (load_lines / types * stride <= 256) break;
    }
    row_bytes = boxes * loads * load_lines * line;
    tap_bytes = kTileColumns * line;
    count = std::min(kMostStages, (kRingBytes - kStoreBytes<float>) / this->bytes());
    if (line == 32 || (count > 2 && bytes % line == 0)) break;
  }
  chunks = static_cast<int>(CeilDivide(bytes, line));
  for (int tap = 0; tap < std::min(x_taps, kMostTaps); ++tap) {
    const int at = tap * dilation;
    shifts[tap] =
        static_cast<uint16_t>(at % stride * loads * load_lines + at / stride * types);
  }
}

VoteTiles::VoteTiles(const Problem& p, const Slab& slab, int element)
    : z(p, slab),
      y(slab),
      stage(p, slab.phase.x, element),
      positions(static_cast<int>(slab.phase.x.out.count * p.types)),
      columns(static_cast<int>(Columns(p))),
      across(static_cast<int>(CeilDivide(positions, kTilePositions))),
      column_tiles(static_cast<int>(CeilDivide(columns, kTileColumns))) {}

// With a horizontal stride, a tile must have whole pixels. TMA leaves out at most 7 of
// 8 pixels.
bool MakesVotes(const Problem& p) {
  constexpr int64_t kMost = 1 << 20;
  if (std::max({Columns(p), p.out_width * p.types, p.in_width * p.types, p.in_height}) >
      kMost) {
    return false;
  }
  return AllPhases(p, [&](const Phase& phase) {
    const AxisPhase& x = phase.x;
    const int64_t types = x.stride == 1 ? p.types : 1;
    return x.taps == 0 ||
           (x.taps <= kMostTaps && x.taps * phase.y.taps * phase.depth.taps < 65536 &&
            x.taps * x.dilation * types <= 256 && x.stride <= 8 &&
            (x.stride == 1 || kTilePositions / 2 % p.types == 0) &&
            VoteStage(p, x, sizeof(float)).count >= 2);
  });
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
                       (2 * kMostStages + 2) * static_cast<int>(sizeof(Barrier));
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
