// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule prediction for one thread, once per instruction set. These functions
// use nothing but their arguments (no standard library templates, whose copies
// the linker would merge across instruction sets); cc/cpu/dispatch/ picks the
// instruction set and divides the work.
#ifndef CAPSOPS_CC_CPU_CAPSULE_PREDICTION_H_
#define CAPSOPS_CC_CPU_CAPSULE_PREDICTION_H_

#include <cstdint>

#include "cc/cpu/kernels.h"
#include "cc/launch/capsule_prediction.h"

namespace capsops::capsule_prediction {

// A part of the problem for one call.
struct Range {
  int64_t in_caps_begin, in_caps_end;
  int64_t batch_begin, batch_end;
};

template <typename T>
struct CpuKernels {
  // Return how many input capsules and samples a call works on at a time. A range
  // that is a multiple of both wastes nothing.
  int64_t (*in_caps_tile)(const Problem& p);
  int64_t (*batch_tile)(const Problem& p);
  // Return the bytes of scratch, aligned to 64, that a call needs.
  int64_t (*forward_scratch)(const Problem& p);
  int64_t (*backward_scratch)(const Problem& p);
  void (*forward)(const Problem& p, const Range& range, const T* input,
                  const T* weights, T* output, void* scratch);
  // It sums over the samples of the range, which must be the whole batch.
  void (*backward)(const Problem& p, const Range& range, const T* grad, const T* input,
                   const T* weights, T* grad_input, T* grad_weights, void* scratch);
};

CAPSOPS_DECLARE_KERNELS

}  // namespace capsops::capsule_prediction

#endif  // CAPSOPS_CC_CPU_CAPSULE_PREDICTION_H_
