// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Functions that all launchers share on the host side.
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

// Says what `error` means, by default that of the launch just made. The sentence begins
// with `kernel`.
inline LaunchError CheckLaunch(const char* kernel,
                               cudaError_t error = cudaGetLastError()) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // or the next launch would be blamed for it
  return {std::string(kernel) + ": CUDA launch failed: " + cudaGetErrorString(error),
          error == cudaErrorMemoryAllocation ? Fault::kOutOfMemory : Fault::kInternal};
}

// Why a grid of this many blocks cannot be launched, in words that complete a plan's
// refusal, or "".
inline std::string GridObstacle(int64_t blocks) {
  if (blocks <= INT32_MAX) return {};
  return "it is too large for one CUDA grid, " + std::to_string(blocks) + " blocks";
}

// Fails where a grid of this many blocks cannot be launched.
inline LaunchError CheckGrid(const char* kernel, int64_t blocks) {
  if (blocks <= INT32_MAX) return {};
  return {std::string(kernel) + ": too large for one CUDA grid, " +
              std::to_string(blocks) + " blocks",
          Fault::kUnimplemented};
}

// Lets a kernel have all the shared memory there is, instead of 48 KB. The limit is the
// kernel's on that device and not a launch's, so it is never lowered: another thread
// may be about to launch.
template <auto kKernel>
LaunchError AllowShared(const GpuExec& exec, const char* name) {
  static std::mutex mutex;
  // Device and bytes of each; never freed, for threads may launch until the very end.
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

// Whether this library has machine code or PTX of exactly `arch`: 900 is 9.0.
inline bool BuiltFor(int arch) {
#ifdef __CUDA_ARCH_LIST__
  for (const int built : {__CUDA_ARCH_LIST__}) {
    if (built == arch) return true;
  }
#endif
  return false;
}

// Whether there is code for this device that has WaitForKernelBefore().
inline bool CanOverlap(const GpuDevice& device) {
#ifdef __CUDA_ARCH_LIST__
  for (const int arch : {__CUDA_ARCH_LIST__}) {
    if (arch >= 900 && arch <= 10 * device.capability) return true;
  }
#endif
  return false;
}

// Launches a kernel, with an attribute unless `attributes` is 0.
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

// Launches a kernel that calls WaitForKernelBefore(). Its launch, and its work before
// that call, overlap with the end of the kernel before it on the stream, on GPUs that
// can do so (compute capability 9.0 and newer). Arguments are those of LaunchWith.
template <typename Kernel, typename... Arguments>
LaunchError LaunchOverlapped(const char* name, Kernel kernel, dim3 grid, int threads,
                             int shared, const GpuExec& exec,
                             const Arguments&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return LaunchWith(attribute, CanOverlap(exec.device) ? 1 : 0, name, kernel, grid,
                    threads, shared, exec, arguments...);
}

// Launches a kernel whose blocks meet at barriers of the grid. It fails where the GPU
// has no room for all of them at once, as one with fewer multiprocessors than were
// planned for.
template <typename Kernel, typename... Arguments>
LaunchError LaunchTogether(const char* name, Kernel kernel, dim3 grid, int threads,
                           int shared, const GpuExec& exec,
                           const Arguments&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  return LaunchWith(attribute, 1, name, kernel, grid, threads, shared, exec,
                    arguments...);
}

#ifdef __CUDACC__
// Waits until everything that the kernel before wrote can be read.
__device__ inline void WaitForKernelBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the kernel after begin from here on, as far as there is room.
__device__ inline void LetKernelAfterBegin() {
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
