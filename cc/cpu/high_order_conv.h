// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// High-order convolution for one thread, once per instruction set; cc/cpu/dispatch/
// picks the instruction set and divides the rows.
#ifndef CAPSOPS_CC_CPU_HIGH_ORDER_CONV_H_
#define CAPSOPS_CC_CPU_HIGH_ORDER_CONV_H_

#include <cstdint>

#include "cc/launch/high_order_conv.h"

namespace capsops::high_order_conv {

// Rows are those of all images, one after the other.
template <typename T>
struct CpuKernels {
  void (*forward)(const Problem& p, int64_t row_begin, int64_t row_end, const T* input,
                  const T* filters, T* output);
  void (*backward)(const Problem& p, int64_t row_begin, int64_t row_end, const T* grad,
                   const T* input, const T* filters, T* grad_input, T* grad_filters);
};

#define CAPSOPS_DECLARE(isa) \
  namespace isa {            \
  template <typename T>      \
  CpuKernels<T> Kernels();   \
  }
CAPSOPS_DECLARE(v2)
CAPSOPS_DECLARE(v3)
CAPSOPS_DECLARE(v4)
CAPSOPS_DECLARE(baseline)
#undef CAPSOPS_DECLARE

}  // namespace capsops::high_order_conv

#endif  // CAPSOPS_CC_CPU_HIGH_ORDER_CONV_H_
