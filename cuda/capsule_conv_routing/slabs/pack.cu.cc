// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Packs a phase's weights for the product that computes votes: transposes them, since
// wgmma needs TF32 operands with adjacent terms, here the channels.
#include <cstdint>

#include "cc/launch/round.h"
#include "cuda/capsule_conv_routing/slabs/products.h"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_conv_routing::slabs {

constexpr int kPackThreads = 256;

// Transposes the matrices of the phase's taps, [dim][columns]. A block transposes 32
// columns of 32 elements through shared memory, where a pitch of 33 avoids bank
// conflicts. blockIdx.z is the tap.
template <typename S>
__global__ void __launch_bounds__(kPackThreads)
    PackWeightsKernel(const Relay relay, int dim, int columns, const S* weights,
                      S* packed) {
  __shared__ S tile[32][33];
  GridDependencySynchronize();
  const S* const from = weights + relay.From(blockIdx.z) * relay.matrix;
  S* const to = packed + blockIdx.z * relay.matrix;
  const int column = blockIdx.x * 32, k = blockIdx.y * 32, lane = threadIdx.x % 32;
  for (int n = threadIdx.x / 32; n < 32; n += 8) {
    if (k + n >= dim || column + lane >= columns) continue;
    tile[n][lane] = from[int64_t{k + n} * columns + column + lane];
  }
  __syncthreads();
  for (int n = threadIdx.x / 32; n < 32; n += 8) {
    if (column + n >= columns || k + lane >= dim) continue;
    to[int64_t{column + n} * dim + k + lane] = tile[lane][n];
  }
}

template <typename T>
LaunchError OwnProducts<T>::PackWeights(const GpuExec& exec, const char* op,
                                        const Slab& slab, const T* weights,
                                        T* packed) const {
  const int64_t columns = Columns(p_);
  const Relay relay(p_, slab.phase);
  return LaunchDependent(
      op, PackWeightsKernel<CudaType<T>>,
      dim3(CeilDivide(columns, 32), CeilDivide(p_.in_dim, 32), relay.matrices()),
      kPackThreads, 0, exec, relay, p_.in_dim, columns, Native(weights),
      Native(packed));
}

#define CAPSOPS_INSTANTIATE(T)                                                  \
  template LaunchError OwnProducts<T>::PackWeights(const GpuExec&, const char*, \
                                                   const Slab&, const T*, T*) const;
CAPSOPS_FOR_EACH_PRODUCT_TYPE(CAPSOPS_INSTANTIATE)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::capsule_conv_routing::slabs
