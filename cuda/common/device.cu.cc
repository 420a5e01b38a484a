// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include <cuda_runtime.h>

#include <map>
#include <mutex>
#include <string>

#include "cc/launch/exec.h"

namespace capsops {

// Queries each device once and caches the result, unless the query failed.
LaunchError QueryDevice(GpuDevice* device) {
  static std::mutex mutex;
  static std::map<int, GpuDevice>* const known = new std::map<int, GpuDevice>;
  cudaError_t error;
  const auto failed = [&](cudaError_t outcome) {
    error = outcome;
    if (error != cudaSuccess) cudaGetLastError();  // or the next launch would report it
    return error != cudaSuccess;
  };
  const auto message = [&] {
    return LaunchError(std::string("tf_capsops: the GPU's properties are unknown: ") +
                       cudaGetErrorString(error));
  };
  int current = 0;
  if (failed(cudaGetDevice(&current))) return message();
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known->find(current);
  if (found != known->end()) {
    *device = found->second;
    return {};
  }
  GpuDevice queried;
  int major = 0, minor = 0;
  const struct {
    cudaDeviceAttr attribute;
    int* value;
  } questions[] = {
      {cudaDevAttrMultiProcessorCount, &queried.processors},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, &queried.shared},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, &queried.processor_shared},
      {cudaDevAttrComputeCapabilityMajor, &major},
      {cudaDevAttrComputeCapabilityMinor, &minor}};
  for (const auto& question : questions) {
    if (failed(cudaDeviceGetAttribute(question.value, question.attribute, current))) {
      return message();
    }
  }
  queried.capability = 10 * major + minor;
  *device = (*known)[current] = queried;
  return {};
}

}  // namespace capsops
