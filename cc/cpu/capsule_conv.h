// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule convolution for one thread, once per instruction set. As in
// cc/cpu/capsule_prediction.h, these functions use nothing but their arguments;
// cc/cpu/dispatch/ divides their work.
#ifndef CAPSOPS_CC_CPU_CAPSULE_CONV_H_
#define CAPSOPS_CC_CPU_CAPSULE_CONV_H_

#include <cstdint>

#include "cc/launch/capsule_conv.h"

namespace capsops::capsule_conv {

template <typename T>
struct CpuKernels {
  // One row of output pixels: task = n * out_height + y.
  void (*forward)(const Problem& p, int64_t task, const T* input, const T* weights,
                  T* output);
  // One row of input pixels: task = n * in_height + y.
  void (*backprop_input)(const Problem& p, int64_t task, const T* weights,
                         const T* grad, T* grad_input);
  // The weights of one input capsule: task = (kh * kernel_width + kw) * in_channels +
  // c.
  void (*backprop_weights)(const Problem& p, int64_t task, const T* input,
                           const T* grad, T* grad_weights);
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

}  // namespace capsops::capsule_conv

#endif  // CAPSOPS_CC_CPU_CAPSULE_CONV_H_
