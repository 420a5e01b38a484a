// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Stretches of a tensor in shared memory, moved as 16-byte words.
#ifndef CAPSOPS_CUDA_HIGH_ORDER_CONV_SEGMENT_CUH_
#define CAPSOPS_CUDA_HIGH_ORDER_CONV_SEGMENT_CUH_

#include <cstdint>

namespace capsops::high_order_conv {

// Room for `count` elements that are aligned in shared memory as they are in memory.
template <typename S>
__host__ __device__ int SegmentSize(int count) {
  constexpr int kWord = 16 / sizeof(S);
  return (count + 2 * kWord - 2) / kWord * kWord;
}

// Between elements [start, start + count) of a tensor and a segment of shared memory,
// where the first comes at element start % kWord, which is returned: calls word(e) for
// whole 16-byte words and element(e) for others, with e from the start of the tensor.
template <typename S, typename Word, typename Element>
__device__ int ForSegment(int64_t start, int count, const Word& word,
                          const Element& element) {
  constexpr int kWord = 16 / sizeof(S);
  const int skip = start % kWord;
  for (int e = threadIdx.x * kWord; e < skip + count; e += blockDim.x * kWord) {
    if (e >= skip && e + kWord <= skip + count) {
      word(e);
    } else {
      for (int i = max(e, skip); i < min(e + kWord, skip + count); ++i) element(i);
    }
  }
  return skip;
}

}  // namespace capsops::high_order_conv

#endif  // CAPSOPS_CUDA_HIGH_ORDER_CONV_SEGMENT_CUH_
