// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The Path of capsule_conv/tensor_cores.cuh for mma.sync.
#pragma once

#include <string>

#include "cuda/capsule_conv/mma/pack.cuh"
#include "cuda/capsule_conv/tasks.cuh"

namespace capsops::capsule_conv::mma {

// The cheapest plan of small.cuh; without tiles if it cannot do the task.
template <typename S, Tf32 kTf32>
TilePlan<S> PlanSmall(const Task& task, const GpuDevice& device);

// The cheapest plan of product.cuh. Both functions are in product.cu.cc.
template <typename S, Tf32 kTf32>
TilePlan<S> PlanTask(const Task& task, const GpuDevice& device);

struct Path {
  using TapColumns = void;

  static std::string Refusal(const Task&, const GpuDevice&) { return ""; }

  template <typename S, Tf32 kTf32, bool kPlain>
  static TilePlan<S> Plan(const Task& task, const GpuDevice& device) {
    TilePlan<S> plan;
    if constexpr (kPlain) plan = PlanSmall<S, kTf32>(task, device);
    return plan.tiles > 0 ? plan : PlanTask<S, kTf32>(task, device);
  }

  template <typename S, Tf32 kTf32, typename Weights>
  static LaunchError Pack(const GpuExec& exec, const char* op, const Filter& filter,
                          const TilePlan<S>& plan, const Weights& weights,
                          uint32_t* packed) {
    return PackFilter<S, kTf32>(exec, op, filter, plan.product, plan.columns, weights,
                                packed);
  }
};

}  // namespace capsops::capsule_conv::mma
