// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and runs the gradient of shared weights over slabs.
#include "cuda/capsule_conv_routing/slabs/weights.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "cuda/common/barrier.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/tensor_map.cuh"
#include "cuda/common/types.cuh"
#include "cuda/common/warpgroup.cuh"

namespace capsops::capsule_conv_routing::slabs {

constexpr int kTerms = 32;         // positions of a step
constexpr int kTileColumns = 128;  // columns of the votes in a tile
constexpr int kSumThreads = 384, kConsumers = 256, kConsumerWarps = kConsumers / 32;
// Registers per thread at launch, of consumers, and of the producer.
constexpr int kRegisters = 168, kMany = 232, kFew = 40;
constexpr int kRowBytes = kTileColumns * kSwizzleBytes;
template <int kProducts>
constexpr int kStageBytes = kRowBytes + kProducts * 8 * kSwizzleBytes;
template <int kProducts>
constexpr int kStages = (192 << 10) / kStageBytes<kProducts>;
constexpr int kAlignment = 1024;

template <int kProducts>
struct SharedSums {
  char stages[kStages<kProducts>][kStageBytes<kProducts>];
  Barrier full[kStages<kProducts>], empty[kStages<kProducts>];
};

WeightSums::WeightSums(const Problem& p, const Slab& slab, int processors)
    : frames(static_cast<int>(slab.frames)),
      rows(static_cast<int>(slab.band.rows)),
      chunks(static_cast<int>(slab.phase.x.out.count * p.types / kTerms)),
      types(static_cast<int>(p.types)),
      columns(static_cast<int>(Columns(p))),
      channels(static_cast<int>(slab.phase.depth.taps * p.in_dim)),
      y_taps(static_cast<int>(slab.phase.y.taps)),
      y_stride(static_cast<int>(slab.phase.y.stride)),
      y_dilation(static_cast<int>(slab.phase.y.dilation)),
      y_pad(static_cast<int>(slab.band.pad)),
      x_taps(static_cast<int>(slab.phase.x.taps)),
      x_stride(static_cast<int>(slab.phase.x.stride)),
      x_dilation(static_cast<int>(slab.phase.x.dilation)),
      x_pad(static_cast<int>(slab.phase.x.pad)),
      width(p.in_width),
      read_rows(slab.band.read_rows),
      pitch(RoundUp(CeilDivide(p.in_width, slab.phase.x.stride) * p.types, 4)) {
  box = channels % 32 == 0 ? 32 : channels % 16 == 0 ? 16 : 8;
  tap_boxes = channels / box;
  boxes = y_taps * x_taps * tap_boxes;
  const int all = boxes * box;
  // A tile of fewer columns takes half the time of one of 256 at best.
  products = all <= 128 ? 16 : 32;
  tile_boxes = std::min(boxes, products * 8 / box);
  row_tiles = static_cast<int>(CeilDivide(boxes, tile_boxes));
  halved = columns <= kTileColumns / 2;
  column_tiles = static_cast<int>(CeilDivide(columns, kTileColumns));
  const int last_columns = (boxes - (row_tiles - 1) * tile_boxes) * box;
  const double last = std::max(0.45, last_columns <= 64    ? 0.45
                                     : last_columns <= 128 ? 0.65
                                                           : 1.0);
  splits = std::max(
      1, static_cast<int>(processors / (column_tiles * (row_tiles - 1 + last))));
  last_splits = std::max(
      1, (processors - column_tiles * (row_tiles - 1) * splits) / column_tiles);
}

// The place of a block: its tile, and its share of the steps.
struct SumsPlace {
  int row_tile, column_tile, boxes, begin, end;

