// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Planning common to all products of tma/product.cuh. They require poses of one row, so
// that a pixel is one row of a matrix, which TMA can load in boxes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "cc/launch/capsule_conv.h"
#include "cuda/capsule_conv/tasks.cuh"
#include "cuda/capsule_conv/tma/product.cuh"
#include "cuda/common/tensor_cores.cuh"

namespace capsops::capsule_conv::tma {

// The fewest steps worth a block.
constexpr int64_t kMinSteps = 8;

// Alignment of the parts of the workspace.
inline int64_t AlignedBytes(int64_t bytes) { return RoundUp(bytes, 128); }

// A plan of a product, with the tensor maps of both operands.
template <typename S, typename Work>
struct ProductPlan {
  // Launches the product, once flags are cleared and the right operand is packed.
  using Launch = LaunchError (*)(const GpuExec& exec, const char* op,
                                 const ProductPlan& plan, const S* source,
                                 const S* right, const PartialTiles& parts, S* target);
  Work work;
  TmaTensor<4> rows;
  TmaTensor<Work::kColumnRank> columns;
  int64_t packed_bytes = 0, part_bytes = 0;
  Launch launch = nullptr;

  // The workspace holds the packed operand, the flags of PartialTiles, and these tiles.
  int64_t FlagBytes() const {
    return AlignedBytes(work.ranges.blocks * int64_t{sizeof(int)});
  }
  int64_t workspace() const { return packed_bytes + FlagBytes() + part_bytes; }
  PartialTiles PartialsIn(void* workspace) const {
    char* const flags = static_cast<char*>(workspace) + packed_bytes;
    return {reinterpret_cast<int*>(flags),
            reinterpret_cast<float4*>(flags + FlagBytes())};
  }
};

// Makes the tensor maps and launches ProductKernel.
template <typename S, typename Work, typename Shape>
LaunchError Launch(const GpuExec& exec, const char* op,
                   const ProductPlan<S, Work>& plan, const S* source, const S* right,
                   const PartialTiles& parts, S* target) {
  CUtensorMap rows, columns;
  CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, source, plan.rows, &rows));
  CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, right, plan.columns, &columns));
  constexpr auto kKernel = ProductKernel<Work, S, Shape>;
  CAPSOPS_RETURN_IF_ERROR(CheckRegisters<kKernel>(op, kRegisters));
  return LaunchDependent<kKernel>(op, dim3(plan.work.ranges.blocks), kThreads,
                                  kSharedBytes<Work, Shape>, exec, rows, columns,
                                  plan.work, parts, target);
}

// Limit on steps and tiles, so that numbers computed from them fit in 32 bits.
constexpr int64_t kMaxSteps = INT32_MAX / 64;

// Divides `steps` steps among blocks, at most one per multiprocessor, and selects the
// kernel.
template <typename Shape, typename S, typename Work>
void Divide(const GpuDevice& device, int64_t steps, ProductPlan<S, Work>* plan) {
  const int64_t blocks =
      std::min<int64_t>(device.processors, CeilDivide(steps, kMinSteps));
  plan->work.ranges = {static_cast<int>(steps), static_cast<int>(blocks)};
  plan->part_bytes = blocks * Shape::kProducts * kPartThreads * int64_t{sizeof(float4)};
  if constexpr (Work::kColumnRank == 3) {
    plan->columns.box = {uint32_t{Shape::kDepth}, uint32_t{Shape::kColumns}, 1};
  }
  plan->launch = Launch<S, Work, Shape>;
}

// Tiles have 256 columns, or 128 if that is enough.
template <typename S, typename Then>
void WithShape(int64_t columns, const Then& then) {
  if (columns > 128) {
    then(Shape<S, 256>());
  } else {
    then(Shape<S, 128>());
  }
}

// Whether TMA supports boxes of `box` pixels with stride `stride`.
inline bool HasBox(int box, int stride) {
  return box == 1 || (stride <= 8 && (box - 1) * stride < 256);
}
// Sets the boxes of a MapImage() to `batch` images, each with y x x pixels, these
// strides apart, of `numbers` elements.
inline void SetBox(uint32_t numbers, int x, int stride_x, int y, int stride_y,
                   int batch, TmaTensor<4>* map) {
  map->every = {1, static_cast<uint32_t>(x == 1 ? 1 : stride_x),
                static_cast<uint32_t>(y == 1 ? 1 : stride_y), 1};
  map->box = {numbers, (x - 1) * map->every[1] + 1, (y - 1) * map->every[2] + 1,
              static_cast<uint32_t>(batch)};
}

// log2 of a power of two.
inline int BitsOf(int power_of_two) {
  int bits = 0;
  while (power_of_two >> (bits + 1) != 0) ++bits;
  return bits;
}

// The tensor map of an image with `numbers` elements per pixel.
inline TmaTensor<4> MapImage(uint64_t batch, uint64_t height, uint64_t width,
                             uint64_t numbers) {
  return TmaTensor<4>({numbers, width, height, batch});
}

template <typename Work, typename S>
constexpr int kMaxShared =
    std::max(kSharedBytes<Work, Shape<S, 128>>, kSharedBytes<Work, Shape<S, 256>>);

// Why this path must refuse a product; else empty. `numbers`: elements per source
// pixel.
template <typename Work, typename S, Tf32 kTf32>
std::string Refusal(const Problem& p, int64_t numbers, int64_t columns,
                    const GpuDevice& device) {
  if (p.pose_depth * p.pose_rows != 1) {
    return "poses have " + std::to_string(p.pose_depth * p.pose_rows) +
           " rows, not one";
  }
  const std::string refusal = RefuseSizes(p);
  if (!refusal.empty()) return refusal;
  if (kTf32 == Tf32::kSplit) return "TF32 is not allowed";
  constexpr int kMultiple = 16 / sizeof(S);
  if (numbers % kMultiple != 0) {
    return std::to_string(kMultiple) + " does not divide " + std::to_string(numbers) +
           ", the numbers of a pixel that are read";
  }
  if (columns <= 16) return std::to_string(columns) + " columns are too few";
  if (std::max(p.in_channels * p.pose_inner, p.out_channels * p.pose_columns) >=
      1 << 16) {
    return "a pixel has over 65535 numbers";
  }
  if (!HasWgmma(device)) return "it needs compute capability 9.0";
  return kMaxShared<Work, S> > device.shared ? "no tile fits in shared memory" : "";
}

}  // namespace capsops::capsule_conv::tma
