// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Launches kernels that route tiles of pixels.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/capsule_conv_routing/slabs/pixels.h"
#include "cuda/common/launch.cuh"

namespace capsops::capsule_conv_routing::slabs {

// The output places of the tile's pixels, in shared memory.
__device__ inline int64_t* TilePlaces() {
  extern __shared__ __align__(16) unsigned char shared[];
  return reinterpret_cast<int64_t*>(shared);
}
// The block's results, in shared memory or in `space`, global memory.
template <bool kShared, typename A>
__device__ A* BlockState(const Tiling& z, A* space) {
  if constexpr (kShared) {
    return reinterpret_cast<A*>(TilePlaces() + kMostPixels);
  } else {
    return space + blockIdx.x * z.block;
  }
}

// Calls visit(first) for the first pixel of each of the block's tiles.
template <typename Visit>
__device__ void ForTiles(const Tiling& z, int64_t pixels, const Visit& visit) {
  const int64_t tile = z.pixels;
  for (int64_t first = blockIdx.x * tile; first < pixels; first += gridDim.x * tile) {
    visit(first);
  }
}

// Calls launch(pack, shared) with Tiling::vector and Tiling::shared as compile-time
// constants.
template <typename A, typename Launch>
LaunchError WithTiling(const Tiling& tiling, const Launch& launch) {
  return WithConstant<1, 16 / sizeof(A)>(tiling.vector, [&](auto pack) {
    return tiling.shared ? launch(pack, std::true_type())
                         : launch(pack, std::false_type());
  });
}

// Launches `kKernel` on tiles of pixels.
template <auto kKernel, typename A, typename... Pointers>
LaunchError LaunchTiles(const GpuExec& exec, const char* op, const Tiling& tiling,
                        const Places& places, const Pointers&... pointers) {
  const int blocks = tiling.Blocks(places.pixels);
  if (blocks == 0) return {};
  const int64_t state = tiling.shared ? tiling.block * sizeof(A) : 0;
  return Launch<kKernel>(op, dim3(blocks), tiling.threads,
                         static_cast<int>(kPlaceBytes + state), exec, tiling, places,
                         pointers...);
}

}  // namespace capsops::capsule_conv_routing::slabs
