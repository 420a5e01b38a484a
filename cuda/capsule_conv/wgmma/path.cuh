// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The Path of capsule_conv/tensor_cores.cuh for wgmma.
#pragma once

#include <string>
#include <type_traits>

#include "cuda/capsule_conv/tasks.cuh"
#include "cuda/capsule_conv/wgmma/across.cuh"
#include "cuda/capsule_conv/wgmma/pack.cuh"

namespace capsops::capsule_conv::wgmma {

// The operand type: split floats become three parts of bfloat16.
template <typename S, Tf32 kTf32>
using OperandOf = std::conditional_t<kTf32 == Tf32::kSplitLeft || kTf32 == Tf32::kSplit,
                                     __nv_bfloat16, S>;
template <Tf32 kTf32>
constexpr int kFilterParts = kTf32 == Tf32::kSplit ? 3 : 1;

// The cheapest plan of all kernel shapes. This and Path::Refusal are in product.cu.cc.
template <typename S, Tf32 kTf32>
TilePlan<S> PlanTask(const Task& task, const GpuDevice& device);

struct Path {
  using TapColumns = wgmma::TapColumns;

  static std::string Refusal(const Task& task, const GpuDevice& device);

  template <typename S, Tf32 kTf32, bool kPlain>
  static TilePlan<S> Plan(const Task& task, const GpuDevice& device) {
    return PlanTask<S, kTf32>(task, device);
  }

  template <typename S, Tf32 kTf32, typename Weights>
  static LaunchError Pack(const GpuExec& exec, const char* op, const Filter& filter,
                          const TilePlan<S>& plan, const Weights& weights,
                          uint32_t* packed) {
    return PackUnits<OperandOf<S, kTf32>, kFilterParts<kTf32>>(
        exec, op, filter, plan.product, plan.columns, weights, packed);
  }
};

}  // namespace capsops::capsule_conv::wgmma
