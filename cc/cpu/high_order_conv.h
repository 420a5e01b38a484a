// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// CPU kernels of high-order convolution, compiled once per instruction set. A call runs
// one task on one thread, as in cc/cpu/capsule_prediction.h.
#pragma once

#include <cstdint>

#include "cc/cpu/kernels.h"
#include "cc/launch/high_order_conv.h"

namespace capsops::high_order_conv {

// The division of the work, which depends only on the problem and the instruction set.
struct Division {
  int64_t scratch = 0;  // bytes of scratch per task, aligned to 64
  int64_t tasks = 0;
};

template <typename T>
struct CpuKernels {
  Division (*divide_forward)(const Problem& p);
  void (*forward)(const Problem& p, int64_t task, const T* input, const T* filters,
                  T* output, void* scratch);
  Division (*divide_backward)(const Problem& p);
  void (*backward)(const Problem& p, int64_t task, const T* grad, const T* input,
                   const T* filters, T* grad_input, T* grad_filters, void* scratch);
};

CAPSOPS_DECLARE_KERNELS

}  // namespace capsops::high_order_conv
