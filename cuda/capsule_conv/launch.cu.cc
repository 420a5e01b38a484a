// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Chooses the kernel path of each capsule convolution. All paths compute an implicit
// GEMM on the tensors' own layout: rows are output pixels and pose rows, the
// contraction runs over taps, channels and the poses' inner dimension, columns are
// output channels and pose columns.
#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "cc/launch/capsule_conv.h"
#include "cuda/capsule_conv/paths.h"
#include "cuda/capsule_conv/tasks.cuh"

namespace capsops::capsule_conv {
namespace {

// Moves "tma", the first candidate, behind others that are faster:
// - In a small problem its two launches take longer than other paths with whole quads,
//   unless these launch once per phase (`phases`), and longer than "gather", which does
//   not pack the filter.
// - If a source pixel has few numbers (`read`), most of a step is padding.
template <typename Plan>
void ReorderTma(const Problem& p, int64_t read, bool phases,
                std::vector<Candidate<Plan>>* candidates) {
  const auto first = candidates->begin();
  const bool quads = p.pose_inner % kQuad == 0 && p.pose_columns % kQuad == 0;
  if (HasFewProducts(p) && quads && !phases) {
    std::rotate(first, first + 1, candidates->end() - 1);  // moves it before "fma"
  } else if (HasFewProducts(p) || read < 32) {
    std::iter_swap(first, first + 1);  // moves it behind "gather"
  }
}

// Plans the forward convolution or the input gradient, as a ConvPlan or BiasReluPlan.
template <typename T, typename Plan = ConvPlan<GpuExec, T>>
Plan PlanImage(const char* op, const GpuExec& exec, const Problem& p, bool gradient) {
  const auto finished = [&](const ConvPlan<GpuExec, T>& conv) {
    if constexpr (std::is_same_v<Plan, ConvPlan<GpuExec, T>>) {
      return conv;
    } else {
      return AddBiasRelu<T>(op, p, conv);
    }
  };
  std::vector<Candidate<Plan>> candidates = {
      {"tma", [&] { return finished(tma::PlanImage<T>(op, exec, p, gradient)); }},
      {"gather", [&] { return gather::PlanImage<Plan, T>(op, exec, p, gradient); }},
      {"wgmma", [&] { return finished(wgmma::PlanImage<T>(op, exec, p, gradient)); }},
      {"mma", [&] { return finished(mma::PlanImage<T>(op, exec, p, gradient)); }},
      {"fma", [&] { return finished(fma::PlanImage<T>(op, exec, p, gradient)); }}};
  if (!std::is_same_v<T, double>) {
    const int64_t read =
        gradient ? p.out_channels * p.pose_columns : p.in_channels * p.pose_inner;
    const bool phases = gradient && InputGradientTasks(p).tasks.size() > 1;
    ReorderTma(p, read, phases, &candidates);
  }
  return Choose<Plan>(op, candidates);
}

}  // namespace

template <typename T>
ConvPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  return PlanImage<T>(Forward::kName, exec, p, false);
}

template <typename T>
BiasReluPlan<GpuExec, T> PlanForwardBiasRelu(const GpuExec& exec, const Problem& p) {
  return PlanImage<T, BiasReluPlan<GpuExec, T>>(ForwardBiasRelu::kName, exec, p, false);
}

template <typename T>
ConvPlan<GpuExec, T> PlanBackpropInput(const GpuExec& exec, const Problem& p) {
  return PlanImage<T>(BackpropInput::kName, exec, p, true);
}

template <typename T>
ConvPlan<GpuExec, T> PlanBackpropWeights(const GpuExec& exec, const Problem& p) {
  std::vector<Candidate<ConvPlan<GpuExec, T>>> candidates = {
      {"tma", [&] { return tma::PlanWeights<T>(exec, p); }},
      {"gather", [&] { return gather::PlanWeights<T>(exec, p); }},
      {"wgmma", [&] { return wgmma::PlanWeights<T>(exec, p); }},
      {"mma", [&] { return mma::PlanWeights<T>(exec, p); }},
      {"fma", [&] { return fma::PlanWeights<T>(exec, p); }}};
  if (!wgmma::FillsBlocks(p)) std::swap(candidates[2], candidates[3]);
  ReorderTma(p, p.in_channels * p.pose_inner, false, &candidates);
  return Choose(BackpropWeights::kName, candidates);
}

CAPSOPS_INSTANTIATE_PLANNER(PlanForward, ConvPlan, GpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanForwardBiasRelu, BiasReluPlan, GpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanBackpropInput, ConvPlan, GpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanBackpropWeights, ConvPlan, GpuExec)

}  // namespace capsops::capsule_conv
