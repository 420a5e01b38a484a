// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and runs the gradient of shared weights over slabs.
#include "cuda/capsule_conv_routing/slabs/weights.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <type_traits>

#include "cc/launch/round.h"
#include "cuda/capsule_conv_routing/slabs/product.cuh"
#include "cuda/capsule_conv_routing/slabs/products.h"
#include "cuda/common/divisor.cuh"

namespace capsops::capsule_conv_routing::slabs {

WeightSums::WeightSums(const Problem& p, const Slab& slab, int processors)
    : z(p, slab),
      y(slab),
      chunks(static_cast<int>(slab.phase.x.out.count * p.types / kDepth)),
      types(static_cast<int>(p.types)),
      columns(static_cast<int>(Columns(p))),
      dim(static_cast<int>(p.in_dim)),
      x_taps(static_cast<int>(slab.phase.x.taps)),
      x_stride(static_cast<int>(slab.phase.x.stride)),
      x_dilation(static_cast<int>(slab.phase.x.dilation)),
      x_pad(static_cast<int>(slab.phase.x.pad)),
      copies(x_taps == 1 && x_pad == 0 ? 1 : 4 / std::gcd(4, types)),
      lead(copies == 1 ? 0 : copies),
      width(p.in_width),
      pitch(RoundUp(line(), 4)) {
  box = std::gcd(32, dim);  // 4 at least
  tap_boxes = dim / box;
  boxes = y.taps * x_taps * z.image.taps * tap_boxes;
  const int all = boxes * box;
  // A tile of fewer columns takes half the time of one of 256 at best.
  products = all <= 128 || box == 4 ? 16 : 32;
  tile_boxes = std::min(boxes, products * 8 / box);  // a lane's at most
  row_tiles = static_cast<int>(CeilDivide(boxes, tile_boxes));
  halved = columns <= kTileRows / 2;
  column_tiles = static_cast<int>(CeilDivide(columns, kTileRows));
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
      stage + column / 32 * (kDepth * kSwizzleBytes) + column % 4 * 4;
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
__device__ void SumSteps(Stages<kProducts>& stages, bool halved, int steps, bool first,
                         float4* part) {
  const int warp = threadIdx.x / 32;
  const int column = LaneColumn(halved ? warp % 4 : warp, threadIdx.x % 32);
  float sums[kCount][4];
  Clear(sums);
  PipelineState at;
  int step = 0;
  if (halved && warp >= 4) {
    step = 1;
    at.Next(Stages<kProducts>::kCount);
  }
  for (; step < steps; ++step, at.Next(Stages<kProducts>::kCount)) {
    const char* const stage = stages.memory[at.at];
    stages.full[at.at].Wait(at.parity);
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
    stages.Release(at.at);
    if (halved) {
      ++step;
      at.Next(Stages<kProducts>::kCount);
    }
  }
  Complete(sums);
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
      const float (&sum)[4] = sums[n + m];
      part[(n + m) * kConsumers] =
          make_float4(before[m].x + sum[0], before[m].y + sum[1], before[m].z + sum[2],
                      before[m].w + sum[3]);
    }
  }
}

