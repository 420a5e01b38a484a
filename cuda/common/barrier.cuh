// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Barriers in shared memory (mbarrier), bulk copies that complete on them, and named
// barriers. All but cp.async and named barriers need compute capability 9.0.
#pragma once

#include <cstdint>

namespace capsops {

// The 32-bit address of a pointer to shared memory.
__device__ inline uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// An mbarrier. A phase ends once `count` threads have arrived and all expected bytes
// have been copied. Phases alternate between parity 0, which is the first, and 1.
class Barrier {
 public:
  __device__ void Init(int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(Address()),
                 "r"(count));
  }

  // Makes initialized barriers visible to the async proxy. A thread calls this after
  // its last Init and before the block synchronizes.
  __device__ static void FenceInit() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }

  __device__ void Arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(Address())
                 : "memory");
  }

  // Arrives once for the warp, after all of its lanes.
  __device__ void ArriveWarp() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) Arrive();
  }

  // Arrives, and makes the phase wait for `bytes` more bytes of asynchronous copies.
  __device__ void ArriveAndExpectBytes(uint32_t bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(Address()),
        "r"(bytes)
        : "memory");
  }

  // Arrives and starts a bulk copy of `bytes` bytes, a multiple of 16, to shared memory
  // at `to`; the phase ends only once they are there.
  __device__ void ArriveAndBulkCopy(const void* from, uint32_t bytes, void* to) {
    ArriveAndExpectBytes(bytes);
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1], %2, [%3];" ::"r"(SharedAddress(to)),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(Address())
        : "memory");
  }

  // Waits until the phase of the given parity has ended. On a new barrier, a wait for
  // parity 1 returns at once.
  __device__ void Wait(int parity) {
    uint32_t over;
    do {
      asm volatile(
          "{\n"
          ".reg .pred over;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
          "selp.u32 %0, 1, 0, over;\n"
          "}"
          : "=r"(over)
          : "r"(Address()), "r"(parity)
          : "memory");
    } while (over == 0);
  }

  __device__ uint32_t Address() const { return SharedAddress(&state_); }

 private:
  uint64_t state_;
};

// Initializes the barriers of a ring of `count` stages. A stage is full after one
// arrival, and empty again after `releases`.
__device__ inline void InitRing(int count, int releases, Barrier* full,
                                Barrier* empty) {
  for (int n = 0; n < count; ++n) {
    full[n].Init(1);
    empty[n].Init(releases);
  }
}

// The index of a stage in a ring of `places` stages, and the parity of the barrier
// phase to wait for, which flips with every trip around the ring.
struct PipelineState {
  int at = 0, parity = 0;

  __device__ void Next(int places) {
    if (++at == places) {
      at = 0;
      parity ^= 1;
    }
  }
  // Advances by `count` stages.
  __device__ void Skip(int count, int places) {
    at += count;
    parity ^= at / places % 2;
    at %= places;
  }
};

// Waits until at most the kGroups newest cp.async groups of this thread are in flight.
template <int kGroups>
__device__ void WaitForAsyncCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// Starts a bulk copy of `bytes` bytes, a multiple of 16, from shared to global memory.
__device__ inline void StartBulkStore(const void* from, uint32_t bytes, void* to) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(to)),
               "r"(SharedAddress(from)), "r"(bytes)
               : "memory");
}

// Closes a group of the bulk stores that this thread has started since the last group.
__device__ inline void CommitBulkStores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until all but the kGroups newest groups of bulk stores have read their shared
// memory, which may then be overwritten.
template <int kGroups>
__device__ void WaitForBulkReads() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kGroups) : "memory");
}

// Waits until all bulk stores that this thread started have completed.
__device__ inline void WaitForBulkStores() {
  CommitBulkStores();
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Synchronizes kThreads threads, always the same whole warps, at barrier kName.
template <int kThreads, int kName = 1>
__device__ void SyncNamedBarrier() {
  asm volatile("bar.sync %0, %1;" ::"n"(kName), "n"(kThreads) : "memory");
}

}  // namespace capsops
