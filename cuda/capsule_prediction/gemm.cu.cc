// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule prediction of any size by the matrix products of cuda/capsule_conv/fma. If
// the input capsules are the pose matrices of a single pixel, grad_input is a
// convolution of grad, output is that convolution's input gradient, and grad_weights
// its weight gradient.

#include "cc/launch/capsule_conv.h"
#include "cc/launch/capsule_prediction.h"
#include "cuda/capsule_conv/paths.h"
#include "cuda/capsule_prediction/paths.h"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_prediction::gemm {

namespace fma = capsule_conv::fma;

// Returns the convolution that computes grad_input: for each input capsule, a row of
// out_caps x out_dim elements of grad times the weights.
inline capsule_conv::Problem AsConvolution(const Problem& p) {
  capsule_conv::Problem conv;
  conv.batch = p.batch;
  conv.in_height = conv.in_width = conv.in_channels = 1;
  conv.kernel_height = conv.kernel_width = 1;
  conv.out_height = conv.out_width = conv.out_channels = 1;
  conv.pose_depth = p.in_caps;
  conv.pose_rows = 1;
  conv.pose_inner = p.out_caps * p.out_dim;
  conv.pose_columns = p.in_dim;
  return conv;
}

// Returns `exec` with zero multiprocessors, so that no plan uses split-K, which would
// need a workspace.
inline GpuExec Whole(GpuExec exec) {
  exec.device.processors = 0;
  return exec;
}

template <typename T>
ForwardPlan<GpuExec, T> PlanForward(const GpuExec& exec, const Problem& p) {
  return fma::PlanImage<T>(Forward::kName, Whole(exec), AsConvolution(p), true);
}

template <typename T>
BackwardPlan<GpuExec, T> PlanBackward(const GpuExec& exec, const Problem& p) {
  using Plan = BackwardPlan<GpuExec, T>;
  const char* const op = Backward::kName;
  const auto conv = AsConvolution(p);
  const auto of_input = fma::PlanImage<T>(op, Whole(exec), conv, false);
  const auto of_weights = fma::PlanWeights<T>(op, Whole(exec), conv);
  CAPSOPS_REFUSE_IF(of_input.error.text());
  CAPSOPS_REFUSE_IF(of_weights.error.text());
  return Plan::Make(
      0,
      [=](const GpuExec& exec, const T* grad, const T* input, const T* weights,
          T* grad_input, T* grad_weights, void*) -> LaunchError {
        CAPSOPS_RETURN_IF_ERROR(of_input.run(exec, grad, weights, grad_input, nullptr));
        return of_weights.run(exec, grad, input, grad_weights, nullptr);
      });
}

CAPSOPS_INSTANTIATE_PATH(GpuExec)

}  // namespace capsops::capsule_prediction::gemm
