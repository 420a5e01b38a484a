// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/cpu/capsule_routing.h"

#include "cc/cpu/capsule_routing_common.h"
#include "cc/cpu/capsule_routing_few_tasks.h"
#include "cc/cpu/capsule_routing_grad.h"
#include "cc/cpu/capsule_routing_squash.h"
#include "cc/cpu/capsule_routing_sums.h"

namespace capsops::capsule_routing::CAPSOPS_ISA {
namespace {

constexpr int64_t kPartsBytes = 8 << 20;  // most bytes of several partial sums
constexpr int64_t kUHatBytes = 8 << 20;   // most bytes of u_hat, to stay in a cache
constexpr int64_t kChunks = 32;    // most chunks; each partial sum is written and read
constexpr int64_t kTasks = 64;     // number of tasks to aim for
constexpr int64_t kChunkCaps = 8;  // fewest per chunk, to limit partial sums
constexpr int64_t kRangeGroups = 4;  // most groups per task; they read the same weights

template <typename T>
Division Divide(const Problem& p) {
  using A = Accumulator<T>;
  Division d;
  d.groups = CeilDivide(p.batch, kLanes<A>);
  d.tile = d.groups * GroupSize<A>(p);
  const int64_t fit = kPartsBytes / Max(d.tile * sizeof(A), 1);
  const int64_t chunks =
      Max(Min(Min(fit, kChunks), CeilDivide(p.in_caps, kChunkCaps)), 1);
  d.chunk_caps = Max(CeilDivide(p.in_caps, chunks), 1);
  d.chunks = Max(CeilDivide(p.in_caps, d.chunk_caps), 1);
  d.range_groups = Max(Min(d.groups * d.chunks / kTasks, kRangeGroups), 1);
  d.sum_tasks = d.chunks * CeilDivide(d.groups, d.range_groups);
  d.sum_scratch = SumLayout<T>(p).size * sizeof(A);
  d.u_hat = 0;
  const GradLayout<T> grad(p);
  d.grad_caps = grad.caps;
  d.grad_tasks = CeilDivide(p.in_caps, grad.caps);
  d.grad_scratch = grad.size * sizeof(A);
  if (IsSmallBatch<T>(p)) {
    const SmallBatchLayout<T> sums(p, 2);
    d.sum_scratch = sums.size * sizeof(A);
    const int64_t u_hat = p.in_caps * p.batch * sums.row;
    const int64_t weights_bytes = p.in_caps * Matrix(p) * sizeof(T);
    if (p.iterations > 1 &&
        u_hat * int64_t{sizeof(A)} <= Min(kUHatBytes, weights_bytes)) {
      d.u_hat = u_hat;
    }
    d.grad_caps = Max(Min(CeilDivide(p.in_caps, kGradTasks), kSmallBatchGradCaps), 1);
    d.grad_tasks = CeilDivide(p.in_caps, d.grad_caps);
    d.grad_scratch = SmallBatchLayout<T>(p, 2 * p.iterations - 1).size * sizeof(A);
  }
  return d;
}

// Calls a kernel, with in_dim as a constant if it is 8, as in most capsule networks, so
// that the compiler unrolls loops over it. For small batches calls the kernel with the
// prefix SmallBatch and the depth of SmallBatchLayout.
#define CAPSOPS_WITH_IN_DIM(Kernel)                                   \
  [](const Problem& p, auto... arguments) {                           \
    if (!IsSmallBatch<T>(p)) {                                        \
      p.in_dim == 8 ? Kernel<T>(InDim<8>{8}, p, arguments...)         \
                    : Kernel<T>(InDim<0>{p.in_dim}, p, arguments...); \
    } else if (p.in_dim <= 4) {                                       \
      SmallBatch##Kernel<T, 4>(p, arguments...);                      \
    } else {                                                          \
      p.in_dim <= 8 ? SmallBatch##Kernel<T, 8>(p, arguments...)       \
                    : SmallBatch##Kernel<T, 16>(p, arguments...);     \
    }                                                                 \
  }

}  // namespace

template <typename T>
CpuKernels<T> Kernels() {
  using A = Accumulator<T>;
  return {Divide<T>,
          CAPSOPS_WITH_IN_DIM(AddTask),
          CAPSOPS_WITH_IN_DIM(CoefficientsTask),
          Finish<T>,
          Advance<A>,
          StartGrad<T>,
          StepGrad<A>,
          CAPSOPS_WITH_IN_DIM(GradTask)};
}
CAPSOPS_INSTANTIATE_KERNELS

}  // namespace capsops::capsule_routing::CAPSOPS_ISA
