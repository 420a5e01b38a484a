// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Computes the gradient of shared weights over slabs (weights.h).
#include "cuda/capsule_conv_routing/slabs/weights.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cuda/capsule_conv_routing/slabs/products.h"
#include "cuda/capsule_conv_routing/slabs/weights.cuh"
#include "cuda/common/divisor.cuh"

namespace capsops::capsule_conv_routing::slabs {

// A block's tile, and its share of the steps [begin, end).
struct SumsPlace {
  int row_tile, column_tile, first_box, boxes, first_tap, begin, end;

  __device__ SumsPlace(const WeightSums& w, int steps) {
    const int full = (w.row_tiles - 1) * w.column_tiles * w.splits;
    const bool last = static_cast<int>(blockIdx.x) >= full;
    const int splits = last ? w.last_splits : w.splits;
    const int at = blockIdx.x - (last ? full : 0);
    const int tile = at / splits, split = at - tile * splits;
    row_tile = last ? w.row_tiles - 1 : tile / w.column_tiles;
    column_tile = tile % w.column_tiles;
    const int tap_group = row_tile / w.tap_row_tiles();
    first_tap = tap_group * w.tile_taps;
    first_box = (row_tile - tap_group * w.tap_row_tiles()) * w.tile_boxes;
    boxes = min(w.tile_boxes, w.boxes - first_box);
    begin = static_cast<int>(int64_t{steps} * split / splits);
    end = static_cast<int>(int64_t{steps} * (split + 1) / splits);
  }
};

// Calls visit(chunk, end) for each row of the votes of which a block multiplies the
// stages [chunk, end).
template <typename Visit>
__device__ void ForRows(const WeightSums& w, const SumsPlace& place,
                        const Visit& visit) {
  int chunk = place.begin % w.chunks;
  for (int left = place.end - place.begin; left > 0; chunk = 0) {
    const int end = min(w.chunks, chunk + left);
    visit(chunk, end);
    left -= end - chunk;
  }
}

// Computes a tile of the gradient for the block's share of a slab's steps, and adds it
// to the block's partial sums, or sets them if `first`. A producer warp loads the
// stages by TMA, and two consumer warpgroups multiply them (weights.cuh). If kTaps is
// not 0, the tile has that many horizontal taps, of kProducts products each.
template <typename S, int kProducts, int kTaps>
__global__ void __launch_bounds__(kProductThreads, 1)
    SumWeightsKernel(const __grid_constant__ CUtensorMap grads,
                     const __grid_constant__ CUtensorMap image, const WeightSums w,
                     const int steps, const bool first, float4* parts) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Ring = Stages<S, kProducts>;
  constexpr int kTerms = kStageTerms<S>;
  constexpr int kColumnBox = kSwizzleBytes / sizeof(S);
  auto& stages =
      Ring::Start(w.halved && kTaps == 0 ? kConsumerWarps / 2 : kConsumerWarps);
  const SumsPlace place(w, steps);
  GridDependencySynchronize();
  const int warp = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp >= kConsumerWarps) {
    SetMaxRegisters<kFew, false>();
    if (warp == kConsumerWarps) {
      // Lane n loads box n of the image. The first lanes also load boxes of gradients.
      const int lane = threadIdx.x % 32;
      Digits<int> digits(place.first_box + lane);
      const int channel = digits.Next(w.tap_boxes) * w.box;
      const int z_tap = digits.Next(w.z.image.taps);
      // The tap moves the image by `moved` pixels: `shift` strides, rounded down, and a
      // remainder. The copy is the one in which `begin` is a multiple of 16 bytes.
      const int x_tap = kTaps > 0 ? place.first_tap : digits.Next(w.x_taps);
      const int moved = x_tap * w.x_dilation - w.x_pad;
      const int shift = (moved - (moved < 0 ? w.x_stride - 1 : 0)) / w.x_stride;
      const int copy = shift & (w.copies - 1);
      const int begin = (shift - copy + w.lead) * w.types;
      const int remainder = (moved - shift * w.x_stride) * w.copies + copy;
      const int down = digits.rest * w.y.dilation - w.y.pad;
      const int column_boxes = (w.halved ? 64 : 128) / kColumnBox;
      PipelineState at{0, 1};  // Empty stages count as released.
      int line = place.begin / w.chunks;
      int frame = line / w.y.count, y = line - frame * w.y.count;
      int from = w.z.Read(frame, z_tap);
      ForRows(w, place, [&](int chunk, int end) {
        for (; chunk < end + w.span; ++chunk, at.Next(Ring::kCount)) {
          char* const stage = stages.memory[at.at];
          const bool votes = chunk < end;
          if (lane == 0) {
            stages.empty[at.at].Wait(at.parity);
            stages.full[at.at].ArriveAndExpectBytes(
                ((votes ? column_boxes * kColumnBox : 0) + place.boxes * w.box) *
                kSwizzleBytes);
          }
          __syncwarp();
          if (votes && lane < column_boxes) {
            TmaLoad(grads, place.column_tile * kTileRows + lane * kColumnBox,
                    chunk * kTerms, line, stages.full[at.at],
                    stage + lane * kTerms * kSwizzleBytes);
          }
          if (lane < place.boxes) {
            char* const to = stage + Ring::kRowBytes + lane * w.box * kSwizzleBytes;
            // TMA loads zeros for rows and frames outside of the image, such as
            // frame -1.
            const int row = y * w.y.stride + down;
            if constexpr (std::is_same_v<S, float>) {
              TmaLoad(image, chunk * kTerms + begin, remainder, row, max(from, -1),
                      channel, stages.full[at.at], to);
            } else {
              TmaLoad(image, channel, 0,
                      chunk * w.stage_step() + moved * w.pixel_step(), row,
                      max(from, -1), stages.full[at.at], to);
            }
          }
        }
        ++line;
        if (++y < w.y.count) return;
        y = 0;
        from = w.z.Read(++frame, z_tap);
      });
    }
  } else {
    SetMaxRegisters<kMany, true>();
    float4* const part =
        parts + int64_t{blockIdx.x} * (w.products * kConsumers) + threadIdx.x;
    const int share = place.end - place.begin, width = place.boxes * w.box;
    const int line = w.box * static_cast<int>(sizeof(S));
    if constexpr (kTaps > 0) {
      SumTaps<S, kProducts, kTaps>(
          stages, w.halved, w.move, w.span, first, part,
          [&](const auto& visit) { ForRows(w, place, visit); });
    } else if (width <= 64) {
      SumSteps<8, S, kProducts>(stages, w.halved, line, share, first, part);
    } else if (width <= 128) {
      SumSteps<16, S, kProducts>(stages, w.halved, line, share, first, part);
    } else if constexpr (kProducts > 16) {
      SumSteps<kProducts, S, kProducts>(stages, w.halved, line, share, first, part);
    }
  }
#else
  __trap();  // compiled for another GPU
#endif
}

// Adds up the partial sums of each tile, and stores them at the taps of the phase. A
// block handles the 8 columns of one product of one consumer warp. Each of its kShares
// warps adds a share of the parts, and the first one adds up these sums through shared
// memory.
template <typename S, int kShares>
__global__ void __launch_bounds__(32 * kShares)
    FinishWeightsKernel(const WeightSums w, const Relay relay, const float4* parts,
                        S* grad_weights) {
  __shared__ float4 sums[kShares][32];
  GridDependencySynchronize();
  const int warp = blockIdx.x % kConsumerWarps, rest = blockIdx.x / kConsumerWarps;
  const int product = rest % w.products, tile = rest / w.products;
  const int row_tile = tile / w.column_tiles, column_tile = tile % w.column_tiles;
  const bool last = row_tile == w.row_tiles - 1;
  const int splits = last ? w.last_splits : w.splits;
  const int full = (w.row_tiles - 1) * w.column_tiles * w.splits;
  const int first = last ? full + column_tile * splits : tile * splits;
  // A tile with shared boxes has the products of one tap after another.
  const int tap_group = row_tile / w.tap_row_tiles();
  const int first_box = (row_tile - tap_group * w.tap_row_tiles()) * w.tile_boxes;
  const int boxes = min(w.tile_boxes, w.boxes - first_box);
  const int tile_tap = w.tile_taps > 0 ? product / w.tap_products : 0;
  const int x_tap = tap_group * w.tile_taps + tile_tap;
  const int first_row = (product - tile_tap * w.tap_products) * 8;
  if (first_row >= boxes * w.box || x_tap >= w.x_taps) return;
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
  const int column = column_tile * kTileRows + LaneColumn<S>(warp, lane);
  if (share > 0 || column >= w.columns) return;
#pragma unroll
  for (int n = 1; n < kShares; ++n) {
    const float4 other = sums[n][lane];
    sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
  }
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int row = first_row + lane % 4 * 2 + e, box = row / w.box;
    if (box >= boxes) return;
    const int number = first_box + box;
    int tap = number / w.tap_boxes;
    const int channel = (number - tap * w.tap_boxes) * w.box + row - box * w.box;
    if (w.tile_taps > 0) {
      const int y_tap = tap / w.z.image.taps;
      tap += (y_tap * (w.x_taps - 1) + x_tap) * w.z.image.taps;
    }
    S* const to = grad_weights + relay.From(tap) * relay.matrix +
                  channel * int64_t{w.columns} + column;
    const float first_sum = e == 0 ? sum.x : sum.y, second_sum = e == 0 ? sum.z : sum.w;
    if constexpr (std::is_same_v<S, float>) {
      *reinterpret_cast<float2*>(to) = make_float2(first_sum, second_sum);
    } else {
      Narrow(first_sum, to);
      if (column + 8 < w.columns) Narrow(second_sum, to + 8);
    }
  }
}