  __device__ SumsPlace(const WeightSums& w, int steps) {
    const int full = (w.row_tiles - 1) * w.column_tiles * w.splits;
    const bool last = static_cast<int>(blockIdx.x) >= full;
    const int splits = last ? w.last_splits : w.splits;
    const int at = blockIdx.x - (last ? full : 0);
    const int tile = at / splits, split = at - tile * splits;
    row_tile = last ? w.row_tiles - 1 : tile / w.column_tiles;
    column_tile = tile % w.column_tiles;
    boxes = min(w.tile_boxes, w.boxes - row_tile * w.tile_boxes);
    begin = static_cast<int>(int64_t{steps} * split / splits);
    end = static_cast<int>(int64_t{steps} * (split + 1) / splits);
  }
};

// The first of two neighboring columns of the votes that a lane of a warp has; 4 lanes
// have the same. This order avoids bank conflicts.
__device__ inline int LaneColumn(int warp, int lane) {
  const int g = lane / 4;
  const int quad = g % 2 * 4 + warp % 2 * 2 + g / 4;
  return warp / 2 * 32 + quad * 4 + g / 2 % 2 * 2;
}

// Loads the A fragments of a step's 4 products from [32 columns][position][column],
// swizzled.
__device__ inline void LoadColumns(const char* stage, int column,
                                   uint32_t (&rows)[4][4]) {
  const int t = threadIdx.x % 4;
  const char* const from =
      stage + column / 32 * (kTerms * kSwizzleBytes) + column % 4 * 4;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int term = 8 * n + 4 * e + t;
      const uint2 pair = *reinterpret_cast<const uint2*>(
          from + term * kSwizzleBytes + ((column % 32 / 4) ^ (4 * e + t)) * 16);
      rows[n][2 * e] = pair.x;
      rows[n][2 * e + 1] = pair.y;
    }
  }
}

// A consumer's main loop over tiles of 8 kCount columns, and its partial sums. If tiles
// have 64 columns of the votes, the two consumers take turns.
template <int kCount, int kProducts>
__device__ void SumSteps(SharedSums<kProducts>& shared, bool halved, int steps,
                         bool first, float4* part) {
  const int warp = threadIdx.x / 32;
  const int column = LaneColumn(halved ? warp % 4 : warp, threadIdx.x % 32);
  float sums[kCount][4];
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      sums[n][e] = 0;
      asm volatile("" : "+f"(sums[n][e]));  // keeps this before the products
    }
  }
  PipelineState at;
  int step = 0;
  if (halved && warp >= 4) {
    step = 1;
    at.Next(kStages<kProducts>);
  }
  for (; step < steps; ++step, at.Next(kStages<kProducts>)) {
    const char* const stage = shared.stages[at.at];
    shared.full[at.at].Wait(at.parity);
    const uint32_t right = DescriptorAddress(stage + kRowBytes);
    uint32_t left[4][4];
    LoadColumns(stage, column, left);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      WgmmaRs<float, kCount>::Begin(left[k], MakeSwizzledDescriptor(right + 2 * k),
                                    sums, true);
    }
    WgmmaCommit();
    WgmmaWait<0>();
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared.empty[at.at].Arrive();
    if (halved) {
      ++step;
      at.Next(kStages<kProducts>);
    }
  }
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(sums[n][e])::"memory");
  }
  constexpr int kTogether = 8;
#pragma unroll
  for (int n = 0; n < kCount; n += kTogether) {
    float4 before[kTogether] = {};
    if (!first) {
#pragma unroll
      for (int m = 0; m < kTogether; ++m) before[m] = part[(n + m) * kConsumers];
    }
#pragma unroll
    for (int m = 0; m < kTogether; ++m) {
      const float(&sum)[4] = sums[n + m];
      part[(n + m) * kConsumers] =
          make_float4(before[m].x + sum[0], before[m].y + sum[1], before[m].z + sum[2],
                      before[m].w + sum[3]);
    }
  }
}