template <int kProducts>
__global__ void __launch_bounds__(kProductThreads, 1)
    SumWeightsKernel(const __grid_constant__ CUtensorMap grads,
                     const __grid_constant__ CUtensorMap image, const WeightSums w,
                     const int steps, const bool first, float4* parts) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  auto& stages =
      Stages<kProducts>::Start(w.halved ? kConsumerWarps / 2 : kConsumerWarps);
  const SumsPlace place(w, steps);
  GridDependencySynchronize();
  const int warp = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp >= kConsumerWarps) {
    SetMaxRegisters<kFew, false>();
    if (warp == kConsumerWarps) {
      // Lane n loads box n of the image, and the first 4 lanes boxes of gradients.
      const int lane = threadIdx.x % 32;
      const int number = place.row_tile * w.tile_boxes + lane;
      Digits<int> digits(number);
      const int channel = digits.Next(w.tap_boxes) * w.box;
      const int z_tap = digits.Next(w.z.image.taps);
      const int moved = digits.Next(w.x_taps) * w.x_dilation - w.x_pad;
      const int shift = (moved - (moved < 0 ? w.x_stride - 1 : 0)) / w.x_stride;
      const int copy = shift & (w.copies - 1);
      const int begin = (shift - copy + w.lead) * w.types;
      const int remainder = (moved - shift * w.x_stride) * w.copies + copy;
      const int down = digits.rest * w.y.dilation - w.y.pad;
      const int line = place.begin / w.chunks;
      int chunk = place.begin - line * w.chunks;
      int frame = line / w.y.count, y = line - frame * w.y.count;
      int from = w.z.Read(frame, z_tap);
      const int column_boxes = w.halved ? 2 : 4;
      PipelineState at;
      at.parity = 1;  // empty stages count as released
      for (int step = place.begin; step < place.end;
           ++step, at.Next(Stages<kProducts>::kCount)) {
        char* const stage = stages.memory[at.at];
        if (lane == 0) {
          stages.empty[at.at].Wait(at.parity);
          stages.full[at.at].ArriveAndExpectBytes(
              (column_boxes * kDepth + place.boxes * w.box) * kSwizzleBytes);
        }
        __syncwarp();
        if (lane < column_boxes) {
          TmaLoad(grads, place.column_tile * kTileRows + lane * 32, chunk * kDepth,
                  frame * w.y.count + y, stages.full[at.at],
                  stage + lane * kDepth * kSwizzleBytes);
        }
        if (lane < place.boxes) {
          TmaLoad(image, chunk * kDepth + begin, remainder, y * w.y.stride + down,
                  max(from, -1), channel, stages.full[at.at],
                  stage + kRowBytes + lane * w.box * kSwizzleBytes);
        }
        if (++chunk < w.chunks) continue;
        chunk = 0;
        if (++y < w.y.count) continue;
        y = 0;
        from = w.z.Read(++frame, z_tap);
      }
    }
  } else {
    SetMaxRegisters<kMany, true>();
    float4* const part =
        parts + int64_t{blockIdx.x} * (kProducts * kConsumers) + threadIdx.x;
    const int share = place.end - place.begin, width = place.boxes * w.box;
    if (width <= 64) {
      SumSteps<8>(stages, w.halved, share, first, part);
    } else if (width <= 128) {
      SumSteps<16>(stages, w.halved, share, first, part);
    } else if constexpr (kProducts > 16) {
      SumSteps<kProducts>(stages, w.halved, share, first, part);
    }
  }
#else
  __trap();  // compiled for another GPU
#endif
}

// Adds the parts of each tile, and stores them where the phase has its weights. A block
// has a product of one of the consumers' warps, and each of its warps a share of the
// parts.
template <int kShares>
__global__ void __launch_bounds__(32 * kShares)
    FinishWeightsKernel(const WeightSums w, const Relay relay, const float4* parts,
                        float* grad_weights) {
  __shared__ float4 sums[kShares][32];
  GridDependencySynchronize();
  const int warp = blockIdx.x % kConsumerWarps, rest = blockIdx.x / kConsumerWarps;
  const int product = rest % w.products, tile = rest / w.products;
  const int row_tile = tile / w.column_tiles, column_tile = tile % w.column_tiles;
  const bool last = row_tile == w.row_tiles - 1;
  const int splits = last ? w.last_splits : w.splits;
  const int full = (w.row_tiles - 1) * w.column_tiles * w.splits;
  const int first = last ? full + column_tile * splits : tile * splits;
  const int boxes = min(w.tile_boxes, w.boxes - row_tile * w.tile_boxes);
  if (product * 8 >= boxes * w.box) return;
  if (w.halved && warp >= kConsumerWarps / 2) return;
  const int share = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float4* from =
      parts + (int64_t{first} * w.products + product) * kConsumers + warp * 32 + lane;
  float4 sum = {};
  for (int half = 0; half <= w.halved; ++half, from += kConsumers / 2) {
#pragma unroll 8
    for (int n = share; n < splits; n += kShares) {
      const float4 part = from[int64_t{n} * w.products * kConsumers];
      sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
  }
  sums[share][lane] = sum;
  __syncthreads();
  const int column = column_tile * kTileRows + LaneColumn(warp, lane);
  if (share > 0 || column >= w.columns) return;
#pragma unroll
  for (int n = 1; n < kShares; ++n) {
    const float4 other = sums[n][lane];
    sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
  }
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int row = product * 8 + lane % 4 * 2 + e, box = row / w.box;
    if (box >= boxes) return;
    const int number = row_tile * w.tile_boxes + box, tap = number / w.tap_boxes;
    const int channel = (number - tap * w.tap_boxes) * w.box + row - box * w.box;
    *reinterpret_cast<float2*>(grad_weights + relay.From(tap) * relay.matrix +
                               channel * int64_t{w.columns} + column) =
        e == 0 ? make_float2(sum.x, sum.z) : make_float2(sum.y, sum.w);
  }
}

