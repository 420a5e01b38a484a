// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Chooses the kernel path of convolutions with coded weights. They run as capsule
// convolutions with one-row poses: on tensor cores with a filter packed from codes, or
// in FMA with decoded weights. Powers of two are exact in every type. So if TF32 is not
// allowed, only the activations are split: into two TF32 parts for mma, and for wgmma
// into three bfloat16 parts, which is twice as fast and loses nothing. 16-bit images
// that no tensor-core path accepts are widened to float.
#include <type_traits>
#include <utility>
#include <vector>

#include "cc/launch/capsule_conv.h"
#include "cc/launch/inq_conv.h"
#include "cuda/capsule_conv/tasks.cuh"
#include "cuda/inq_conv/paths.h"

namespace capsops::inq_conv {

Convolution::Convolution(const Problem& p, bool backward)
    : op(backward ? "InqConvBackpropInput" : "InqConv"),
      backward(backward),
      levels(1 << (p.bits - 2)),
      codes(p.kernel_height * p.kernel_width * p.in_channels * p.out_channels),
      source(p.batch * p.in_height * p.in_width * p.in_channels),
      target(p.batch * p.out_height * p.out_width * p.out_channels) {
  // On tensor cores a pose has kQuad channels if it divides their number, else all. The
  // filter's strides index codes, [taps][in_channels][out_channels].
  using capsule_conv::kQuad;
  const int64_t in = p.in_channels % kQuad == 0 ? kQuad : p.in_channels;
  const int64_t out = p.out_channels % kQuad == 0 ? kQuad : p.out_channels;
  const capsule_conv::Problem quads = AsPoses(p, in, out);
  tasks = backward ? InputGradientTasks(quads) : ForwardTasks(quads);
  for (capsule_conv::Task& task : tasks.tasks) {
    capsule_conv::Filter& filter = task.filter;
    filter.tap = p.in_channels * p.out_channels;
    filter.channel = in * p.out_channels;
    filter.element = p.out_channels;
    filter.out_channel = out;
    filter.out_element = 1;
    if (backward) {
      std::swap(filter.channel, filter.out_channel);
      std::swap(filter.element, filter.out_element);
    }
  }
  // AsPoses() divides by the channels, of which an empty tensor may have none.
  const bool empty = source == 0 || target == 0;
  poses = empty ? AsPoses(p, 1, 1) : AsPoses(p, p.in_channels, p.out_channels);
  if (backward) std::swap(source, target);
}

namespace {

template <typename T>
InqPlan<GpuExec, T> Widened(const GpuExec& exec, const Convolution& conv);

// The kernel paths, in order of preference.
template <typename T>
std::vector<Candidate<InqPlan<GpuExec, T>>> Candidates(const GpuExec& exec,
                                                       const Convolution& conv) {
  const auto by_wgmma = [&] { return wgmma::PlanConvolution<T>(exec, conv); };
  const auto by_mma = [&] { return mma::PlanConvolution<T>(exec, conv); };
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
    const auto by_fma = [&] { return fma::PlanConvolution<T>(exec, conv); };
    return {{"wgmma", by_wgmma}, {"mma", by_mma}, {"fma", by_fma}};
  } else {
    const auto widened = [&] { return Widened<T>(exec, conv); };
    return {{"wgmma", by_wgmma}, {"mma", by_mma}, {"widened", widened}};
  }
}

// Plans a 16-bit convolution with the first float path that can do it.
template <typename T>
InqPlan<GpuExec, T> Widened(const GpuExec& exec, const Convolution& conv) {
  using Plan = InqPlan<GpuExec, T>;
  GpuExec exact = exec;
  exact.tf32 = true;  // 16-bit numbers are exact in TF32
  InqPlan<GpuExec, float> plan;
  for (const auto& candidate : Candidates<float>(exact, conv)) {
    plan = candidate.plan();
    if (plan.run) break;
  }
  if (!plan.run) return Plan::Refuse(plan.error.text());
  return widened::PlanConvolution<T>(conv, plan);
}

template <typename T>
InqPlan<GpuExec, T> PlanAny(const GpuExec& exec, const Convolution& conv) {
  return Choose<InqPlan<GpuExec, T>>(conv.op, Candidates<T>(exec, conv));
}

}  // namespace

template <typename T>
InqPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& problem) {
  return PlanAny<T>(exec, Convolution(problem, false));
}

template <typename T>
InqPlan<GpuExec, T> PlanBackpropInput(const GpuExec& exec, const Problem& problem) {
  return PlanAny<T>(exec, Convolution(problem, true));
}

CAPSOPS_INSTANTIATE_PLANNER(PlanForward, InqPlan, GpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanBackpropInput, InqPlan, GpuExec)

}  // namespace capsops::inq_conv
