// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Copies and sums, as capsule_conv_slabs_plan.h describes them.
#pragma once

#include <cstdint>

#include "cc/launch/capsule_conv_slabs.h"

namespace capsops::capsule_conv_routing::slabs {

template <typename T>
struct Copies {
  static LaunchError CopyWeights(const GpuExec& exec, const char* op,
                                 const Relay& relay, const T* weights, T* copy);
  static LaunchError AddWeights(const GpuExec& exec, const char* op, const Relay& relay,
                                const T* copy, Accumulator<T>* sums);
  static LaunchError Narrow(const GpuExec& exec, const char* op, int64_t count,
                            const Accumulator<T>* sums, T* to);
  static LaunchError CopyImage(const GpuExec& exec, const char* op, const Patch& patch,
                               const T* input, T* copy);
  static LaunchError AddImage(const GpuExec& exec, const char* op, const Patch& patch,
                              const T* copy, T* grad_input);

  // Adds up `count` parts, each of `first` and then `second` numbers, and stores the
  // sums to `to_first` and `to_second`.
  static LaunchError AddParts(const GpuExec& exec, const char* op, int64_t count,
                              int64_t first, int64_t second,
                              const Accumulator<T>* parts, T* to_first, T* to_second);
};

}  // namespace capsops::capsule_conv_routing::slabs
