// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Sums of which blocks make parts, in the workspace, and another kernel adds these up
// in an order that is always the same.
#ifndef CAPSOPS_CUDA_CAPSULE_CONV_PARTS_CUH_
#define CAPSOPS_CUDA_CAPSULE_CONV_PARTS_CUH_

#include <cstdint>
#include <type_traits>

#include "cc/launch/capsule_conv.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"

namespace capsops::capsule_conv {

constexpr int kSumElements = 32;  // of a block

// out = the sum of `parts` arrays of its size. kThreads threads share an element's.
template <typename S, typename A, int kThreads>
__global__ void __launch_bounds__(kSumElements* kThreads)
    SumPartsKernel(int64_t elements, int parts, const A* __restrict__ partial,
                   S* __restrict__ out) {
  __shared__ A sums[kThreads][kSumElements];
  const int of = threadIdx.x % kSumElements, thread = threadIdx.x / kSumElements;
  const int64_t element = int64_t{blockIdx.x} * kSumElements + of;
  LetKernelAfterBegin();
  WaitForKernelBefore();
  A sum = 0;
  if (element < elements) {
#pragma unroll 4
    for (int part = thread; part < parts; part += kThreads) {
      sum += partial[part * elements + element];
    }
  }
  sums[thread][of] = sum;
  __syncthreads();
  if (thread > 0 || element >= elements) return;
#pragma unroll
  for (int i = 1; i < kThreads; ++i) sum += sums[i][of];
  Narrow(sum, out + element);
}

template <typename S, typename A>
LaunchError SumParts(const GpuExec& exec, const char* op, int64_t elements, int parts,
                     const A* partial, S* out) {
  const auto sum = [&](auto threads) {
    return LaunchOverlapped(
        op, SumPartsKernel<S, A, threads>, dim3(CeilDivide(elements, kSumElements)),
        kSumElements * threads, 0, exec, elements, parts, partial, out);
  };
  if (parts > 96) return sum(std::integral_constant<int, 32>());
  return sum(std::integral_constant<int, 8>());
}

// The gradient of so many weights, of which the kernel of `plan` makes `parts` parts.
template <typename T, typename PlanOfParts>
ConvPlan<GpuExec, T> PlanByParts(const char* op, const PlanOfParts& plan,
                                 int64_t weights, int parts) {
  return ConvPlan<GpuExec, T>::Make(
      parts * weights * int64_t{sizeof(float)},
      [=](const GpuExec& exec, const T* input, const T* grad, T* grad_weights,
          void* workspace) {
        float* const sums = static_cast<float*>(workspace);
        const LaunchError error =
            plan.launch(exec, op, plan, Native(input), Native(grad), sums);
        if (!error.empty()) return error;
        return SumParts(exec, op, weights, parts, sums, Native(grad_weights));
      });
}

}  // namespace capsops::capsule_conv

#endif  // CAPSOPS_CUDA_CAPSULE_CONV_PARTS_CUH_
