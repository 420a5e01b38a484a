// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Widens a 16-bit image to float, convolves it, and narrows the result.
#include <cstdint>

#include "cc/launch/inq_conv.h"
#include "cuda/common/types.cuh"
#include "cuda/inq_conv/codes.cuh"
#include "cuda/inq_conv/paths.h"

namespace capsops::inq_conv::widened {

template <typename T>
InqPlan<GpuExec, T> PlanConvolution(const Convolution& conv,
                                    const InqPlan<GpuExec, float>& plan) {
  const int64_t source_bytes = RoundUp(conv.source * sizeof(float), 64);
  const int64_t target_bytes = RoundUp(conv.target * sizeof(float), 64);
  return InqPlan<GpuExec, T>::Make(
      source_bytes + target_bytes + plan.workspace,
      [=, op = conv.op, from = conv.source, to = conv.target](
          const GpuExec& exec, const T* source, const uint8_t* codes,
          int32_t top_exponent, T* target, void* workspace) {
        char* const bytes = static_cast<char*>(workspace);
        float* const wide_source = reinterpret_cast<float*>(bytes);
        float* const wide_target = reinterpret_cast<float*>(bytes + source_bytes);
        CAPSOPS_RETURN_IF_ERROR(ForEach(exec, op, from,
                                        ConvertKernel<CudaType<T>, float>,
                                        Native(source), from, wide_source));
        CAPSOPS_RETURN_IF_ERROR(plan.run(exec, wide_source, codes, top_exponent,
                                         wide_target,
                                         bytes + source_bytes + target_bytes));
        return ForEach(exec, op, to, ConvertKernel<float, CudaType<T>>, wide_target, to,
                       Native(target));
      });
}

#define CAPSOPS_INSTANTIATE(T)                                        \
  template InqPlan<GpuExec, T> PlanConvolution<T>(const Convolution&, \
                                                  const InqPlan<GpuExec, float>&);
CAPSOPS_INSTANTIATE(Float16)
CAPSOPS_INSTANTIATE(BFloat16)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::inq_conv::widened
