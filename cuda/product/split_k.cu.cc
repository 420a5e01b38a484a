// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The second kernel of split-K: reduces partial sums.
#include "cuda/product/split_k.cuh"

#include <cstdint>

#include "cuda/common/launch.cuh"
#include "cuda/common/types.cuh"

namespace capsops {

// Sets `out` to the sum of `parts` arrays of `elements` elements, in a fixed order. A
// block has kReduceElements elements. Each of an element's kThreads threads sums every
// kThreads-th part, and the first adds these sums through shared memory.
template <typename S, typename A, int kThreads>
__global__ void __launch_bounds__(kReduceElements* kThreads)
    ReduceSplitsKernel(int64_t elements, int parts, const A* __restrict__ partial,
                       S* __restrict__ out) {
  __shared__ A sums[kThreads][kReduceElements];
  const int of = threadIdx.x % kReduceElements, thread = threadIdx.x / kReduceElements;
  const int64_t element = int64_t{blockIdx.x} * kReduceElements + of;
  TriggerDependentLaunch();
  GridDependencySynchronize();
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
LaunchError ReduceSplits(const GpuExec& exec, const char* op, int64_t elements,
                         int parts, const A* partial, S* out) {
  const auto sum = [&](auto threads) {
    return LaunchDependent(op, ReduceSplitsKernel<S, A, threads>,
                           dim3(CeilDivide(elements, kReduceElements)),
                           kReduceElements * threads, 0, exec, elements, parts, partial,
                           out);
  };
  return WithConstant<8, 32>(parts > 96 ? 32 : 8, sum);
}

#define CAPSOPS_INSTANTIATE(T)                                                 \
  template LaunchError ReduceSplits(const GpuExec&, const char*, int64_t, int, \
                                    const Accumulator<T>*, CudaType<T>*);
CAPSOPS_FOR_EACH_TYPE(CAPSOPS_INSTANTIATE)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops
