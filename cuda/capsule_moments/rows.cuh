// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Launches the kernels that mma and fma share: they make numbers of capsules, and the
// gradients of weights and prior, from those of rows [position, k] and from parts. S is
// float, __half or __nv_bfloat16.
#ifndef CAPSOPS_CUDA_CAPSULE_MOMENTS_ROWS_CUH_
#define CAPSOPS_CUDA_CAPSULE_MOMENTS_ROWS_CUH_

#include <cstdint>

#include "cuda/capsule_moments/inputs.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_moments {

// Writes {most, scale} of each capsule from those of its rows, and the sum of share dr
// from the sums within its rows; or only that sum, from the sums with the final shares.
// Tensors that are absent are null.
LaunchError MergeRows(const GpuExec& exec, const char* name, const Problem& p,
                      const float2* row_scales, const float* row_dots, float2* scales,
                      float* dots);

// Adds up the gradients of each capsule's pose and activation over its rows.
// `grad_activations` may be null.
template <typename S>
LaunchError SumRows(const GpuExec& exec, const char* name, const Problem& p,
                    const float* poses, const float* activations, S* grad_poses,
                    S* grad_activations);

// Adds up the parts of the gradients of weights and prior. `grad_prior` may be null.
template <typename S>
LaunchError SumParts(const GpuExec& exec, const char* name, const Problem& p, int parts,
                     const float* weights, const float* prior, S* grad_weights,
                     float* grad_prior);

}  // namespace capsops::capsule_moments

#endif  // CAPSOPS_CUDA_CAPSULE_MOMENTS_ROWS_CUH_
