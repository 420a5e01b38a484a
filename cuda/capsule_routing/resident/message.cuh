// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// How the blocks of a grid send each other numbers without barriers. A number travels
// in words that hold 32 bits of it and a tag, and whoever needs it reads until the tag
// is the expected one. No other memory takes part, so no order has to be kept.
#ifndef CAPSOPS_CUDA_CAPSULE_ROUTING_RESIDENT_MESSAGE_CUH_
#define CAPSOPS_CUDA_CAPSULE_ROUTING_RESIDENT_MESSAGE_CUH_

#include <cuda/atomic>

#include <cstdint>
#include <cstring>

namespace capsops::capsule_routing::resident {

template <typename A>
struct Message {
  static constexpr int kWords = sizeof(A) / sizeof(uint32_t);
  uint64_t words[kWords];
};

template <typename A>
__device__ void Send(A number, uint32_t tag, Message<A>* to) {
  constexpr int kWords = Message<A>::kWords;
  uint32_t bits[kWords];
  std::memcpy(bits, &number, sizeof number);
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    cuda::atomic_ref<uint64_t, cuda::thread_scope_device>(to->words[i])
        .store(uint64_t{tag} << 32 | bits[i], cuda::std::memory_order_relaxed);
  }
}

// Receives the messages from + i * step for the i below N with is_wanted(i); the other
// numbers are 0.
template <int N, typename A, typename IsWanted>
__device__ void Receive(uint32_t tag, Message<A>* from, int64_t step,
                        const IsWanted& is_wanted, A (&numbers)[N]) {
  constexpr int kWords = Message<A>::kWords;
  uint32_t bits[N][kWords];
  bool is_complete;
  do {
    is_complete = true;
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        uint64_t word = uint64_t{tag} << 32;
        if (is_wanted(i)) {
          word = cuda::atomic_ref<uint64_t, cuda::thread_scope_device>(
                     from[i * step].words[w])
                     .load(cuda::std::memory_order_relaxed);
        }
        is_complete &= word >> 32 == tag;
        bits[i][w] = static_cast<uint32_t>(word);
      }
    }
  } while (!is_complete);
  std::memcpy(numbers, bits, sizeof numbers);
}

}  // namespace capsops::capsule_routing::resident

#endif  // CAPSOPS_CUDA_CAPSULE_ROUTING_RESIDENT_MESSAGE_CUH_
