// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// Capsule convolution for one thread, once per instruction set. As in
// cc/cpu/capsule_prediction.h, these functions use nothing but their arguments;
// cc/cpu/dispatch/ divides their work.
//
// A convolution is a matrix product, and the lanes of a vector are rows of it: the pose
// rows of a few samples and neighbouring pixels. A task copies the part of the image
// that it reads into planes in its own caches. There is one plane for each channel and
// pose column, in which these rows lie side by side, with zeros for pixels outside the
// image. A tap is then an offset into the planes, for any strides, dilations and pose
// sizes.
//
// An image of poses of one row holds the rows of that product as they are. If there are
// columns enough, they are the lanes, and nothing is copied.
#ifndef CAPSOPS_CC_CPU_CAPSULE_CONV_H_
#define CAPSOPS_CC_CPU_CAPSULE_CONV_H_

#include <cstdint>

#include "cc/cpu/kernels.h"
#include "cc/launch/capsule_conv.h"

namespace capsops::capsule_conv {

// How work is divided, which depends on nothing but the problem and the instruction
// set.
struct Division {
  bool fits = true;       // whether these kernels can compute the problem
  bool in_place = false;  // whether the partial sums of weights may be the result
  int64_t workspace;      // bytes of the packed weights, or of the partial sums
  int64_t scratch;        // bytes that a task needs
  int64_t tasks;          // of `run`
  int64_t weights_tasks;  // of `pack` or `reduce`
};

// The forward convolution and the gradient of the input are alike: each reads an image
// and writes another. `p` has only the taps that read the image. A task of `pack` packs
// weights of tap task % taps, and `weights` points to the weights of that tap.
template <typename T>
struct ImageKernels {
  Division (*divide)(const Problem& p);
  void (*pack)(const Problem& p, int64_t task, const T* weights, void* workspace);
  void (*run)(const Problem& p, int64_t task, const T* from, const void* workspace,
              T* to, void* scratch);
};

// `run` writes partial sums to the workspace, and `reduce` adds them up. The tasks of
// `reduce` are in the order [pose_depth][tap][tile of rows], and `grad_weights` points
// to the gradient of the weights of the task's tap.
template <typename T>
struct WeightsKernels {
  Division (*divide)(const Problem& p);
  void (*run)(const Problem& p, int64_t task, const T* input, const T* grad,
              void* workspace, void* scratch);
  void (*reduce)(const Problem& p, int64_t task, const void* workspace,
                 T* grad_weights);
};

template <typename T>
struct Directions {
  ImageKernels<T> forward;
  ImageKernels<T> backprop_input;
  WeightsKernels<T> backprop_weights;
};

template <typename T>
struct CpuKernels {
  Directions<T> columns;         // for poses of one row whose columns fill lanes
  ImageKernels<T> spread_input;  // gradient of the input, if those of all taps do
  Directions<T> planes;          // for all poses
  // Adds the bias to `pixels` pixels of as many elements, and makes what is negative
  // zero.
  void (*bias_relu)(int64_t pixels, int64_t pixel, const T* bias, T* image);
};

CAPSOPS_DECLARE_KERNELS

}  // namespace capsops::capsule_conv

#endif  // CAPSOPS_CC_CPU_CAPSULE_CONV_H_
