// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Clusters: neighboring blocks that run at the same time, and that reach each other's
// shared memory (compute capability 9.0 and newer).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/common/barrier.cuh"

namespace capsops {

// Synchronizes all threads of a cluster.
__device__ inline void SyncCluster() {
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;" ::
          : "memory");
}

// Arrives at the barrier that is in the same place of block `rank` of the cluster.
__device__ inline void ArriveAt(const Barrier& barrier, int rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(barrier.Address()),
      "r"(rank)
      : "memory");
}

// Starts a TMA copy (tensor_map.cuh) of the box at (c0, c1, c2) to all blocks of the
// cluster whose bits are set in `blocks`. In each it goes to the place that `to` has in
// this block, and completes on the barrier in the place of `barrier`.
__device__ inline void TmaLoadTo(int blocks, const CUtensorMap& map, int c0, int c1,
                                 int c2, const Barrier& barrier, void* to) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(
          SharedAddress(to)),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(barrier.Address()),
      "h"(static_cast<uint16_t>(blocks))
      : "memory");
}

}  // namespace capsops
