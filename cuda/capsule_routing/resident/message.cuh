// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Sends numbers between the blocks of a grid without barriers. A number is sent in
// 64-bit words, one for a float and two for a double: 32 bits of the number and a
// 32-bit tag. The receiver polls until every tag is the expected one. The words carry
// all data, so that relaxed loads and stores suffice.
//
// Words are reused: a sender may write tag t + 1 only after all receivers of tag t have
// read it. This holds because a block sends its next sums only after it has received
// all results, and a result is sent only after all its parts were received. Tags start
// at 1, and ClearMessages() writes 0, so that no tag matches old memory.
#pragma once

#include <cuda/atomic>

#include <cstdint>
#include <cstring>

namespace capsops::capsule_routing::resident {

// The words of one number.
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

// Waits for the messages at from + i * step for each i < N with is_wanted(i), and sets
// numbers[i]. Other numbers are set to 0.
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
