// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and launches the weight gradient on tma/product.cuh.
#include <cstdint>
#include <string>

#include "cuda/capsule_conv/paths.h"
#include "cuda/capsule_conv/tma/pack_grad.cuh"
#include "cuda/capsule_conv/tma/plan.cuh"

namespace capsops::capsule_conv::tma {

// Finds the shape of boxes of `pixels` pixels that needs the fewest boxes.
inline PixelBoxes FindPixelBoxes(const Problem& p, int pixels, int64_t* steps) {
  PixelBoxes best{};
  *steps = 0;
  for (int y = 1; y <= pixels; y *= 2) {
    for (int x = 1; x * y <= pixels; x *= 2) {
      if (!HasBox(y, static_cast<int>(p.stride_height)) ||
          !HasBox(x, static_cast<int>(p.stride_width))) {
        continue;
      }
      const int n = pixels / (y * x);
      const int64_t down = CeilDivide(p.out_height, y);
      const int64_t across = CeilDivide(p.out_width, x);
      const int64_t count = CeilDivide(p.batch, n) * down * across;
      if (*steps > 0 && count >= *steps) continue;
      *steps = count;
      best = {static_cast<int>(down),
              static_cast<int>(across),
              n,
              y,
              x,
              BitsOf(y),
              BitsOf(x)};
    }
  }
  return best;
}

// Plans the product, and sets the parameters of PackGradKernel.
template <typename S>
ProductPlan<S, WeightWork<S>> PlanWeightProduct(const GpuDevice& device,
                                                const Problem& p, PackedGrad* packed) {
  using Work = WeightWork<S>;
  constexpr uint32_t kPixels = kSwizzleBytes / sizeof(S);  // pixels per step
  static_assert(!Work::kPacked || kPixels == kStepPixels);
  ProductPlan<S, Work> plan;
  const int out = static_cast<int>(p.out_channels * p.pose_columns);
  const int inner = static_cast<int>(p.pose_columns);
  const int matrix = static_cast<int>(p.pose_inner) * inner;
  int64_t steps;
  const PixelBoxes boxes = FindPixelBoxes(p, kPixels, &steps);
  *packed = {boxes,
             static_cast<int>(p.batch),
             static_cast<int>(p.out_height),
             static_cast<int>(p.out_width),
             out,
             CeilDivideInt(out, kGradColumns)};
  Work& work = plan.work;
  work.boxes = boxes;
  work.moves = TapMoves(p);
  work.channels = static_cast<int>(p.in_channels * p.pose_inner);
  work.channel_blocks = CeilDivideInt(work.channels, kRows);
  work.channel = p.out_channels * matrix;
  work.tap = p.in_channels * work.channel;
  work.row = inner;
  work.by_inner = Divisor(static_cast<int>(p.pose_inner));
  if (p.pose_inner == 1) {
    work.columns = {out, 1, Divisor(1), out % 4 == 0 ? kExchangeColumns : 0};
  } else {
    const bool even = inner % 4 == 0 && kExchangeColumns % inner == 0;
    work.columns = {out, matrix, Divisor(inner),
                    even ? kExchangeColumns / inner * matrix : 0};
  }
  plan.rows = MapImage(p.batch, p.in_height, p.in_width, work.channels);
  SetBox(kPixels, boxes.x, work.moves.stride_x, boxes.y, work.moves.stride_y,
         boxes.batch, &plan.rows);
  if constexpr (Work::kPacked) {
    const uint64_t columns = out, all_steps = steps;
    plan.columns = TmaTensor<3>({kPixels, columns, all_steps});
    plan.packed_bytes = AlignedBytes(all_steps * columns * kPixels * sizeof(S));
  } else {
    plan.columns = MapImage(p.batch, p.out_height, p.out_width, out);
    SetBox(kPixels, boxes.x, 1, boxes.y, 1, boxes.batch, &plan.columns);
  }
  WithShape<S>(out, [&](auto shape) {
    using Shape = decltype(shape);
    work.column_blocks = CeilDivideInt(out, Shape::kColumns);
    const int64_t tiles = p.kernel_height * p.kernel_width * work.channel_blocks *
                          int64_t{work.column_blocks};
    if (tiles > kMaxSteps || steps > kMaxSteps ||
        tiles * (steps + kStoreSteps) > kMaxSteps) {
      return;
    }
    work.steps = static_cast<int>(steps);
    Divide<Shape>(device, tiles * (steps + kStoreSteps), &plan);
  });
  return plan;
}

// Tensor cores truncate sums of 16-bit products. With up to this many pixels, the error
// stays at about one unit in the last place of float16.
constexpr int64_t kMaxPixels = int64_t{1} << 20;

// Plans the weight gradient. Only a float `grad` is packed.
template <typename T, Tf32 kTf32>
ConvPlan<GpuExec, T> PlanWeightsBy(const char* op, const GpuDevice& device,
                                   const Problem& p) {
  using Plan = ConvPlan<GpuExec, T>;
  using S = CudaType<T>;
  using Work = WeightWork<S>;
  const int64_t in = p.in_channels * p.pose_inner;
  const int64_t out = p.out_channels * p.pose_columns;
  CAPSOPS_REFUSE_IF(Refusal<Work, S, kTf32>(p, in, out, device));
  if (p.kernel_height * p.kernel_width * in * out > 1 << 30) {
    return Plan::Refuse("32 bits do not count the weights");
  }
  if (!Work::kPacked && out % 8 != 0) {
    return Plan::Refuse("8 does not divide " + std::to_string(out) +
                        ", the numbers of a pixel of the gradient");
  }
  if (!Work::kPacked && p.batch * p.out_height * p.out_width > kMaxPixels) {
    return Plan::Refuse("sums of so many pixels would be inexact");
  }
  PackedGrad packed;
  const auto plan = PlanWeightProduct<S>(device, p, &packed);
  if (plan.launch == nullptr) return Plan::Refuse("there are too many tiles");
  return Plan::Make(plan.workspace(), [op, plan, packed](const GpuExec& exec,
                                                         const T* input, const T* grad,
                                                         T* grad_weights,
                                                         void* workspace) {
    const S* right = Native(grad);
    const PartialTiles parts = plan.PartialsIn(workspace);
    if constexpr (Work::kPacked) {
      const int64_t blocks =
          int64_t{packed.column_blocks} * static_cast<int64_t>(plan.columns.size[2]);
      CAPSOPS_RETURN_IF_ERROR(CheckGrid(op, blocks));
      S* const to = static_cast<S*>(workspace);
      CAPSOPS_RETURN_IF_ERROR(
          Launch(op, PackGradKernel, blocks, kPackThreads, 0, exec, packed, right, to,
                 FlagsToClear{parts.there, plan.work.ranges.blocks}));
      right = to;
    } else {
      CAPSOPS_RETURN_IF_ERROR(
          Zero(exec, op, parts.there, plan.FlagBytes() / sizeof(int)));
    }
    return plan.launch(exec, op, plan, Native(input), right, parts,
                       Native(grad_weights));
  });
}

CAPSOPS_DEFINE_PLAN_WEIGHTS

}  // namespace capsops::capsule_conv::tma
