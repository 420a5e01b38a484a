// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and launches the kernel of wgmma/weights.cuh.
#include "cuda/capsule_conv/wgmma/weights.cuh"

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "cc/launch/capsule_conv.h"
#include "cuda/capsule_conv/parts.cuh"
#include "cuda/capsule_conv/paths.h"
#include "cuda/capsule_conv/tasks.cuh"
#include "cuda/common/tensor_cores.cuh"

namespace capsops::capsule_conv::wgmma {

// A plan of the gradient; without blocks if it does not fit.
template <typename W>
struct WeightPlan {
  using S = typename W::S;
  using Launch = LaunchError (*)(const GpuExec& exec, const char* op,
                                 const WeightPlan& plan, const S* input, const S* grad,
                                 float* parts);

  W sums{};
  TmaTensor<4> input;
  TmaTensor<3> grad;
  int64_t blocks = 0;
  int shared = 0;
  double cost = 0;  // estimate in cycles
  Launch launch = nullptr;
};

template <typename W, int kUnits, typename S = typename W::S>
LaunchError LaunchWeights(const GpuExec& exec, const char* op,
                          const WeightPlan<W>& plan, const S* input, const S* grad,
                          float* parts) {
  constexpr auto kKernel = WeightKernel<W, kUnits>;
  CUtensorMap input_map, grad_map;
  CAPSOPS_RETURN_IF_ERROR(CheckGrid(op, plan.blocks));
  CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, input, plan.input, &input_map));
  CAPSOPS_RETURN_IF_ERROR(MakeTensorMap(op, grad, plan.grad, &grad_map));
  CAPSOPS_RETURN_IF_ERROR(CheckRegisters<kKernel>(op, kWeightRegisters));
  return LaunchDependent<kKernel>(op, dim3(plan.blocks), kWeightThreads, plan.shared,
                                  exec, input_map, grad_map, plan.sums, parts);
}

// Tensor cores truncate sums of 16-bit products. With up to this many pixels, the error
// stays at about one unit in the last place of float16.
constexpr int64_t kMaxPixels = 1 << 18;

// Chooses slots and splits, and keeps the plan if it is the cheapest so far.
template <typename W>
void Consider(const GpuDevice& device, WeightPlan<W> plan, WeightPlan<W>* best) {
  using S = typename W::S;
  W& w = plan.sums;
  w.box_width =
      (w.strip - 1) * w.moves.stride_x + (w.x_taps - 1) * w.moves.dilation_x + 1;
  if (w.box_width > 256) return;
  // Barriers and alignment, then the slots, or the staged sums that replace them.
  const auto shared = [&] {
    return 2048 +
           std::max(int64_t{w.row_slots} * w.RowBytes() +
                        int64_t{w.grad_slots} * w.GradBytes(),
                    int64_t{kConsumerGroups} * kWeightUnits<W::kParts> * kUnitBytes);
  };
  w.row_slots = w.y_taps + 1;
  w.grad_slots = 2;
  if (shared() > device.shared) return;
  for (bool row = true; w.grad_slots < 6; row = !row) {
    int& slots = row ? w.row_slots : w.grad_slots;
    ++slots;
    if (shared() <= device.shared) continue;
    --slots;
    break;
  }
  plan.shared = static_cast<int>(shared());
  // Cycles of a line, the largest of: 32 per product; one per 128 bytes of
  // shared-memory traffic, with input rows at least three times; one per 28 bytes from
  // L2.
  constexpr int kPixels = kProductPixels<S>, kParts = W::kParts;
  const double pixels = 1.0 * w.width / w.strips;  // pixels per line
  const double products =
      (pixels + kPixels - 1) / kPixels * w.Units() * w.Halves() * (kParts > 1 ? 3 : 1);
  const double bytes = products * 2048 + pixels * 4 * kPixelBytes<S> + w.GradBytes() +
                       (2.0 + kParts) * w.PartBytes();
  const double line = 200 + std::max({32 * products, bytes / 128,
                                      (w.PartBytes() + w.GradBytes()) / 28.0});
  const int64_t tiles = int64_t{w.x_tiles} * w.y_tiles * w.block_tiles * w.row_tiles;
  const int64_t most =
      std::min<int64_t>(CeilDivide(4 * device.processors, tiles), w.lines);
  for (int64_t splits = 1; splits <= most; ++splits) {
    if (splits > 1 && splits * w.weights > kMaxPartBytes / 4) break;
    const int64_t lines = CeilDivide(w.lines, splits);
    if (!std::is_same_v<S, float> && lines * w.strip > kMaxPixels) continue;
    plan.cost = CeilDivide(tiles * splits, device.processors) * (lines * line + 5000) +
                1.0 * splits * w.weights / device.processors;
    if (best->blocks > 0 && plan.cost >= best->cost) continue;
    *best = plan;
    best->sums.splits = static_cast<int>(splits);
    best->blocks = tiles * splits;
  }
}

