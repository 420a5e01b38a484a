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

// Launches a kernel that begins with WaitForKernelBefore(): so its launch, and what it
// does before that, overlap with the end of the kernel before it on the stream, on GPUs
// that can (compute capability 9.0 and newer).
template <typename... Parameters, typename... Arguments>
LaunchError LaunchOverlapped(const char* name, void (*kernel)(Parameters...), dim3 grid,
                             int threads, int shared, const GpuExec& exec,
                             const Arguments&... arguments) {
  int device = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = exec.stream;
  config.attrs = &attribute;
  config.numAttrs = major >= 9 ? 1 : 0;
  return CheckLaunch(name,
                     cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}

#ifdef __CUDACC__
// Until all that the kernel before wrote can be read.
__device__ inline void WaitForKernelBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// From here on the kernel after may be launched, as far as there is room.
__device__ inline void LetKernelAfterBegin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif

inline int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline bool Aligned16(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

}  // namespace capsops

#endif  // CAPSOPS_CUDA_COMMON_LAUNCH_CUH_
