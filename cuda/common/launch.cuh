// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// What every launcher needs on the host side.
#ifndef CAPSOPS_CUDA_COMMON_LAUNCH_CUH_
#define CAPSOPS_CUDA_COMMON_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "cc/launch/exec.h"

namespace capsops {

// What `error` says, by default that of the launch just made; `kernel` begins the
// sentence.
inline LaunchError CheckLaunch(const char* kernel,
                               cudaError_t error = cudaGetLastError()) {
  if (error == cudaSuccess) return {};
  return std::string(kernel) + ": CUDA launch failed: " + cudaGetErrorString(error);
}

// What keeps a grid of this many blocks from being launched.
inline LaunchError CheckGrid(const char* kernel, int64_t blocks) {
  if (blocks <= INT32_MAX) return {};
  return std::string(kernel) + ": too large for one CUDA grid, " +
         std::to_string(blocks) + " blocks";
}

inline int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline bool Aligned16(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

}  // namespace capsops

#endif  // CAPSOPS_CUDA_COMMON_LAUNCH_CUH_
