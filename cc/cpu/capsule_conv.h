// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule convolution for one thread, once per instruction set. As in
// cc/cpu/capsule_prediction.h, these functions use nothing but their arguments;
// cc/cpu/dispatch/ divides their work.
//
// The lanes of a vector are rows of the matrix product that a convolution is: pose rows
// of a few samples and neighbouring pixels. A task copies the part of the image that it
// reads into planes, in its own caches: one for each channel and pose column, in which
// these rows lie side by side, zeros outside of the image included. A kernel position
// is then an offset into the planes, whatever the strides, dilations and pose sizes.
#ifndef CAPSOPS_CC_CPU_CAPSULE_CONV_H_
#define CAPSOPS_CC_CPU_CAPSULE_CONV_H_

#include <cstdint>

#include "cc/launch/capsule_conv.h"

namespace capsops::capsule_conv {

// How work is divided; nothing but the problem and the instruction set decide.
struct Division {
  int64_t workspace;      // bytes of the packed weights, or of the partial sums
  int64_t scratch;        // bytes that a task needs
  int64_t tasks;          // of the products
  int64_t weights_tasks;  // that pack weights, or add up partial sums
};

// Forward and the gradient of the input are alike: an image is read, an image written.
// Of the kernel, `p` has the taps that read the image; the weights of a task are those
// of its tap, task % taps.
template <typename T>
struct ImageKernels {
  Division (*divide)(const Problem& p);
  void (*pack)(const Problem& p, int64_t task, const T* weights, void* workspace);
  void (*run)(const Problem& p, int64_t task, const T* from, const void* workspace,
              T* to, void* scratch);
};

// Task `task` of those that add up partial sums is one of [pose_depth][tap][tile of
// rows], and writes some of its tap's weights.
template <typename T>
struct WeightsKernels {
  Division (*divide)(const Problem& p);
  void (*run)(const Problem& p, int64_t task, const T* input, const T* grad,
              void* workspace, void* scratch);
  void (*reduce)(const Problem& p, int64_t task, const void* workspace,
                 T* grad_weights);
};

template <typename T>
struct CpuKernels {
  ImageKernels<T> forward;
  ImageKernels<T> backprop_input;
  WeightsKernels<T> backprop_weights;
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
