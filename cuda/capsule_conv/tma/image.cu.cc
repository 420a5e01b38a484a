// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and launches the forward product and the input gradient on tma/product.cuh.
#include <algorithm>
#include <cstdint>
#include <string>

#include "cuda/capsule_conv/paths.h"
#include "cuda/capsule_conv/tma/pack.cuh"
#include "cuda/capsule_conv/tma/plan.cuh"

namespace capsops::capsule_conv::tma {

// One axis of the forward product or of the input gradient.
inline TileAxis MakeAxis(const AxisProblem& p, bool gradient) {
  TileAxis axis{};
  if (gradient) {
    axis.phases = static_cast<int>(std::min(p.stride, p.in));
    axis.source = static_cast<int>(p.out);
    axis.stride = 1;
    axis.target_stride = static_cast<int>(p.stride);
    for (int n = 0; n < axis.phases; ++n) axis.phase[n] = PhaseAxis(p, n);
  } else {
    axis.phases = 1;
    axis.source = static_cast<int>(p.in);
    axis.stride = static_cast<int>(p.stride);
    axis.target_stride = 1;
    axis.phase[0] = ForwardAxis(p);
  }
  return axis;
}

// An axis divided into tiles of `box` points; `taps` is 0 if there are too many tiles,
// or if TMA cannot load such boxes.
struct TiledAxis {
  TileAxis axis;
  int64_t taps = 0;   // total over all tiles
  int64_t empty = 0;  // tiles without taps

