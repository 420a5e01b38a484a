// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Barriers in shared memory, on which threads and asynchronous copies arrive, and
// copies of whole stretches of memory; of compute capability 9.0 and newer.
#ifndef CAPSOPS_CUDA_COMMON_BARRIER_CUH_
#define CAPSOPS_CUDA_COMMON_BARRIER_CUH_

#include <cstdint>

namespace capsops {

__device__ inline uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Passes from phase to phase whenever all have arrived. The parity of the first is 0.
class Barrier {
 public:
  __device__ void Init(int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(Address()),
                 "r"(count));
  }

  // After the last Init of a thread, and before all synchronize.
  __device__ static void PublishInit() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }

  __device__ void Arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(Address())
                 : "memory");
  }

  // Arrives, and lets the phase end only when `bytes` bytes more have been copied.
  __device__ void ArriveAndExpect(uint32_t bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(Address()),
        "r"(bytes)
        : "memory");
  }

  // Arrives, and lets the phase end only when `bytes` bytes, a multiple of 16, have
  // been copied to `to`.
  __device__ void ArriveWithCopy(const void* from, uint32_t bytes, void* to) {
    ArriveAndExpect(bytes);
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1], %2, [%3];" ::"r"(SharedAddress(to)),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(Address())
        : "memory");
  }

  // Waits until the phase of this parity is over.
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

// Waits until all but the last kGroups groups of this thread's asynchronous copies have
// arrived.
template <int kGroups>
__device__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// Begins to copy `bytes` bytes, a multiple of 16, from shared memory.
__device__ inline void BeginStore(const void* from, uint32_t bytes, void* to) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(to)),
               "r"(SharedAddress(from)), "r"(bytes)
               : "memory");
}

// Waits until what this thread began to store is there.
__device__ inline void WaitForStores() {
  asm volatile(
      "cp.async.bulk.commit_group;\n"
      "cp.async.bulk.wait_group 0;" ::
          : "memory");
}

// Waits at barrier kName until so many threads of the block have arrived: whole warps,
// and always the same ones.
template <int kThreads, int kName = 1>
__device__ void SynchronizeSome() {
  asm volatile("bar.sync %0, %1;" ::"n"(kName), "n"(kThreads) : "memory");
}

}  // namespace capsops

#endif  // CAPSOPS_CUDA_COMMON_BARRIER_CUH_
