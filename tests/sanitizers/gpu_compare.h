// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace capsops {

// Adds the number of bytes that differ between a and b to *different, on the GPU.
void CompareBytes(const void* a, const void* b, int64_t bytes,
                  unsigned long long* different, cudaStream_t stream);

}  // namespace capsops