bool SumsWeights(const Problem& p) {
  constexpr int64_t kMost = 1 << 20;
  if (std::max({p.in_width * p.types * p.in_dim, p.in_height, p.out_width * p.types,
                Columns(p)}) > kMost) {
    return false;
  }
  return AllPhases(p, [&](const Phase& phase) {
    return phase.x.out.count * p.types % kDepth == 0 &&
           p.in_dim * phase.depth.taps * phase.y.taps * phase.x.taps <= kMost;
  });
}

LaunchError SumWeights(const GpuExec& exec, const char* op, const Problem& p,
                       const Slab& slab, bool first, const float* input,
                       const float* grads, float* transposed, float* parts) {
  const WeightSums w(p, slab, exec.device.processors);
  CAPSOPS_RETURN_IF_ERROR(
      TransposeImage(exec, op, p, w, input + FirstRow(p, slab), transposed));
  const uint64_t remainders = w.x_stride * w.copies, pitch = w.pitch;
  const uint64_t rows = w.y.read, frames = std::max(w.z.read, 1), dim = w.dim;
  TmaTensor<5> tensor;
  tensor.size = {static_cast<uint64_t>(w.line()), remainders, rows, frames, dim};
  tensor.apart = {pitch, remainders * pitch, rows * remainders * pitch,
                  frames * rows * remainders * pitch};
  tensor.box = {kDepth, 1, 1, 1, static_cast<uint32_t>(w.box)};
  tensor.every = {1, 1, 1, 1, 1};
  CUtensorMap votes, image;
  CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(
      op, grads, Matrices(w.columns, w.chunks * kDepth, w.z.count * w.y.count, kDepth),
      &votes));
  CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, transposed, tensor, &image));
  return WithProducts<16, 32>(w.products * 8, [&](auto products) {
    return LaunchProduct<SumWeightsKernel<products.value>, Stages<products.value>>(
        op, exec, w.blocks(), votes, image, w, w.steps(), first,
        reinterpret_cast<float4*>(parts));
  });
}

LaunchError FinishWeights(const GpuExec& exec, const char* op, const Problem& p,
                          const Slab& slab, const float* parts, float* grad_weights) {
  const WeightSums w(p, slab, exec.device.processors);
  const auto launch = [&](auto shares) {
    return LaunchDependent(
        op, FinishWeightsKernel<shares.value>,
        dim3(w.row_tiles * w.column_tiles * w.products * kConsumerWarps),
        32 * shares.value, 0, exec, w, Relay(p, slab.phase),
        reinterpret_cast<const float4*>(parts), grad_weights);
  };
  // Few parts of many small tiles take longer to share than to add.
  if (std::max(w.splits, w.last_splits) < 32) {
    return launch(std::integral_constant<int, 1>());
  }
  return launch(std::integral_constant<int, 8>());
}

}  // namespace capsops::capsule_conv_routing::slabs
