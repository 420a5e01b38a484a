// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Convolves with cuda/capsule_conv/mma and a filter packed from codes.
#include "cuda/capsule_conv/mma/path.cuh"
#include "cuda/inq_conv/paths.h"
#include "cuda/inq_conv/tensor_cores.cuh"

namespace capsops::inq_conv::mma {

template <typename T>
InqPlan<GpuExec, T> PlanConvolution(const GpuExec& exec, const Convolution& conv) {
  return PlanTensorCores<capsule_conv::mma::Path, T>(exec, conv);
}

#define CAPSOPS_INSTANTIATE(T) \
  template InqPlan<GpuExec, T> PlanConvolution<T>(const GpuExec&, const Convolution&);
CAPSOPS_FOR_EACH_TYPE(CAPSOPS_INSTANTIATE)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::inq_conv::mma