  TiledAxis(TileAxis whole, int box) : axis(whole) {
    axis.box = box;
    axis.tiles = 0;
    for (int n = 0; n < axis.phases; ++n) axis.tiles += axis.TilesOf(n);
    if (axis.tiles > kMaxAxisTiles || !HasBox(box, axis.stride)) return;
    for (int n = 0; n < axis.tiles; ++n) {
      const int count = axis.At(n).taps;
      taps += count;
      empty += count == 0;
    }
  }
};

// Chooses the box shape that takes the fewest steps.
template <typename Shape, typename S>
void FindBoxes(const GpuDevice& device, ProductPlan<S, ImageWork>* plan) {
  ImageWork& work = plan->work;
  work.column_blocks = CeilDivideInt(work.columns.count, Shape::kColumns);
  work.chunks = CeilDivideInt(plan->rows.size[0], uint64_t{Shape::kDepth});
  const TileAxis vertical = work.vertical, horizontal = work.horizontal;
  int64_t fewest = kMaxSteps + 1;
  for (int y = 1; y <= kRows; y *= 2) {
    const TiledAxis down(vertical, y);
    if (down.taps == 0) continue;
    for (int x = 1; x * y <= kRows; x *= 2) {
      const TiledAxis across(horizontal, x);
      if (across.taps == 0) continue;
      const int images = kRows / (y * x);
      const int64_t units = CeilDivide(work.batch, images) * work.column_blocks;
      const int64_t tiles = int64_t{down.axis.tiles} * across.axis.tiles * units;
      const int64_t full =
          (down.axis.tiles - down.empty) * (across.axis.tiles - across.empty) * units;
      const int64_t steps =
          down.taps * across.taps * work.chunks * units + full * kStoreSteps;
      if (steps >= fewest || tiles > kMaxSteps) continue;
      fewest = steps;
      work.tiles = static_cast<int>(tiles);
      work.empty = full < tiles;
      work.vertical = down.axis;
      work.horizontal = across.axis;
      work.images = images;
      work.y_bits = BitsOf(y);
      work.x_bits = BitsOf(x);
      SetBox(Shape::kDepth, x, horizontal.stride, y, vertical.stride, images,
             &plan->rows);
    }
  }
  if (fewest <= kMaxSteps) Divide<Shape>(device, fewest, plan);
}

// Plans the product, and sets the parameters of PackFilterKernel.
template <typename S>
ProductPlan<S, ImageWork> PlanImageProduct(const GpuDevice& device, const Problem& p,
                                           bool gradient, PackedFilter* packed) {
  ProductPlan<S, ImageWork> plan;
  Task task = ForwardTask(p);
  if (gradient) Transpose(&task);
  const Filter& filter = task.filter;
  packed->filter = filter;
  packed->by_columns = !gradient;
  packed->by_inner = Divisor(filter.inner);
  packed->by_out_inner = Divisor(filter.out_inner);
  packed->terms = filter.channels * filter.inner;
  packed->columns = filter.out_channels * filter.out_inner;
  packed->term_blocks = CeilDivideInt(packed->terms, kPackSide);
  packed->column_blocks = CeilDivideInt(packed->columns, kPackSide);

  ImageWork& work = plan.work;
  work.vertical = MakeAxis(Vertical(p), gradient);
  work.horizontal = MakeAxis(Horizontal(p), gradient);
  work.batch = static_cast<int>(p.batch);
  work.kernel_width = static_cast<int>(p.kernel_width);
  work.target_height = task.target.height;
  work.target_width = task.target.width;
  work.target_pixel = packed->columns;
  work.columns = {packed->columns, 1, Divisor(1),
                  packed->columns % 4 == 0 ? kExchangeColumns : 0};
  plan.rows = MapImage(p.batch, task.source.height, task.source.width, packed->terms);
  const uint64_t taps = p.kernel_height * p.kernel_width;
  const uint64_t terms = packed->terms, columns = packed->columns;
  plan.columns = TmaTensor<3>({terms, columns, taps});
  plan.packed_bytes = AlignedBytes(taps * columns * terms * sizeof(S));
  WithShape<S>(packed->columns,
               [&](auto shape) { FindBoxes<decltype(shape)>(device, &plan); });
  return plan;
}

// Plans the forward product, or the input gradient if `gradient`.
template <typename T, Tf32 kTf32>
ConvPlan<GpuExec, T> PlanImageBy(const char* op, const GpuDevice& device,
                                 const Problem& p, bool gradient) {
  using Plan = ConvPlan<GpuExec, T>;
  using S = CudaType<T>;
  const int64_t in = p.in_channels * p.pose_inner;
  const int64_t out = p.out_channels * p.pose_columns;
  CAPSOPS_REFUSE_IF(Refusal<ImageWork, S, kTf32>(p, gradient ? out : in,
                                                 gradient ? in : out, device));
  if (gradient && std::max(p.stride_height, p.stride_width) > kMaxPhases) {
    return Plan::Refuse("a stride is over " + std::to_string(kMaxPhases));
  }
  PackedFilter packed;
  const auto plan = PlanImageProduct<S>(device, p, gradient, &packed);
  if (plan.launch == nullptr) {
    return Plan::Refuse("no tap reads a pixel, or there are too many tiles");
  }
  return Plan::Make(plan.workspace(), [op, plan, packed](const GpuExec& exec,
                                                         const T* source,
                                                         const T* weights, T* target,
                                                         void* workspace) {
    S* const right = static_cast<S*>(workspace);
    const PartialTiles parts = plan.PartialsIn(workspace);
    const int64_t blocks = int64_t{packed.term_blocks} * packed.column_blocks *
                           static_cast<int64_t>(plan.columns.size[2]);
    CAPSOPS_RETURN_IF_ERROR(CheckGrid(op, blocks));
    CAPSOPS_RETURN_IF_ERROR(Launch(op, PackFilterKernel<S>, blocks, kPackThreads, 0,
                                   exec, packed, weights, right,
                                   FlagsToClear{parts.there, plan.work.ranges.blocks}));
    return plan.launch(exec, op, plan, Native(source), right, parts, Native(target));
  });
}

template <typename T>
ConvPlan<GpuExec, T> PlanImage(const char* op, const GpuExec& exec, const Problem& p,
                               bool gradient) {
  return PlanWithPrecision<ConvPlan<GpuExec, T>, T>(exec, [&](auto precision) {
    return PlanImageBy<T, precision.value>(op, exec.device, p, gradient);
  });
}

CAPSOPS_FOR_EACH_TYPE(CAPSOPS_INSTANTIATE_PLAN_IMAGE)

}  // namespace capsops::capsule_conv::tma
