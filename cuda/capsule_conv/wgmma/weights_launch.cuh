// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans and launches the weight gradient of wgmma/weights.cuh.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_WGMMA_WEIGHTS_LAUNCH_CUH_
#define CAPSOPS_CUDA_CAPSULE_CONV_WGMMA_WEIGHTS_LAUNCH_CUH_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>

#include "cc/launch/capsule_conv.h"
#include "cuda/capsule_conv/parts.cuh"
#include "cuda/capsule_conv/tasks.cuh"
#include "cuda/capsule_conv/wgmma/weights.cuh"
#include "cuda/common/tensor_cores.cuh"

namespace capsops::capsule_conv::wgmma {

// The gradient as a kernel does it; no blocks where it does not fit.
struct WeightPlan {
  using Launch = LaunchError (*)(const GpuExec& exec, const char* op,
                                 const WeightPlan& plan, const float* input,
                                 const float* grad, float* parts);

  WeightSums sums{};
  MappedTensor<4> input;
  MappedTensor<3> grad;
  int64_t blocks = 0;
  int shared = 0;
  double cost = 0;  // cycles, roughly
  Launch launch = nullptr;
};

template <int kUnits>
LaunchError LaunchWeights(const GpuExec& exec, const char* op, const WeightPlan& plan,
                          const float* input, const float* grad, float* parts) {
  constexpr auto kKernel = WeightKernel<kUnits>;
  CUtensorMap input_map, grad_map;
  LaunchError error = CheckGrid(op, plan.blocks);
  if (error.empty()) error = MakeTensorMap(op, input, plan.input, &input_map);
  if (error.empty()) error = MakeTensorMap(op, grad, plan.grad, &grad_map);
  if (error.empty()) error = AllowShared<kKernel>(exec, op);
  if (error.empty()) error = CheckRegisters<kKernel>(op, kWeightRegisters);
  if (!error.empty()) return error;
  return LaunchOverlapped(op, kKernel, dim3(plan.blocks), kWeightThreads, plan.shared,
                          exec, input_map, grad_map, plan.sums, parts);
}

// Fills in the slots and how many blocks share the lines, and keeps the plan if it is
// the cheapest so far.
inline void Consider(const GpuDevice& device, WeightPlan plan, WeightPlan* best) {
  WeightSums& w = plan.sums;
  w.box_width = (w.strip - 1) * w.stride_x + (w.x_taps - 1) * w.dilation_x + 1;
  if (w.box_width > 256) return;
  // Barriers, and what aligns them, are before the slots or the staged sums.
  const auto shared = [&] {
    return 2048 + std::max(int64_t{w.row_slots} * w.RowBytes() +
                               int64_t{w.grad_slots} * w.GradBytes(),
                           int64_t{kWeightGroups} * kWeightUnits * kUnitBytes);
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
  // A line takes 32 cycles for each product; one for 128 bytes of shared memory that
  // are read or written, rows three times; or one for 28 bytes of the second cache.
  const double products =
      (w.width + w.strips) / 2.0 / w.strips * w.Units() * w.Halves();
  const double bytes = products * 2048 + w.width * 4096.0 / w.strips + w.GradBytes() +
                       3.0 * w.RowBytes();
  const double line = 200 + std::max({32 * products, bytes / 128,
                                      (w.RowBytes() + w.GradBytes()) / 28.0});
  const int64_t tiles = int64_t{w.x_tiles} * w.y_tiles * w.block_tiles * w.row_tiles;
  const int64_t most =
      std::min<int64_t>(CeilDivide(4 * device.processors, tiles), w.lines);
  constexpr int64_t kMostBytes = int64_t{64} << 20;
  for (int64_t splits = 1; splits <= most; ++splits) {
    if (splits > 1 && splits * w.weights > kMostBytes / 4) break;
    plan.cost = CeilDivide(tiles * splits, device.processors) *
                    (CeilDivide(w.lines, splits) * line + 5000) +
                1.0 * splits * w.weights / device.processors;
    if (best->blocks > 0 && plan.cost >= best->cost) continue;
    *best = plan;
    best->sums.splits = static_cast<int>(splits);
    best->blocks = tiles * splits;
  }
}

// Considers all tiles of 64 rows, or of 128.
inline void FindTiles(const GpuDevice& device, const Problem& p, WeightPlan plan,
                      WeightPlan* best) {
  WeightSums& w = plan.sums;
  const auto parts = [](int64_t whole, int64_t part) {
    return static_cast<int>(CeilDivide(whole, part));
  };
  const int channel_blocks = parts(w.channels, kWeightChannels);
  const int units = kWeightUnits * (w.halves ? 1 : kWeightGroups);
  const bool neighbors = w.stride_y == 1 && w.dilation_y == 1;
  w.row_tiles = parts(w.out_channels * w.columns, w.Halves() * kWeightRows);
  for (w.blocks = 1; w.blocks <= std::min(channel_blocks, units); ++w.blocks) {
    w.block_tiles = parts(channel_blocks, w.blocks);
    const int most_x = std::min(w.kernel_width, units / w.blocks);
    for (w.x_taps = 1; w.x_taps <= most_x; ++w.x_taps) {
      w.x_tiles = parts(w.kernel_width, w.x_taps);
      const int rest = neighbors ? units / (w.blocks * w.x_taps) : 1;
      for (w.y_taps = 1; w.y_taps <= std::min(w.kernel_height, rest); ++w.y_taps) {
        w.y_tiles = parts(w.kernel_height, w.y_taps);
        for (int strips = 1; strips <= 32; ++strips) {
          w.strip = parts(parts(w.width, strips), 2) * 2;
          w.strips = parts(w.width, w.strip);
          const int64_t lines = p.batch * w.strips * w.height;
          if (w.strips < strips || lines > INT32_MAX) continue;
          w.lines = static_cast<int>(lines);
          Consider(device, plan, best);
        }
      }
    }
  }
}

// The cheapest plan.
inline WeightPlan FindWeightPlan(const GpuDevice& device, const Problem& p) {
  WeightPlan plan, best;
  WeightSums& w = plan.sums;
  w.width = static_cast<int>(p.out_width);
  w.height = static_cast<int>(p.out_height);
  w.kernel_height = static_cast<int>(p.kernel_height);
  w.kernel_width = static_cast<int>(p.kernel_width);
  w.in_height = static_cast<int>(p.in_height);
  w.in_rows = static_cast<int>(p.batch * p.in_height);
  w.stride_y = static_cast<int>(p.stride_height);
  w.stride_x = static_cast<int>(p.stride_width);
  w.dilation_y = static_cast<int>(p.dilation_height);
  w.dilation_x = static_cast<int>(p.dilation_width);
  w.pad_y = static_cast<int>(p.pad_top);
  w.pad_x = static_cast<int>(p.pad_left);
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
  const WeightSums& found = best.sums;
  constexpr WeightPlan::Launch kLaunches[] = {LaunchWeights<1>, LaunchWeights<2>,
                                              LaunchWeights<3>, LaunchWeights<4>,
                                              LaunchWeights<5>};
  static_assert(std::size(kLaunches) == kWeightUnits);
  best.launch =
      kLaunches[CeilDivide(found.Units(), found.halves ? 1 : kWeightGroups) - 1];
  // Two channels are 128 bytes.
  const uint64_t pairs = p.in_channels / 2, in_width = p.in_width;
  const uint64_t in_rows = p.batch * p.in_height;
  best.input.size = {32, pairs, in_width, in_rows};
  best.input.apart = {32, pairs * 32, in_width * pairs * 32};
  best.input.box = {32, kWeightChannels / 2, static_cast<uint32_t>(found.box_width), 1};
  best.input.every = {1, 1, 1, 1};
  const uint64_t pixel = p.out_channels * 4 * p.pose_columns, out_width = p.out_width;
  const uint64_t out_rows = p.batch * p.out_height;
  best.grad.size = {pixel, out_width, out_rows};
  best.grad.apart = {pixel, out_width * pixel};
  best.grad.box = {kWeightRows * 4, static_cast<uint32_t>(found.strip), 1};
  best.grad.every = {1, 1, 1};
  best.grad.swizzled = false;
  return best;
}

// Why there is no such product; else empty.
template <Tf32 kTf32>
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
  if (kTf32 == Tf32::kSplit) return "TF32 is not allowed";
  constexpr int64_t kMost = int64_t{1} << 30;
  if (p.in_channels * p.out_channels * 4 * p.pose_columns >
      kMost / (p.kernel_height * p.kernel_width)) {
    return "32 bits do not count the weights";
  }
  if (p.batch > kMost / std::max(p.in_height, p.out_height)) {
    return "32 bits do not count the rows of all images";
  }
  return HasWarpgroups(device) ? "" : "it needs compute capability 9.0";
}

// Whether tiles are full enough, and many enough, to take less time than those of
// `mma`.
inline bool FillsBlocks(const Problem& p) {
  return 2 * p.in_channels >= kWeightChannels &&
         2 * p.out_channels * p.pose_columns >= kWeightRows && !HasFewProducts(p);
}

// The gradient by partial sums in the workspace.
template <Tf32 kTf32>
ConvPlan<GpuExec, float> PlanWeights(const char* op, const GpuDevice& device,
                                     const Problem& p) {
  using Plan = ConvPlan<GpuExec, float>;
  const std::string refusal = RefuseWeights<kTf32>(p, device);
  if (!refusal.empty()) return Plan::Refuse(refusal);
  const WeightPlan plan = FindWeightPlan(device, p);
  if (plan.blocks == 0) return Plan::Refuse("no tile of it fits in shared memory");
  return PlanByParts<float>(op, plan, plan.sums.weights, plan.sums.splits);
}

}  // namespace capsops::capsule_conv::wgmma

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_WGMMA_WEIGHTS_LAUNCH_CUH_
