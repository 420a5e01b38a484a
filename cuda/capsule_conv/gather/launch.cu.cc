// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and launches the kernels of gather/forward.cuh and gather/weights.cuh.
#include "cuda/common/launch.cuh"

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cc/launch/capsule_conv.h"
#include "cuda/capsule_conv/gather/forward.cuh"
#include "cuda/capsule_conv/gather/weights.cuh"
#include "cuda/capsule_conv/parts.cuh"
#include "cuda/capsule_conv/paths.h"
#include "cuda/capsule_conv/tasks.cuh"

namespace capsops::capsule_conv::gather {

constexpr int kMaxTerms = 256;
constexpr int kMaxPoints = 1024, kFewPoints = 16;  // pixels per tile

// Why this path cannot do the problem; else empty.
inline std::string Refusal(const Problem& p) {
  const std::string refusal = RefuseSizes(p);
  if (!refusal.empty()) return refusal;
  const auto text = [](int64_t number) { return std::to_string(number); };
  if (p.pose_depth != 1) {
    return "capsules have " + text(p.pose_depth) + " matrices, not one";
  }
  if (p.pose_rows != 1) return "poses have " + text(p.pose_rows) + " rows, not one";
  const int64_t terms = p.kernel_height * p.kernel_width * p.in_channels * p.pose_inner;
  if (terms > kMaxTerms) {
    return "its contraction has " + text(terms) + " terms, over " + text(kMaxTerms);
  }
  const int64_t columns = p.out_channels * p.pose_columns;
  if (p.pose_inner % 4 == 0) {
    return "4 divides " + text(p.pose_inner) +
           ", the inner dimension, which the other kernels read faster";
  }
  if (columns > (1 << 30) / terms) return "32 bits do not count the weights";
  if (columns % 4 != 0) {
    return "4 does not divide the " + text(columns) + " columns";
  }
  if (p.pose_inner > 1 && p.pose_columns % 4 != 0) {
    return "4 does not divide " + text(p.pose_columns) +
           ", the columns of the poses, which lie by rows in the filter";
  }
  return "";
}

// Sets tiles of y x x pixels; returns false if their patch is too large.
inline bool SetTile(int y, int x, Tiling* t) {
  t->vertical.tile = y;
  t->horizontal.tile = x;
  t->vertical.tiles = CeilDivideInt(t->vertical.points, y);
  t->horizontal.tiles = CeilDivideInt(t->horizontal.points, x);
  t->points = y * x;
  t->tiles = t->input.batch * t->vertical.tiles * t->horizontal.tiles;
  // Whole warps of pixels in the forward pass, with at least one entry without target.
  t->slots = CeilDivideInt(t->points + 1, kWarpPixels) * kWarpPixels;
  const int64_t pitch =
      int64_t{t->horizontal.Reach(x, t->horizontal.taps)} * t->pixel_words;
  const int64_t patch = t->vertical.Reach(y, t->vertical.taps) * pitch;
  if (patch >= 1 << 16) return false;
  t->pitch = static_cast<int>(pitch);
  t->patch = static_cast<int>(patch);
  t->by_pitch = Divisor(t->pitch);
  t->by_tile = Divisor(x);
  return true;
}

// Sets the members that all tilings of a problem share. Pads pixels so that lanes that
// read `run` adjacent words of several pixels have no bank conflicts.
inline void Begin(const Problem& p, int run, Tiling* t) {
  const Task task = ForwardTask(p);
  t->input = task.source;
  t->output = task.target;
  t->vertical = task.vertical;
  t->horizontal = task.horizontal;
  t->filter = task.filter;
  t->pixel = static_cast<int>(t->input.pixel());
  t->pixel_words = t->pixel % (2 * run) == 0 ? t->pixel + run : t->pixel;
  t->by_pixel = Divisor(t->pixel_words);
  t->columns = static_cast<int>(t->output.pixel());
  t->terms = t->vertical.taps * t->horizontal.taps * t->pixel;
  t->steps = CeilDivideInt(t->terms, 8);
}

// Calls `consider` for all plausible tilings. Each dimension is cut into the fewest
// possible parts and up to 64 more, until tiles are small.
template <typename Consider>
void ForEachTiling(Tiling* t, const Consider& consider) {
  const int width = t->horizontal.points, height = t->vertical.points;
  const auto for_each_part = [](int all, int most, const auto& use) {
    const int fewest = CeilDivideInt(all, most);
    int last = 0;
    for (int parts = fewest; parts <= std::min(all, fewest + 64); ++parts) {
      const int part = CeilDivideInt(all, parts);
      if (part != last && !use(part)) return;
      last = part;
    }
  };
  for_each_part(width, kMaxPoints, [&](int x) {
    for_each_part(height, kMaxPoints / x, [&](int y) {
      if (SetTile(y, x, t)) consider();
      return y * x >= kFewPoints;
    });
    return x >= kFewPoints;
  });
}

template <typename S>
using ForwardPlan = BlocksPlan<Tiling, const S* /*input*/, const S* /*weights*/,
                               const S* /*bias, or null*/, S* /*output*/>;
template <typename S>
using WeightPlan =
    BlocksPlan<WeightTiling, const S* /*input*/, const S* /*grad*/, float* /*parts*/>;

template <auto kKernel, int kThreads, typename Plan, typename... Pointers>
LaunchError Launch(const GpuExec& exec, const char* op, const Plan& plan,
                   Pointers... pointers) {
  return Launch<kKernel>(op, plan.blocks, kThreads, plan.shared, exec, plan.tiling,
                         pointers...);
}

// Cycles of a multiprocessor per m16n8k8 product.
template <Tf32 kTf32>
constexpr double kProductCycles = kTf32 == Tf32::kSplit ? 6 : 1.6;

// Replaces `best` by the cheapest tiling for kColumns columns if that is cheaper.
template <typename S, Tf32 kTf32, int kColumns>
void FindForward(const Problem& p, const GpuDevice& device, ForwardPlan<S>* best) {
  ForwardPlan<S> plan;
  plan.launch = Launch<ForwardKernel<S, kTf32, kColumns>, kForwardThreads>;
  Tiling& t = plan.tiling;
  Begin(p, 4, &t);
  t.column_blocks = CeilDivideInt(t.columns, kColumns);
  ForEachTiling(&t, [&] {
    const int64_t shared =
        4 * (int64_t{t.steps} * 8 * (kColumns + 2) + 2 * t.slots + t.patch);
    const int resident = std::min<int>(2, device.processor_shared / (shared + 1024));
    if (shared > device.shared || resident == 0) return;
    const int64_t slots =
        std::max<int64_t>(1, int64_t{resident} * device.processors / t.column_blocks);
    // All resident blocks multiply in rounds of 8 warps, and store 16 bytes per cycle.
    const double turns = CeilDivide(CeilDivide(t.points, 32) * (kColumns > 64 ? 2 : 1),
                                    kForwardThreads / kLanes);
    const double multiply = resident * turns * 8 * t.steps * (kColumns > 32 ? 16 : 8) *
                            kProductCycles<kTf32>;
    const double store =
        resident * (t.points * std::min(kColumns, t.columns) * sizeof(S) / 16.);
    const double tile = std::max(multiply, store) + 0.3 * std::min(multiply, store) +
                        t.patch / 8. + 1500;
    plan.shared = static_cast<int>(shared);
    plan.blocks = std::min(t.tiles, slots) * t.column_blocks;
    plan.cost = tile * CeilDivide(t.tiles, slots) *
                CeilDivide(plan.blocks, int64_t{resident} * device.processors);
    if (best->blocks == 0 || plan.cost < best->cost) *best = plan;
  });
}

// Plans the forward convolution. `Plan` is a ConvPlan or a BiasReluPlan.
template <typename Plan, typename T, Tf32 kTf32>
Plan PlanForwardBy(const char* op, const GpuDevice& device, const Problem& p) {
  using S = CudaType<T>;
  CAPSOPS_REFUSE_IF(Refusal(p));
  const int64_t columns = p.out_channels * p.pose_columns;
  ForwardPlan<S> plan;
  if (columns <= 32) {
    FindForward<S, kTf32, 32>(p, device, &plan);
  } else {
    FindForward<S, kTf32, 64>(p, device, &plan);
    if (columns > 64) FindForward<S, kTf32, 128>(p, device, &plan);
  }
  if (plan.blocks == 0) return Plan::Refuse("no tile of it fits in shared memory");
  const auto run = [op, plan](const GpuExec& exec, const T* input, const T* weights,
                              const T* bias, T* output, void*) {
    return plan.launch(exec, op, plan, Native(input), Native(weights), Native(bias),
                       Native(output));
  };
  if constexpr (std::is_same_v<Plan, BiasReluPlan<GpuExec, T>>) {
    return Plan::Make(0, run);
  } else {
    return Plan::Make(0, [run](const GpuExec& exec, const T* input, const T* weights,
                               T* output, void* workspace) {
      return run(exec, input, weights, nullptr, output, workspace);
    });
  }
}

// Replaces `best` by the cheapest tiling for 8 kProducts terms if that is cheaper.
template <typename S, Tf32 kTf32, int kProducts>
void FindWeights(const Problem& p, const GpuDevice& device, WeightPlan<S>* best) {
  WeightPlan<S> plan;
  plan.launch = Launch<WeightsKernel<S, kTf32, kProducts>, kWarps * kLanes>;
  WeightTiling& t = plan.tiling;
  Begin(p, 8, &t);
  t.weights = int64_t{t.terms} * t.columns;
  t.term_blocks = CeilDivideInt(t.terms, kProducts * 8);
  t.column_warps = 1;
  while (t.column_warps < kWarps && t.column_warps * kWarpColumns < t.columns) {
    t.column_warps *= 2;
  }
  t.column_blocks = CeilDivideInt(t.columns, t.column_warps * kWarpColumns);
  const int groups = kWarps / t.column_warps;
  const int64_t sums = int64_t{t.term_blocks} * t.column_blocks;
  ForEachTiling(&t, [&] {
    const int64_t shared = kWarps * kStages * kStage<S> * sizeof(S) +
                           int64_t{4} * (2 * t.slots + 2 * kProducts * 8 + t.patch);
    if (shared > device.shared) return;
    t.splits = static_cast<int>(
        std::max<int64_t>(1, std::min({device.processors / sums, t.tiles,
                                       kMaxPartBytes / 4 / groups / t.weights})));
    // All 8 warps multiply together, and read 16 bytes per cycle.
    const double steps = CeilDivide(t.points, kStepPixels * groups);
    const double multiply = steps * kWarps * 2 * kProducts * kProductCycles<kTf32>;
    const double read = t.points * t.column_warps * kWarpColumns * sizeof(S) / 16.;
    plan.shared = static_cast<int>(shared);
    plan.blocks = sums * t.splits;
    plan.cost = (std::max(multiply, read) + 0.3 * std::min(multiply, read) +
                 t.patch / 8. + 2000) *
                    CeilDivide(t.tiles, t.splits) *
                    CeilDivide(plan.blocks, device.processors) +
                1.0 * t.splits * groups * t.weights / device.processors;
    if (best->blocks == 0 || plan.cost < best->cost) *best = plan;
  });
}

// Plans the weight gradient with split-K.
template <typename T, Tf32 kTf32>
ConvPlan<GpuExec, T> PlanWeightsBy(const char* op, const GpuDevice& device,
                                   const Problem& p) {
  using Plan = ConvPlan<GpuExec, T>;
  using S = CudaType<T>;
  CAPSOPS_REFUSE_IF(Refusal(p));
  WeightPlan<S> plan;
  FindWeights<S, kTf32, 4>(p, device, &plan);
  FindWeights<S, kTf32, 8>(p, device, &plan);
  FindWeights<S, kTf32, 12>(p, device, &plan);
  if (plan.blocks == 0) return Plan::Refuse("no tile of it fits in shared memory");
  const WeightTiling& t = plan.tiling;
  return PlanSplitK<T>(op, plan, t.weights, t.splits * (kWarps / t.column_warps));
}

template <typename Plan, typename T>
Plan PlanImage(const char* op, const GpuExec& exec, const Problem& p, bool gradient) {
  return PlanWithPrecision<Plan, T>(exec, [&](auto precision) {
    if (gradient) return Plan::Refuse("it makes no gradient of the input");
    return PlanForwardBy<Plan, T, precision.value>(op, exec.device, p);
  });
}

#define CAPSOPS_INSTANTIATE(T)                                              \
  template ConvPlan<GpuExec, T> PlanImage<ConvPlan<GpuExec, T>, T>(         \
      const char*, const GpuExec&, const Problem&, bool);                   \
  template BiasReluPlan<GpuExec, T> PlanImage<BiasReluPlan<GpuExec, T>, T>( \
      const char*, const GpuExec&, const Problem&, bool);
CAPSOPS_FOR_EACH_TYPE(CAPSOPS_INSTANTIATE)
#undef CAPSOPS_INSTANTIATE
CAPSOPS_DEFINE_PLAN_WEIGHTS

}  // namespace capsops::capsule_conv::gather
