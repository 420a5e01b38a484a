// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Decodes the weights into the workspace, convolves with cuda/capsule_conv/fma, and
// scales the results by 2^shift (Exponents).
#include <cstdint>

#include "cc/launch/inq_conv.h"
#include "cuda/capsule_conv/paths.h"
#include "cuda/inq_conv/codes.cuh"
#include "cuda/inq_conv/paths.h"

namespace capsops::inq_conv::fma {

template <typename T>
InqPlan<GpuExec, T> PlanConvolution(const GpuExec& exec, const Convolution& conv) {
  using Plan = InqPlan<GpuExec, T>;
  const char* const op = conv.op;
  const auto product =
      capsule_conv::fma::PlanImage<T>(op, exec, conv.poses, conv.backward);
  if (!product.run) return Plan::Refuse(product.error.text());
  const int64_t decoded = RoundUp(conv.codes * sizeof(T), 64);
  return Plan::Make(
      decoded + product.workspace,
      [op, product, decoded, levels = conv.levels, count = conv.codes,
       results = conv.target](const GpuExec& exec, const T* source,
                              const uint8_t* codes, int32_t top_exponent, T* target,
                              void* workspace) {
        const Exponents exponents = Exponents::Of<T>(top_exponent, levels);
        T* const weights = static_cast<T*>(workspace);
        CAPSOPS_RETURN_IF_ERROR(ForEach(exec, op, count, DecodeKernel<T>,
                                        CodedWeights<T>{codes, levels, exponents.top},
                                        count, weights));
        CAPSOPS_RETURN_IF_ERROR(product.run(exec, source, weights, target,
                                            static_cast<char*>(workspace) + decoded));
        if (exponents.shift == 0) return LaunchError();
        return ForEach(exec, op, results, ScaleKernel<T>, exponents.shift, results,
                       target);
      });
}

template InqPlan<GpuExec, float> PlanConvolution<float>(const GpuExec&,
                                                        const Convolution&);
template InqPlan<GpuExec, double> PlanConvolution<double>(const GpuExec&,
                                                          const Convolution&);

}  // namespace capsops::inq_conv::fma