// Considers all tiles with 64 rows, or with 128.
template <typename W>
void FindTiles(const GpuDevice& device, const Problem& p, WeightPlan<W> plan,
               WeightPlan<W>* best) {
  W& w = plan.sums;
  const int channel_blocks = CeilDivideInt(w.channels, kWeightChannels);
  const int units = kWeightUnits<W::kParts> * (w.halves ? 1 : kConsumerGroups);
  const bool neighbors = w.moves.stride_y == 1 && w.moves.dilation_y == 1;
  w.row_tiles = CeilDivideInt(w.out_channels * w.columns, w.Halves() * kWeightRows);
  for (w.blocks = 1; w.blocks <= std::min(channel_blocks, units); ++w.blocks) {
    w.block_tiles = CeilDivideInt(channel_blocks, w.blocks);
    const int most_x = std::min(w.moves.kernel_width, units / w.blocks);
    for (w.x_taps = 1; w.x_taps <= most_x; ++w.x_taps) {
      w.x_tiles = CeilDivideInt(w.moves.kernel_width, w.x_taps);
      const int rest = neighbors ? units / (w.blocks * w.x_taps) : 1;
      for (w.y_taps = 1; w.y_taps <= std::min(w.moves.kernel_height, rest);
           ++w.y_taps) {
        w.y_tiles = CeilDivideInt(w.moves.kernel_height, w.y_taps);
        for (int strips = 1; strips <= 32; ++strips) {
          w.strip = static_cast<int>(
              RoundUp(CeilDivideInt(w.width, strips), kProductPixels<typename W::S>));
          w.strips = CeilDivideInt(w.width, w.strip);
          const int64_t lines = p.batch * w.strips * w.height;
          if (w.strips < strips || lines > INT32_MAX) continue;
          w.lines = static_cast<int>(lines);
          Consider(device, plan, best);
        }
      }
    }
  }
}

// The tensor map of the input: boxes of `width` pixels of a row by 16 channels; two
// channels of float poses are 128 bytes. If `by_pairs` (16-bit types), pixels are
// inside of channel pairs; else channels are inside of pixels.
inline TmaTensor<4> MapLines(const Problem& p, int width, bool by_pairs) {
  const uint64_t pairs = p.in_channels / 2, in_width = p.in_width;
  const uint64_t rows = p.batch * p.in_height;
  TmaTensor<4> map({32, pairs, in_width, rows});
  map.box = {32, kChannelPairs, static_cast<uint32_t>(width), 1};
  map.swizzle = by_pairs ? 0 : kSwizzleBytes;
  if (by_pairs) {
    std::swap(map.size[1], map.size[2]);
    std::swap(map.apart[0], map.apart[1]);
    std::swap(map.box[1], map.box[2]);
  }
  return map;
}

// The tensor map of `grad`: boxes of `strip` pixels of a row by 64 rows of the product.
inline TmaTensor<3> MapGrad(const Problem& p, int strip) {
  const uint64_t pixel = p.out_channels * 4 * p.pose_columns, width = p.out_width;
  const uint64_t rows = p.batch * p.out_height;
  TmaTensor<3> map({pixel, width, rows});
  map.box = {kWeightRows * 4, static_cast<uint32_t>(strip), 1};
  map.swizzle = 0;
  return map;
}