// Describe the boxes of a tap for TMA, in the transposed copy and in the image itself.
TmaTensor<5> TransposedBoxes(const WeightSums& w) {
  const uint64_t remainders = w.x_stride * w.copies, pitch = w.pitch;
  const uint64_t rows = w.y.read, frames = std::max(w.z.read, 1), dim = w.dim;
  TmaTensor<5> tensor;
  tensor.size = {static_cast<uint64_t>(w.line()), remainders, rows, frames, dim};
  tensor.apart = {pitch, remainders * pitch, rows * remainders * pitch,
                  frames * rows * remainders * pitch};
  tensor.box = {static_cast<uint32_t>(w.terms()), 1, 1, 1,
                static_cast<uint32_t>(w.box)};
  return tensor;
}
TmaTensor<5> ImageBoxes(const WeightSums& w, uint64_t height) {
  const uint64_t dim = w.dim, pixel = w.pixel_step(), width = w.width * pixel;
  const uint64_t types = w.types / pixel, row = w.width * w.types * dim;
  TmaTensor<5> tensor;
  tensor.size = {dim, types, width, static_cast<uint64_t>(w.y.read),
                 static_cast<uint64_t>(std::max(w.z.read, 1))};
  tensor.apart = {dim, types * dim, row, height * row};
  tensor.box = {static_cast<uint32_t>(w.box), static_cast<uint32_t>(types),
                static_cast<uint32_t>(w.stage_step()), 1, 1};
  tensor.every[2] = w.x_stride;
  tensor.swizzle = w.box == 8 ? 0 : w.box * 2;
  return tensor;
}

// Calls launch(products, taps) with the compile-time parameters of SumWeightsKernel.
template <typename S, typename Launch>
LaunchError WithSumTile(const WeightSums& w, const Launch& launch) {
  constexpr std::integral_constant<int, 0> kNone;
  constexpr std::integral_constant<int, 8> kEight;
  if constexpr (std::is_same_v<S, float>) {
    if (w.tap_products == 10) {
      return launch(std::integral_constant<int, 10>(),
                    std::integral_constant<int, 3>());
    }
    if (w.tap_products == 8) {
      return WithConstant<3, 5>(w.tile_taps,
                                [&](auto taps) { return launch(kEight, taps); });
    }
  }
  return WithConstant<16, 32>(w.products,
                              [&](auto products) { return launch(products, kNone); });
}

template <typename T>
LaunchError OwnProducts<T>::SumWeights(const GpuExec& exec, const char* op,
                                       const Slab& slab, bool first, const T* input,
                                       const T* grads, T* scratch, float* sums) const {
  using S = CudaType<T>;
  const WeightSums w = Sum(slab);
  const uint64_t columns = w.columns, lines = uint64_t{1} * w.z.count * w.y.count;
  const uint64_t positions = uint64_t{1} * w.chunks * w.terms();
  TmaTensor<3> grad_boxes({columns, positions, lines});
  grad_boxes.box = {kSwizzleBytes / sizeof(S), static_cast<uint32_t>(w.terms()), 1};
  CUtensorMap votes, image;
  CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, Native(grads), grad_boxes, &votes));
  const S* const from = Native(input) + FirstRow(p_, slab);
  if constexpr (kFloats) {
    CAPSOPS_RETURN_IF_ERROR(TransposeImage(exec, op, p_, w, from, scratch));
    CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, scratch, TransposedBoxes(w), &image));
  } else {
    CAPSOPS_RETURN_IF_ERROR(
        MakeTensorMap(op, from, ImageBoxes(w, p_.in_height), &image));
  }
  return WithSumTile<S>(w, [&](auto products, auto taps) {
    return LaunchProduct<SumWeightsKernel<S, products.value, taps.value>,
                         Stages<S, products.value>>(op, exec, w.blocks(), votes, image,
                                                    w, w.steps(), first,
                                                    reinterpret_cast<float4*>(sums));
  });
}

template <typename T>
LaunchError OwnProducts<T>::FinishWeights(const GpuExec& exec, const char* op,
                                          const Slab& slab, const float* sums,
                                          T* grad_weights) const {
  using S = CudaType<T>;
  const WeightSums w = Sum(slab);
  const auto launch = [&](auto shares) {
    return LaunchDependent(
        op, FinishWeightsKernel<S, shares.value>,
        dim3(w.row_tiles * w.column_tiles * w.products * kConsumerWarps),
        32 * shares.value, 0, exec, w, Relay(p_, slab.phase),
        reinterpret_cast<const float4*>(sums), grad_weights);
  };
  // With few parts, sharing them among warps takes longer than adding them.
  return WithConstant<1, 8>(std::max(w.splits, w.last_splits) < 32 ? 1 : 8, launch);
}

#define CAPSOPS_INSTANTIATE(T)                                                        \
  template LaunchError OwnProducts<T>::SumWeights(                                    \
      const GpuExec&, const char*, const Slab&, bool, const T*, const T*, T*, float*) \
      const;                                                                          \
  template LaunchError OwnProducts<T>::FinishWeights(                                 \
      const GpuExec&, const char*, const Slab&, const float*, T*) const;
CAPSOPS_FOR_EACH_PRODUCT_TYPE(CAPSOPS_INSTANTIATE)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::capsule_conv_routing::slabs