template <int kProducts>
__global__ void __launch_bounds__(kSumThreads, 1)
    SumWeightsKernel(const __grid_constant__ CUtensorMap grads,
                     const __grid_constant__ CUtensorMap image, const WeightSums w,
                     const int steps, const bool first, float4* parts) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<SharedSums<kProducts>*>(
      reinterpret_cast<char*>(memory) +
      (kAlignment - SharedAddress(memory) % kAlignment) % kAlignment);
  if (threadIdx.x == 0) {
    for (int n = 0; n < kStages<kProducts>; ++n) {
      shared.full[n].Init(1);
      shared.empty[n].Init(w.halved ? kConsumerWarps / 2 : kConsumerWarps);
    }
    Barrier::FenceInit();
  }
  const SumsPlace place(w, steps);
  __syncthreads();
  GridDependencySynchronize();
  const int warp = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp >= kConsumerWarps) {
    SetMaxRegisters<kFew, false>();
    if (warp == kConsumerWarps) {
      // Lane n loads box n of the image, and the first 4 lanes boxes of gradients.
      const int lane = threadIdx.x % 32;
      const int number = place.row_tile * w.tile_boxes + lane;
      const int tap = number / w.tap_boxes, y_tap = tap / w.x_taps;
      const int channel = (number - tap * w.tap_boxes) * w.box;
      const int moved = (tap - y_tap * w.x_taps) * w.x_dilation - w.x_pad;
      const int shift = (moved - (moved < 0 ? w.x_stride - 1 : 0)) / w.x_stride;
      const int remainder = moved - shift * w.x_stride;
      const int down = y_tap * w.y_dilation - w.y_pad;
      const int line = place.begin / w.chunks;
      int chunk = place.begin - line * w.chunks;
      int frame = line / w.rows, y = line - frame * w.rows;
      const int column_boxes = w.halved ? 2 : 4;
      PipelineState at;
      at.parity = 1;  // empty stages count as released
      for (int step = place.begin; step < place.end;
           ++step, at.Next(kStages<kProducts>)) {
        char* const stage = shared.stages[at.at];
        if (lane == 0) {
          shared.empty[at.at].Wait(at.parity);
          shared.full[at.at].ArriveAndExpectBytes(
              (column_boxes * kTerms + place.boxes * w.box) * kSwizzleBytes);
        }
        __syncwarp();
        if (lane < column_boxes) {
          TmaLoad(grads, place.column_tile * kTileColumns + lane * 32, chunk * kTerms,
                  frame * w.rows + y, shared.full[at.at],
                  stage + lane * kTerms * kSwizzleBytes);
        }
        if (lane < place.boxes) {
          TmaLoad(image, chunk * kTerms + shift * w.types, remainder,
                  y * w.y_stride + down, frame, channel, shared.full[at.at],
                  stage + kRowBytes + lane * w.box * kSwizzleBytes);
        }
        if (++chunk < w.chunks) continue;
        chunk = 0;
        if (++y < w.rows) continue;
        y = 0;
        ++frame;
      }
    }
  } else {
    SetMaxRegisters<kMany, true>();
    float4* const part =
        parts + int64_t{blockIdx.x} * (kProducts * kConsumers) + threadIdx.x;
    const int share = place.end - place.begin, width = place.boxes * w.box;
    if (width <= 64) {
      SumSteps<8>(shared, w.halved, share, first, part);
    } else if (width <= 128) {
      SumSteps<16>(shared, w.halved, share, first, part);
    } else if constexpr (kProducts > 16) {
      SumSteps<kProducts>(shared, w.halved, share, first, part);
    }
  }
#else
  __trap();  // compiled for another GPU
#endif
}

// Transposes the rows that a slab reads to
// [depth taps][dim][frames][rows][remainder][position]. A block has kPositions positions
// of a row.
constexpr int kPositions = 128, kTransposeThreads = 256, kDims = 32;

