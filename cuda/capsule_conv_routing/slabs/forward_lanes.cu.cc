// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Routes pixels, with their votes in registers. A group of lanes routes a pixel from
// its votes in global memory to its parents; lanes.cuh has the steps.
#include <cstdint>

#include "cuda/capsule_conv_routing/slabs/lanes.cuh"
#include "cuda/capsule_conv_routing/slabs/pixels.h"

namespace capsops::capsule_conv_routing::slabs {

// Routes the block's pixels, and stores their parents to `output`.
template <typename S, int kTypes, int kQuads>
__global__ void __launch_bounds__(kLaneThreads, LaneBlocks(kTypes, kQuads, false))
    RouteLanesKernel(const Tiling z, const Places places, const S* votes, const S* bias,
                     const S* logits, S* output) {
  extern __shared__ float4 exchanged[];
  GridDependencySynchronize();
  PixelLanes<S, kTypes, kQuads> at(z, logits, exchanged);
  float first_shares[kTypes] = {};
  at.Softmax(first_shares);
  ForPixels(z, places.pixels, [&](int64_t pixel) {
    const bool valid = at.exists && pixel < places.pixels;
    at.LoadVotes(votes + pixel * z.types * z.columns(), valid);
    float totals[at.kNumbers] = {}, shares[kTypes];
#pragma unroll
    for (int i = 0; i < kTypes; ++i) shares[i] = first_shares[i];
    for (int r = 1;; ++r) {
      float sums[at.kNumbers];
      at.Load(bias, at.exists, sums);
      at.AddVotes(shares, sums);
      const auto squash = at.SquashOf(sums);
#pragma unroll
      for (int n = 0; n < at.kNumbers; ++n) {
        sums[n] = squash.factor * squash.Along(sums[n]);
        totals[n] += sums[n];
      }
      if (r == z.iterations) {
        if (valid && at.first == 0) {
          at.Store(sums, output + places.At(pixel) * z.columns());
        }
        return;
      }
      at.Dots(totals, shares);
      at.Softmax(shares);
    }
  });
}

template <typename T>
LaunchError RouteLanes(const GpuExec& exec, const char* op, const Tiling& tiling,
                       const Places& places, const T* votes, const T* bias,
                       const T* logits, T* output) {
  return WithLanes(tiling, [&](auto types, auto quads) {
    constexpr auto kKernel = RouteLanesKernel<CudaType<T>, types.value, quads.value>;
    return LaunchDependent(op, kKernel, dim3(tiling.Blocks(places.pixels)),
                           kLaneThreads, static_cast<int>(tiling.ExchangedBytes()),
                           exec, tiling, places, votes, bias, logits, output);
  });
}

#define CAPSOPS_INSTANTIATE(T)                                                   \
  template LaunchError RouteLanes<T>(const GpuExec&, const char*, const Tiling&, \
                                     const Places&, const T*, const T*, const T*, T*);
CAPSOPS_INSTANTIATE(float)
CAPSOPS_INSTANTIATE(Float16)
CAPSOPS_INSTANTIATE(BFloat16)
#undef CAPSOPS_INSTANTIATE

}  // namespace capsops::capsule_conv_routing::slabs
