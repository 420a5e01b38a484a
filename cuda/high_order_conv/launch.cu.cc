// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// High-order convolution is bound by the traffic of filters, kernel_height x
// kernel_width elements for each group of a pixel; docs/high_order_conv.md describes
// the kernels.
#include "cc/launch/high_order_conv.h"
#include "cuda/high_order_conv/channels_launch.cuh"
#include "cuda/high_order_conv/general.cuh"
#include "cuda/high_order_conv/pixels.cuh"
#include "cuda/high_order_conv/planes.cuh"
#include "cuda/high_order_conv/rows_launch.cuh"

namespace capsops::high_order_conv {

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  return Choose<ForwardPlan<GpuExec, T>>(
      kForwardName, {{"rows", [&] { return rows::PlanForward<T>(exec, p); }},
                     {"planes", [&] { return planes::PlanForward<T>(p); }},
                     {"channels", [&] { return channels::PlanForward<T>(exec, p); }},
                     {"pixels", [&] { return pixels::PlanForward<T>(p); }},
                     {"general", [&] { return general::PlanForward<T>(p); }}});
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& p) {
  return Choose<BackwardPlan<GpuExec, T>>(
      kBackwardName, {{"rows", [&] { return rows::PlanBackward<T>(exec, p); }},
                      {"planes", [&] { return planes::PlanBackward<T>(p); }},
                      {"channels", [&] { return channels::PlanBackward<T>(exec, p); }},
                      {"pixels", [&] { return pixels::PlanBackward<T>(p); }},
                      {"general", [&] { return general::PlanBackward<T>(p); }}});
}

CAPSOPS_INSTANTIATE_PLANNER(PlanForward, ForwardPlan, GpuExec)
CAPSOPS_INSTANTIATE_PLANNER(PlanBackward, BackwardPlan, GpuExec)

}  // namespace capsops::high_order_conv
