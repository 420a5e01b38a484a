// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Host-side launch helpers, and programmatic dependent launch.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cc/launch/exec.h"
#include "cc/launch/round.h"
#include "cuda/common/types.cuh"

namespace capsops {

// Calls run(n) with the first of kFirst, kMore... that is at least `value`, or else
// with the last, as a compile-time constant.
template <int kFirst, int... kMore, typename Run>
auto WithConstant(int64_t value, const Run& run) {
  if constexpr (sizeof...(kMore) > 0) {
    if (value > kFirst) return WithConstant<kMore...>(value, run);
  }
  return run(std::integral_constant<int, kFirst>());
}

// Turns `error`, by default the last launch's, into a message about `kernel`.
inline LaunchError CheckLaunch(const char* kernel,
                               cudaError_t error = cudaGetLastError()) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // or the next launch would report it
  return {std::string(kernel) + ": CUDA launch failed: " + cudaGetErrorString(error),
          error == cudaErrorMemoryAllocation ? Fault::kOutOfMemory : Fault::kInternal};
}

// Fills `count` elements with zeros.
template <typename T>
LaunchError Zero(const GpuExec& exec, const char* name, T* to, int64_t count) {
  if (count == 0) return {};
  return CheckLaunch(name, cudaMemsetAsync(to, 0, count * sizeof(T), exec.stream));
}

// Returns a refusal from a planner if the expression, a string, is not empty. `Plan` is
// the planner's return type.
#define CAPSOPS_REFUSE_IF(...)                                   \
  if (const std::string reason = (__VA_ARGS__); !reason.empty()) \
  return Plan::Refuse(reason)

// Returns why a grid cannot have this many blocks, or "".
inline std::string GridRefusal(int64_t blocks) {
  if (blocks <= INT32_MAX) return {};
  return "it is too large for one CUDA grid, " + std::to_string(blocks) + " blocks";
}

// Version of GridRefusal for launches: fails if the grid is too large.
inline LaunchError CheckGrid(const char* kernel, int64_t blocks) {
  if (blocks <= INT32_MAX) return {};
  return {std::string(kernel) + ": too large for one CUDA grid, " +
              std::to_string(blocks) + " blocks",
          Fault::kUnimplemented};
}

// Raises the kernel's limit on dynamic shared memory from 48 KB to the device's
// maximum, so the kernel must not have static shared memory. The limit belongs to the
// kernel on that device, not to a launch, so it is never lowered: another thread may be
// about to launch.
template <auto kKernel>
LaunchError AllowMaxSharedMemory(const GpuExec& exec, const char* name) {
  static std::mutex mutex;
  // Device and limit in bytes. Leaked, as threads may launch until the process ends.
  static auto& allowed = *new std::vector<std::pair<int, int>>;
  int device = 0;
  CAPSOPS_RETURN_IF_ERROR(CheckLaunch(name, cudaGetDevice(&device)));
  const std::lock_guard<std::mutex> lock(mutex);
  auto entry = std::find_if(allowed.begin(), allowed.end(),
                            [&](const auto& a) { return a.first == device; });
  if (entry != allowed.end() && entry->second >= exec.device.shared) return {};
  CAPSOPS_RETURN_IF_ERROR(CheckLaunch(
      name, cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 exec.device.shared)));
  if (entry == allowed.end()) entry = allowed.insert(entry, {device, 0});
  entry->second = exec.device.shared;
  return {};
}

// Whether this library has machine code or PTX for exactly `arch`, which is 900
// for 9.0.
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

// Converts a launch's argument to the kernel's parameter type.
template <typename Parameter, typename Argument>
Parameter ToParameter(const Argument& argument) {
  if constexpr (std::is_pointer_v<Argument>) {
    return Native(argument);
  } else {
    return static_cast<Parameter>(argument);
  }
}

// Launches a kernel with `attribute`, or without it if `attributes` is 0.
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
      name, cudaLaunchKernelEx(&config, kernel, ToParameter<Parameters>(arguments)...));
}

// Launches a kernel that needs at most 48 KB of shared memory.
template <typename Kernel, typename... Arguments>
LaunchError Launch(const char* name, Kernel kernel, dim3 grid, int threads, int shared,
                   const GpuExec& exec, const Arguments&... arguments) {
  return LaunchWith({}, 0, name, kernel, grid, threads, shared, exec, arguments...);
}

// Launches an elementwise kernel with a thread for each of `count` elements.
template <typename... Parameters, typename... Arguments>
LaunchError ForEach(const GpuExec& exec, const char* op, int64_t count,
                    void (*kernel)(Parameters...), const Arguments&... arguments) {
  if (count == 0) return {};
  constexpr int kThreads = 256;
  const int64_t blocks = CeilDivide(count, kThreads);
  CAPSOPS_RETURN_IF_ERROR(CheckGrid(op, blocks));
  return Launch(op, kernel, blocks, kThreads, 0, exec, arguments...);
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

// Versions of Launch and LaunchDependent for kernels that may need more than 48 KB of
// shared memory.
template <auto kKernel, typename... Arguments>
LaunchError Launch(const char* name, dim3 grid, int threads, int shared,
                   const GpuExec& exec, const Arguments&... arguments) {
  CAPSOPS_RETURN_IF_ERROR(AllowMaxSharedMemory<kKernel>(exec, name));
  return Launch(name, kKernel, grid, threads, shared, exec, arguments...);
}
template <auto kKernel, typename... Arguments>
LaunchError LaunchDependent(const char* name, dim3 grid, int threads, int shared,
                            const GpuExec& exec, const Arguments&... arguments) {
  CAPSOPS_RETURN_IF_ERROR(AllowMaxSharedMemory<kKernel>(exec, name));
  return LaunchDependent(name, kKernel, grid, threads, shared, exec, arguments...);
}

// Launches a cooperative kernel, which synchronizes its whole grid and may need more
// than 48 KB of shared memory. Fails if the GPU cannot hold all blocks at once.
template <auto kKernel, typename... Arguments>
LaunchError LaunchCooperative(const char* name, dim3 grid, int threads, int shared,
                              const GpuExec& exec, const Arguments&... arguments) {
  CAPSOPS_RETURN_IF_ERROR(AllowMaxSharedMemory<kKernel>(exec, name));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  return LaunchWith(attribute, 1, name, kKernel, grid, threads, shared, exec,
                    arguments...);
}

#ifdef __CUDACC__
// Waits until the preceding kernel has ended and its writes are visible.
__device__ inline void GridDependencySynchronize() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next kernel, if launched by LaunchDependent, start once every block of this
// kernel has called this or exited.
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
