// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Convolution with coded weights by a path of cuda/capsule_conv/tensor_cores.cuh.
#pragma once

#include <string>
#include <type_traits>

#include "cc/launch/inq_conv.h"
#include "cuda/capsule_conv/tensor_cores.cuh"
#include "cuda/inq_conv/codes.cuh"
#include "cuda/inq_conv/paths.h"

namespace capsops::inq_conv {

template <typename Path, typename T>
InqPlan<GpuExec, T> PlanTensorCores(const GpuExec& exec, const Convolution& conv) {
  using Plan = InqPlan<GpuExec, T>;
  if (std::is_same_v<T, Float16> && conv.levels > 16) {
    return Plan::Refuse("float16 does not have " + std::to_string(conv.levels) +
                        " powers of two");
  }
  return PlanWithPrecision<Plan, T, Tf32::kSplitLeft>(exec, [&](auto precision) {
    using S = CudaType<T>;
    const capsule_conv::PlannedTasks<Path, S, precision.value, CodedWeights<S>>
        products(conv.tasks, exec.device);
    CAPSOPS_REFUSE_IF(products.refusal());
    return Plan::Make(
        products.workspace(),
        [op = conv.op, levels = conv.levels, products](
            const GpuExec& exec, const T* source, const uint8_t* codes,
            int32_t top_exponent, T* target, void* workspace) {
          const Exponents exponents = Exponents::Of<S>(top_exponent, levels);
          const CodedWeights<S> weights{codes, levels, exponents.top};
          return products.Run(exec, op, Native(source), weights, Native(target),
                              workspace, exponents.scale());
        });
  });
}

}  // namespace capsops::inq_conv