__global__ void __launch_bounds__(kTransposeThreads)
    TransposeImageKernel(const Patch patch, const WeightSums w, int dim_bits, int dim,
                         const float* input, float* transposed) {
  __shared__ float tile[kDims][kPositions + 1];
  GridDependencySynchronize();
  const int dims = 1 << dim_bits;  // that are transposed together
  const int64_t all = (w.width + w.x_stride - 1) / w.x_stride * w.x_stride * w.types;
  const int64_t lines = w.frames * w.read_rows;
  const int64_t line = blockIdx.x, begin = int64_t{blockIdx.y} * kPositions;
  const int64_t slice = line / w.read_rows, y = line - slice * w.read_rows;
  const int64_t frame = patch.first + slice, image = frame / patch.per_image;
  const int64_t place = frame - image * patch.per_image;
  const int64_t real = w.width * w.types;  // positions of the image
  for (int tap = 0; tap < patch.channels; ++tap) {
    const int64_t depth = place * patch.read_step + tap * patch.read_tap + patch.read;
    const bool inside = depth >= 0 && depth < patch.depth;
    const float* const from =
        input + ((image * patch.depth + depth) * patch.height + patch.row + y) * real * dim;
    for (int first = 0; first < dim; first += dims) {
      __syncthreads();
      const int k = threadIdx.x & (dims - 1);
#pragma unroll 4
      for (int at = threadIdx.x >> dim_bits; at < kPositions;
           at += kTransposeThreads >> dim_bits) {
        const int64_t position = begin + at;
        const bool there = inside && position < real && first + k < dim;
        tile[k][at] = there ? from[position * dim + first + k] : 0;
      }
      __syncthreads();
      const int at = threadIdx.x % kPositions;
      const int64_t position = begin + at, x = position / w.types;
      if (position >= all) continue;
      const int64_t turn = x / w.x_stride, remainder = x - turn * w.x_stride;
      float* const to = transposed + (line * w.x_stride + remainder) * w.pitch +
                        turn * w.types + position - x * w.types;
      for (int n = threadIdx.x / kPositions; n < dims && first + n < dim;
           n += kTransposeThreads / kPositions) {
        to[(tap * dim + first + n) * lines * w.x_stride * w.pitch] = tile[n][at];
      }
    }
  }
}

