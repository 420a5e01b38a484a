// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// What a launcher runs on, in plain C++: kernels know no framework.
#ifndef CAPSOPS_CC_LAUNCH_EXEC_H_
#define CAPSOPS_CC_LAUNCH_EXEC_H_

#include <cstdint>
#include <functional>
#include <string>

struct CUstream_st;  // cudaStream_t is a pointer to this

namespace capsops {

// Outcome of a launch: empty on success, else one sentence for the user.
using LaunchError = std::string;

// A pool of CPU threads. Kernels divide their work so that the result does not
// depend on how the pool splits the range.
struct CpuExec {
  using Body = std::function<void(int64_t begin, int64_t end)>;
  // Calls `body` on disjoint ranges that together cover [0, count); `cost` is
  // the work of one item in cycles. Returns when all is done.
  std::function<void(int64_t count, int64_t cost, const Body& body)> parallel_for;
};

// A CUDA stream, on the device that is current for the calling thread. Where `tf32`,
// products of float may be computed in TF32.
struct GpuExec {
  CUstream_st* stream;
  bool tf32 = false;
};

// 16-bit floats as bits in memory; each room converts with what it has.
struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

}  // namespace capsops

#endif  // CAPSOPS_CC_LAUNCH_EXEC_H_
