// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Records which CUDA kernels a program launches. The linker's --wrap redirects here the
// runtime calls that register each kernel before main, look a kernel up at its first
// <<<>>> launch, and launch it by cudaLaunchKernelExC.
#include "tests/sanitizers/gpu_coverage.h"

#include <cuda_runtime.h>
#include <cxxabi.h>

#include <cstdlib>
#include <mutex>

namespace capsops {
namespace {

struct Registered {
  std::mutex mutex;
  std::map<const void*, std::string> names;
  std::set<const void*> launched;
};

Registered& All() {
  static Registered* const all = new Registered;
  return *all;
}

void Launched(const void* kernel) {
  const std::lock_guard<std::mutex> lock(All().mutex);
  All().launched.insert(kernel);
}

}  // namespace

std::map<std::string, bool> LaunchedKernels() {
  const std::lock_guard<std::mutex> lock(All().mutex);
  std::map<std::string, bool> kernels;
  for (const auto& [kernel, mangled] : All().names) {
    if (mangled.find("CompareKernel") != std::string::npos) continue;  // in gpu_compare
    int status = 0;
    char* const name = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
    kernels[name == nullptr ? mangled : name] |= All().launched.count(kernel) > 0;
    std::free(name);
  }
  return kernels;
}

}  // namespace capsops

extern "C" {

void __real___cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*,
                                   uint3*, dim3*, dim3*, int*);
void __wrap___cudaRegisterFunction(void** binary, const char* kernel, char* device,
                                   const char* name, int threads, uint3* tid,
                                   uint3* bid, dim3* block, dim3* grid, int* warp) {
  capsops::All().names[kernel] = name;
  __real___cudaRegisterFunction(binary, kernel, device, name, threads, tid, bid, block,
                                grid, warp);
}

cudaError_t __real___cudaGetKernel(cudaKernel_t*, const void*);
cudaError_t __wrap___cudaGetKernel(cudaKernel_t* handle, const void* kernel) {
  capsops::Launched(kernel);
  return __real___cudaGetKernel(handle, kernel);
}

cudaError_t __real_cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**);
cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t* config,
                                       const void* kernel, void** arguments) {
  capsops::Launched(kernel);
  return __real_cudaLaunchKernelExC(config, kernel, arguments);
}

}  // extern "C"