// Adds the parts of each tile, and stores them where the phase has its weights.
__global__ void __launch_bounds__(kConsumers)
    FinishWeightsKernel(const WeightSums w, const Relay relay, int dim,
                        const float4* parts, float* grad_weights) {
  GridDependencySynchronize();
  const int product = blockIdx.x % w.products, tile = blockIdx.x / w.products;
  const int row_tile = tile / w.column_tiles, column_tile = tile % w.column_tiles;
  const bool last = row_tile == w.row_tiles - 1;
  const int splits = last ? w.last_splits : w.splits;
  const int full = (w.row_tiles - 1) * w.column_tiles * w.splits;
  const int first = last ? full + column_tile * splits : tile * splits;
  const int boxes = min(w.tile_boxes, w.boxes - row_tile * w.tile_boxes);
  if (product * 8 >= boxes * w.box) return;
  const float4* from =
      parts + (int64_t{first} * w.products + product) * kConsumers + threadIdx.x;
  if (w.halved && threadIdx.x >= kConsumers / 2) return;
  float4 sum = {};
  for (int half = 0; half <= w.halved; ++half, from += kConsumers / 2) {
#pragma unroll 8
    for (int n = 0; n < splits; ++n) {
      const float4 part = from[int64_t{n} * w.products * kConsumers];
      sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int column = column_tile * kTileColumns + LaneColumn(warp, lane);
  if (column >= w.columns) return;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int row = product * 8 + lane % 4 * 2 + e, box = row / w.box;
    const int number = row_tile * w.tile_boxes + box, tap = number / w.tap_boxes;
    const int channel = (number - tap * w.tap_boxes) * w.box + row - box * w.box;
    const int matrix = tap * static_cast<int>(relay.channels) + channel / dim;
    *reinterpret_cast<float2*>(grad_weights + relay.From(matrix) * relay.matrix +
                               channel % dim * int64_t{w.columns} + column) =
        e == 0 ? make_float2(sum.x, sum.z) : make_float2(sum.y, sum.w);
  }
}

bool SumsWeights(const GpuExec& exec, const Problem& p) {
  const char* const wanted = std::getenv("TFC_DW");
  if (wanted != nullptr && wanted[0] == '0') return false;
  if (!exec.tf32 || !HasWgmma(exec.device) || !p.shared_weights) return false;
  if (kAlignment + static_cast<int64_t>(sizeof(SharedSums<32>)) > exec.device.shared) {
    return false;
  }
  constexpr int64_t kMost = 1 << 20;
  if (Columns(p) % 4 != 0 || Columns(p) < 64 || p.types == 0 ||
      std::max({p.in_width * p.types * p.in_dim, p.in_height, p.in_depth, p.batch,
                p.out_width * p.types, Columns(p)}) > kMost) {
    return false;
  }
  const LaunchError none = ForEachPhase(p, [&](const Phase& phase) -> LaunchError {
    const int64_t channels = phase.depth.taps * p.in_dim;
    const bool serves =
        phase.x.out.count * p.types % kTerms == 0 && channels % 8 == 0 &&
        channels * phase.y.taps * phase.x.taps <= kMost && phase.y.pad < kMost &&
        phase.x.pad < kMost && phase.y.dilation < kMost && phase.x.dilation < kMost &&
        phase.x.stride < kMost && phase.y.stride < kMost;
    return serves ? LaunchError() : LaunchError("no");
  });
  return none.empty();
}

LaunchError SumWeights(const GpuExec& exec, const char* op, const Problem& p,
                       const Slab& slab, bool first, const float* input,
                       const float* grads, float* transposed, float* parts) {
  const WeightSums w(p, slab, exec.device.processors);
  Slab folded = slab;
  folded.unfolded = false;
  const int dim = static_cast<int>(p.in_dim);
  int dim_bits = 0;
  while (1 << dim_bits < std::min(dim, kDims)) ++dim_bits;
  const int64_t all =
      CeilDivide(w.width, int64_t{w.x_stride}) * w.x_stride * w.types;
  CAPSOPS_RETURN_IF_ERROR(
      LaunchDependent(op, TransposeImageKernel,
                      dim3(w.frames * w.read_rows, CeilDivide(all, kPositions)),
                      kTransposeThreads, 0, exec, Patch(p, folded), w, dim_bits, dim,
                      input, transposed));
  const uint64_t columns = w.columns, positions = w.chunks * kTerms;
  TmaTensor<3> grads_tensor;
  grads_tensor.size = {columns, positions, static_cast<uint64_t>(w.frames * w.rows)};
  grads_tensor.apart = {columns, positions * columns};
  grads_tensor.box = {32, kTerms, 1};
  grads_tensor.every = {1, 1, 1};
  const uint64_t remainders = w.x_stride, pitch = w.pitch, rows = w.read_rows;
  const uint64_t frames = w.frames;
  TmaTensor<5> image_tensor;
  image_tensor.size = {all / remainders, remainders, rows, frames,
                       static_cast<uint64_t>(w.channels)};
  image_tensor.apart = {pitch, remainders * pitch, rows * remainders * pitch,
                        frames * rows * remainders * pitch};
  image_tensor.box = {kTerms, 1, 1, 1, static_cast<uint32_t>(w.box)};
  image_tensor.every = {1, 1, 1, 1, 1};
  CUtensorMap grads_map, image_map;
  CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, grads, grads_tensor, &grads_map));
  CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, transposed, image_tensor, &image_map));
  const auto launch = [&](auto products) -> LaunchError {
    constexpr auto kKernel = SumWeightsKernel<products.value>;
    CAPSOPS_RETURN_IF_ERROR(CheckRegisters<kKernel>(op, kRegisters));
    return LaunchDependent<kKernel>(
        op, dim3(w.blocks()), kSumThreads,
        static_cast<int>(sizeof(SharedSums<products.value>)) + kAlignment, exec,
        grads_map, image_map, w, w.steps(), first, reinterpret_cast<float4*>(parts));
  };
  return w.products == 16 ? launch(std::integral_constant<int, 16>())
                          : launch(std::integral_constant<int, 32>());
}

LaunchError FinishWeights(const GpuExec& exec, const char* op, const Problem& p,
                          const Slab& slab, const float* parts, float* grad_weights) {
  const WeightSums w(p, slab, exec.device.processors);
  return LaunchDependent(op, FinishWeightsKernel,
                         dim3(w.row_tiles * w.column_tiles * w.products), kConsumers, 0,
                         exec, w, Relay(p, slab.phase), static_cast<int>(p.in_dim),
                         reinterpret_cast<const float4*>(parts), grad_weights);
}

}  // namespace capsops::capsule_conv_routing::slabs
