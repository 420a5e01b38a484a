// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/sanitizers/gpu_compare.h"

#include <algorithm>

namespace capsops {
namespace {

__global__ void CompareKernel(const unsigned char* a, const unsigned char* b,
                              int64_t bytes, unsigned long long* different) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < bytes;
       i += step) {
    if (a[i] != b[i]) atomicAdd(different, 1);
  }
}

}  // namespace

void CompareBytes(const void* a, const void* b, int64_t bytes,
                  unsigned long long* different, cudaStream_t stream) {
  if (bytes == 0) return;
  const int64_t blocks = std::min<int64_t>((bytes + 255) / 256, 64);
  CompareKernel<<<blocks, 256, 0, stream>>>(static_cast<const unsigned char*>(a),
                                            static_cast<const unsigned char*>(b), bytes,
                                            different);
}

}  // namespace capsops
