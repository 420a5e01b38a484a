// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Implements cc/launch/faults.h for GPUs.
#include "cc/launch/faults.h"

#include <cstdint>

#include "cuda/common/launch.cuh"

namespace capsops {
namespace {

__global__ void FlipBitsKernel(uint8_t* byte, uint8_t mask) { *byte ^= mask; }

constexpr int kTooManyThreads = 1 << 20;

}  // namespace

LaunchError FailLaunch(const GpuExec& exec, const char*) {
  FlipBitsKernel<<<1, kTooManyThreads, 0, exec.stream>>>(nullptr, 0);
  return {};
}

LaunchError FlipBits(const GpuExec& exec, uint8_t* byte, uint8_t mask) {
  FlipBitsKernel<<<1, 1, 0, exec.stream>>>(byte, mask);
  return CheckLaunch("FlipBits");
}

}  // namespace capsops