// The launch function for up to `units` units per consumer.
template <typename W, int kUnits = kWeightUnits<W::kParts>>
typename WeightPlan<W>::Launch SelectLaunch(int units) {
  if constexpr (kUnits > 1) {
    if (units < kUnits) return SelectLaunch<W, kUnits - 1>(units);
  }
  return LaunchWeights<W, kUnits>;
}

// The cheapest plan of all tiles.
template <typename W>
WeightPlan<W> FindWeightPlan(const GpuDevice& device, const Problem& p) {
  WeightPlan<W> plan, best;
  W& w = plan.sums;
  w.width = static_cast<int>(p.out_width);
  w.height = static_cast<int>(p.out_height);
  w.moves = TapMoves(p);
  w.in_height = static_cast<int>(p.in_height);
  w.in_rows = static_cast<int>(p.batch * p.in_height);
  w.channels = static_cast<int>(p.in_channels);
  w.out_channels = static_cast<int>(p.out_channels);
  w.columns = static_cast<int>(p.pose_columns);
  w.weights = static_cast<int>(p.kernel_height * p.kernel_width * p.in_channels *
                               p.out_channels * 4 * p.pose_columns);
  for (const bool halves : {false, true}) {
    w.halves = halves;
    FindTiles(device, p, plan, &best);
  }
  if (best.blocks == 0) return best;
  const W& found = best.sums;
  const int of_group = CeilDivideInt(found.Units(), found.halves ? 1 : kConsumerGroups);
  best.launch = SelectLaunch<W>(of_group);
  best.input = MapLines(p, found.box_width, !std::is_same_v<typename W::S, float>);
  best.grad = MapGrad(p, found.strip);
  best.input.rounded = best.grad.rounded = W::kParts == 1;
  return best;
}

// Why this kernel cannot do the problem; else empty.
template <typename S>
std::string RefuseWeights(const Problem& p, const GpuDevice& device) {
  const std::string refusal = RefuseSizes(p);
  if (!refusal.empty()) return refusal;
  if (p.pose_depth != 1 || p.pose_rows != 4 || p.pose_inner != 4) {
    return "capsules of the input are no 4x4 matrices";
  }
  if (p.pose_columns % 2 != 0 || kWeightRows % p.pose_columns != 0) {
    return "the columns of poses, " + std::to_string(p.pose_columns) +
           ", are no even divisor of 64";
  }
  if (p.in_channels % 2 != 0) {
    return "the number of input channels, " + std::to_string(p.in_channels) +
           ", is odd";
  }
  if (!std::is_same_v<S, float> && p.stride_width != 1) {
    return "the stride across, " + std::to_string(p.stride_width) + ", is not 1";
  }
  constexpr int64_t kMax = int64_t{1} << 30;
  if (p.in_channels * p.out_channels * 4 * p.pose_columns >
      kMax / (p.kernel_height * p.kernel_width)) {
    return "32 bits do not count the weights";
  }
  if (p.batch > kMax / std::max(p.in_height, p.out_height)) {
    return "32 bits do not count the rows of all images";
  }
  return HasWgmma(device) ? "" : "it needs compute capability 9.0";
}

bool FillsBlocks(const Problem& p) {
  return 2 * p.in_channels >= kWeightChannels &&
         2 * p.out_channels * p.pose_columns >= kWeightRows && !HasFewProducts(p);
}

// Plans the gradient with split-K.
template <typename T, Tf32 kTf32>
ConvPlan<GpuExec, T> PlanWeightsBy(const char* op, const GpuDevice& device,
                                   const Problem& p) {
  using Plan = ConvPlan<GpuExec, T>;
  using S = CudaType<T>;
  CAPSOPS_REFUSE_IF(RefuseWeights<S>(p, device));
  using Sums = WeightParams<S, kTf32 == Tf32::kSplit ? 2 : 1>;
  const WeightPlan<Sums> plan = FindWeightPlan<Sums>(device, p);
  if (plan.blocks == 0) return Plan::Refuse("no tile of it fits in shared memory");
  return PlanSplitK<T>(op, plan, plan.sums.weights, plan.sums.splits);
}

CAPSOPS_DEFINE_PLAN_WEIGHTS

}  // namespace capsops::capsule_conv::wgmma
