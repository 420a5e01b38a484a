// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Host-side launch helpers, and programmatic dependent launch.
#ifndef CAPSOPS_CUDA_COMMON_LAUNCH_CUH_
#define CAPSOPS_CUDA_COMMON_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc/launch/exec.h"
#include "cc/launch/round.h"

namespace capsops {

// Turns `error`, by default the last launch's, into a message about `kernel`.
inline LaunchError CheckLaunch(const char* kernel,
                               cudaError_t error = cudaGetLastError()) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // or the next launch would report it
  return {std::string(kernel) + ": CUDA launch failed: " + cudaGetErrorString(error),
          error == cudaErrorMemoryAllocation ? Fault::kOutOfMemory : Fault::kInternal};
}

// Completes a plan's refusal if a grid of this many blocks is too large; else "".
inline std::string GridRefusal(int64_t blocks) {
  if (blocks <= INT32_MAX) return {};
  return "it is too large for one CUDA grid, " + std::to_string(blocks) + " blocks";
}

// Fails if a grid of this many blocks is too large.
inline LaunchError CheckGrid(const char* kernel, int64_t blocks) {
  if (blocks <= INT32_MAX) return {};
  return {std::string(kernel) + ": too large for one CUDA grid, " +
              std::to_string(blocks) + " blocks",
          Fault::kUnimplemented};
}

// Raises the kernel's limit on dynamic shared memory from 48 KB to the device's
// maximum. The limit is a property of the kernel on that device and not of a launch, so
// it is never lowered: another thread may be about to launch.
template <auto kKernel>
LaunchError AllowMaxSharedMemory(const GpuExec& exec, const char* name) {
  static std::mutex mutex;
  // Device and limit in bytes. Leaked, as threads may launch until the process ends.
  static auto& allowed = *new std::vector<std::pair<int, int>>;
  int device = 0;
  LaunchError error = CheckLaunch(name, cudaGetDevice(&device));
  if (!error.empty()) return error;
  const std::lock_guard<std::mutex> lock(mutex);
  auto entry = std::find_if(allowed.begin(), allowed.end(),
                            [&](const auto& a) { return a.first == device; });
  if (entry != allowed.end() && entry->second >= exec.device.shared) return {};
  error = CheckLaunch(
      name, cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 exec.device.shared));
  if (!error.empty()) return error;
  if (entry == allowed.end()) entry = allowed.insert(entry, {device, 0});
  entry->second = exec.device.shared;
  return {};
}

// Whether this library has machine code or PTX for exactly `arch`, as 900 for 9.0.
inline bool BuiltFor(int arch) {
#ifdef __CUDA_ARCH_LIST__
  for (const int built : {__CUDA_ARCH_LIST__}) {
    if (built == arch) return true;
  }
#endif
  return false;
}

// Whether the code that runs on this device supports programmatic dependent launch.
inline bool SupportsDependentLaunch(const GpuDevice& device) {
#ifdef __CUDA_ARCH_LIST__
  for (const int arch : {__CUDA_ARCH_LIST__}) {
    if (arch >= 900 && arch <= 10 * device.capability) return true;
  }
#endif
  return false;
}

// Launches a kernel with `attribute` if `attributes` is 1, without if it is 0.
template <typename... Parameters, typename... Arguments>
LaunchError LaunchWith(cudaLaunchAttribute attribute, int attributes, const char* name,
                       void (*kernel)(Parameters...), dim3 grid, int threads,
                       int shared, const GpuExec& exec, const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = exec.stream;
  config.attrs = &attribute;
  config.numAttrs = attributes;
  return CheckLaunch(
      name, cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

// Launches a kernel by programmatic dependent launch (compute capability 9.0 and
// newer): it may start before the preceding kernel on the stream ends, and calls
// GridDependencySynchronize() before it reads that kernel's results.
template <typename Kernel, typename... Arguments>
LaunchError LaunchDependent(const char* name, Kernel kernel, dim3 grid, int threads,
                            int shared, const GpuExec& exec,
                            const Arguments&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return LaunchWith(attribute, SupportsDependentLaunch(exec.device) ? 1 : 0, name,
                    kernel, grid, threads, shared, exec, arguments...);
}

// Launches a cooperative kernel, which synchronizes its whole grid. Fails if the GPU
// cannot hold all blocks at once.
template <typename Kernel, typename... Arguments>
LaunchError LaunchCooperative(const char* name, Kernel kernel, dim3 grid, int threads,
                              int shared, const GpuExec& exec,
                              const Arguments&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  return LaunchWith(attribute, 1, name, kernel, grid, threads, shared, exec,
                    arguments...);
}

#ifdef __CUDACC__
// Waits until the preceding kernel's writes are visible.
__device__ inline void GridDependencySynchronize() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Allows the next kernel on the stream to start as soon as there is room.
__device__ inline void TriggerDependentLaunch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif

inline bool Aligned16(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

}  // namespace capsops

#endif  // CAPSOPS_CUDA_COMMON_LAUNCH_CUH_
