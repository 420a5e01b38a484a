// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Launchers of kernels that mma and fma share. They reduce rows [position, k] to
// capsules, and add up partial gradients. S is float, __half or __nv_bfloat16.
#ifndef CAPSOPS_CUDA_CAPSULE_MOMENTS_ROWS_CUH_
#define CAPSOPS_CUDA_CAPSULE_MOMENTS_ROWS_CUH_

#include <cstdint>

#include "cuda/capsule_moments/inputs.cuh"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_moments {

// Merges {max, scale} of each capsule's rows, and the sums of share dr that were made
// with each row's own shares. With null `row_scales` it adds up `row_dots`, which were
// then made with the final shares. Null `row_dots` are skipped.
LaunchError MergeRows(const GpuExec& exec, const char* name, const Problem& p,
                      const float2* row_scales, const float* row_dots, float2* scales,
                      float* dots);

// Adds up the gradients of each capsule's pose and activation over its rows.
// `grad_activations` may be null.
template <typename S>
LaunchError SumRows(const GpuExec& exec, const char* name, const Problem& p,
                    const float* poses, const float* activations, S* grad_poses,
                    S* grad_activations);

// Adds up the partial gradients of weights and prior. `grad_prior` may be null.
template <typename S>
LaunchError SumParts(const GpuExec& exec, const char* name, const Problem& p, int parts,
                     const float* weights, const float* prior, S* grad_weights,
                     float* grad_prior);

}  // namespace capsops::capsule_moments

#endif  // CAPSOPS_CUDA_CAPSULE_MOMENTS_ROWS_CUH_
