// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// What every launcher needs on the host side.
#ifndef CAPSOPS_CUDA_COMMON_LAUNCH_CUH_
#define CAPSOPS_CUDA_COMMON_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cc/launch/exec.h"

namespace capsops {

// What `error` says, by default that of the launch just made; `kernel` begins the
// sentence.
inline LaunchError CheckLaunch(const char* kernel,
                               cudaError_t error = cudaGetLastError()) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // or the next launch would be blamed for it
  return std::string(kernel) + ": CUDA launch failed: " + cudaGetErrorString(error);
}

// What keeps a grid of this many blocks from being launched.
inline LaunchError CheckGrid(const char* kernel, int64_t blocks) {
  if (blocks <= INT32_MAX) return {};
  return std::string(kernel) + ": too large for one CUDA grid, " +
         std::to_string(blocks) + " blocks";
}

// What launchers need to know of the current device.
struct DeviceLimits {
  int processors = 1, shared = 48 << 10, capability = 0;  // 90 is 9.0
};

inline const DeviceLimits& CurrentDevice() {
  static const std::vector<DeviceLimits> devices = [] {
    int count = 0;
    cudaGetDeviceCount(&count);
    std::vector<DeviceLimits> limits(std::max(count, 1));
    for (int device = 0; device < count; ++device) {
      const auto ask = [&](cudaDeviceAttr attribute, int* value) {
        int answer;
        if (cudaDeviceGetAttribute(&answer, attribute, device) == cudaSuccess) {
          *value = answer;
        }
      };
      DeviceLimits& of = limits[device];
      int major = 0, minor = 0;
      ask(cudaDevAttrMultiProcessorCount, &of.processors);
      ask(cudaDevAttrMaxSharedMemoryPerBlockOptin, &of.shared);
      ask(cudaDevAttrComputeCapabilityMajor, &major);
      ask(cudaDevAttrComputeCapabilityMinor, &minor);
      of.capability = 10 * major + minor;
    }
    return limits;
  }();
  int device = 0;
  cudaGetDevice(&device);
  return devices[device < static_cast<int>(devices.size()) ? device : 0];
}

// Lets a kernel have all the shared memory there is, instead of 48 KB. The limit is the
// kernel's on that device and not a launch's, so it is never lowered: another thread
// may be about to launch.
template <auto kKernel>
LaunchError AllowShared(const char* name) {
  static std::mutex mutex;
  static std::vector<const DeviceLimits*> allowed;
  const DeviceLimits& device = CurrentDevice();
  const std::lock_guard<std::mutex> lock(mutex);
  if (std::count(allowed.begin(), allowed.end(), &device) > 0) return {};
  const LaunchError error = CheckLaunch(
      name, cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 device.shared));
  if (error.empty()) allowed.push_back(&device);
  return error;
}

// Whether there is code for this device that has WaitForKernelBefore().
inline bool CanOverlap() {
#ifdef __CUDA_ARCH_LIST__
  const int capability = 10 * CurrentDevice().capability;
  for (const int arch : {__CUDA_ARCH_LIST__}) {
    if (arch >= 900 && arch <= capability) return true;
  }
#endif
  return false;
}

// Launches a kernel that begins with WaitForKernelBefore(): so its launch, and what it
// does before that, overlap with the end of the kernel before it on the stream, on GPUs
// that can (compute capability 9.0 and newer).
template <typename... Parameters, typename... Arguments>
LaunchError LaunchOverlapped(const char* name, void (*kernel)(Parameters...), dim3 grid,
                             int threads, int shared, const GpuExec& exec,
                             const Arguments&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = exec.stream;
  config.attrs = &attribute;
  config.numAttrs = CanOverlap() ? 1 : 0;
  return CheckLaunch(
      name, cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
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
