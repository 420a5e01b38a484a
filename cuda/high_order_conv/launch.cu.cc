// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Chooses the kernel path, the first of these that accepts the problem. All but the
// last have further conditions.
//   rows      channels last, one group of 1 or 3 channels; 3x3, 5x5 or 7x7
//   planes    channels first
//   channels  channels last, groups of a multiple of 4 channels; 3x3, 5x5 or 7x7
//   pixels    channels last
//   general   everything
//
// High-order convolution is bound by the traffic of filters: each pixel has its own, of
// kernel_height x kernel_width elements per group. docs/high_order_conv.md describes
// the kernels.
#include "cc/launch/high_order_conv.h"
#include "cuda/high_order_conv/paths.h"

namespace capsops::high_order_conv {

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  return Choose<ForwardPlan<GpuExec, T>>(
      Forward::kName, {{"rows", [&] { return rows::PlanForward<T>(exec, p); }},
                       {"planes", [&] { return planes::PlanForward<T>(exec, p); }},
                       {"channels", [&] { return channels::PlanForward<T>(exec, p); }},
                       {"pixels", [&] { return pixels::PlanForward<T>(exec, p); }},
                       {"general", [&] { return general::PlanForward<T>(exec, p); }}});
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& p) {
  return Choose<BackwardPlan<GpuExec, T>>(
      Backward::kName,
      {{"rows", [&] { return rows::PlanBackward<T>(exec, p); }},
       {"planes", [&] { return planes::PlanBackward<T>(exec, p); }},
       {"channels", [&] { return channels::PlanBackward<T>(exec, p); }},
       {"pixels", [&] { return pixels::PlanBackward<T>(exec, p); }},
       {"general", [&] { return general::PlanBackward<T>(exec, p); }}});
}

CAPSOPS_INSTANTIATE_PATH(GpuExec)

}  // namespace capsops::high_order_conv
