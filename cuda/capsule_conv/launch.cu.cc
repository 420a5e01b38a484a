// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Chooses the kernel path of each capsule convolution. All paths compute an implicit
// GEMM on the tensors' own layout: rows are output pixels and pose rows, the
// contraction runs over taps, channels and the poses' inner dimension, columns are
// output channels and pose columns.
#include <type_traits>

#include "cc/launch/capsule_conv.h"
#include "cuda/capsule_conv/paths.h"
#include "cuda/capsule_conv/tasks.cuh"

namespace capsops::capsule_conv {
namespace {

// Conditions of the rows of "tma" in the tables below. It is the fastest path, with two
// exceptions:
// - In a small problem its two launches take longer than "gather", which does not pack
//   the filter, and longer than the other paths if poses are whole quads. But in an
//   input gradient of several phases, the other paths launch once per phase (`phases`).
// - If a source pixel has few elements (`read`), most of a step is padding.
struct TmaIsFaster {
  bool than_all, than_quads;

  TmaIsFaster(const Problem& p, int64_t read, bool phases) {
    const bool quads = p.pose_inner % kQuad == 0 && p.pose_columns % kQuad == 0;
    than_all = !HasFewProducts(p) && read >= 32;
    than_quads = !HasFewProducts(p) || !quads || phases;
  }
};

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
  const auto by_tma = [&] {
    return finished(tma::PlanImage<T>(op, exec, p, gradient));
  };
  const int64_t read =
      gradient ? p.out_channels * p.pose_columns : p.in_channels * p.pose_inner;
  const bool phases = gradient && InputGradientTasks(p).tasks.size() > 1;
  const TmaIsFaster tma(p, read, phases);
  return Choose<Plan>(
      op,
      {{"tma", by_tma, tma.than_all},
       {"gather", [&] { return gather::PlanImage<Plan, T>(op, exec, p, gradient); }},
       {"tma", by_tma, tma.than_quads},
       {"wgmma", [&] { return finished(wgmma::PlanImage<T>(op, exec, p, gradient)); }},
       {"mma", [&] { return finished(mma::PlanImage<T>(op, exec, p, gradient)); }},
       {"tma", by_tma},
       {"fma", [&] { return finished(fma::PlanImage<T>(op, exec, p, gradient)); }}});
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
  const char* const op = BackpropWeights::kName;
  const auto by_tma = [&] { return tma::PlanWeights<T>(op, exec, p); };
  const auto by_wgmma = [&] { return wgmma::PlanWeights<T>(op, exec, p); };
  const TmaIsFaster tma(p, p.in_channels * p.pose_inner, false);
  return Choose<ConvPlan<GpuExec, T>>(
      op, {{"tma", by_tma, tma.than_all},
           {"gather", [&] { return gather::PlanWeights<T>(op, exec, p); }},
           {"tma", by_tma, tma.than_quads},
           {"wgmma", by_wgmma, wgmma::FillsBlocks(p)},
           {"mma", [&] { return mma::PlanWeights<T>(op, exec, p); }},
           {"wgmma", by_wgmma},
           {"tma", by_tma},
           {"fma", [&] { return fma::PlanWeights<T>(op, exec, p); }}});
}

CAPSOPS_INSTANTIATE_PLANNER(PlanForward, ConvPlan, GpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanForwardBiasRelu, BiasReluPlan, GpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanBackpropInput, ConvPlan, GpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanBackpropWeights, ConvPlan, GpuExec)

}  // namespace capsops::capsule_conv
