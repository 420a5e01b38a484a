// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// CPU kernels of capsule prediction, compiled once per instruction set. Each call runs
// on one thread; cc/cpu/dispatch/ chooses the instruction set and divides the work.
// Kernels call no functions of the standard library's templates: the linker would merge
// their copies across instruction sets.
#pragma once

#include <cstdint>

#include "cc/cpu/kernels.h"
#include "cc/launch/capsule_prediction.h"

namespace capsops::capsule_prediction {

// The part of the problem that one call computes.
struct Range {
  int64_t in_caps_begin, in_caps_end;
  int64_t batch_begin, batch_end;
};

template <typename T>
struct CpuKernels {
  // Return how many input capsules and samples a call processes at a time. Ranges
  // should be multiples of both.
  int64_t (*in_caps_tile)(const Problem& p);
  int64_t (*batch_tile)(const Problem& p);
  // Return the bytes of scratch, aligned to 64, that a call needs.
  int64_t (*forward_scratch)(const Problem& p);
  int64_t (*backward_scratch)(const Problem& p);
  void (*forward)(const Problem& p, const Range& range, const T* input,
                  const T* weights, T* output, void* scratch);
  // Sums over the samples of the range, which must be the whole batch.
  void (*backward)(const Problem& p, const Range& range, const T* grad, const T* input,
                   const T* weights, T* grad_input, T* grad_weights, void* scratch);
};

CAPSOPS_DECLARE_KERNELS

}  // namespace capsops::capsule_prediction
