// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Segments of shared memory for consecutive elements, copied in 16-byte words.
#ifndef CAPSOPS_CUDA_HIGH_ORDER_CONV_SEGMENT_CUH_
#define CAPSOPS_CUDA_HIGH_ORDER_CONV_SEGMENT_CUH_

#include <cstdint>

namespace capsops::high_order_conv {

// Returns the size of a segment for `count` elements at any offset in a 16-byte word.
template <typename S>
__host__ __device__ int SegmentSize(int count) {
  constexpr int kWord = 16 / sizeof(S);
  return (count + 2 * kWord - 2) / kWord * kWord;
}

// Visits the elements [start, start + count) of a tensor, which are stored in a segment
// with the same offset in 16-byte words; returns that offset. Calls word(e) for whole
// words and element(e) for the other elements, with e counted from the segment's start.
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
