// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// CPU kernels of capsule convolution, compiled once per instruction set. A call runs
// one task on one thread, as in cc/cpu/capsule_prediction.h. The convolution is an
// implicit matrix product: rows are (sample, pixel, pose row), the contraction is over
// (tap, channel, pose inner), and columns are (out channel, pose column). There are two
// families of kernels:
//
// `planes`: lanes are rows of the product, that is the pose rows of a few samples and
// neighboring pixels. A task copies the part of the image that it reads into planes in
// its own caches. A plane holds one channel and pose column of these rows side by side,
// with zeros for pixels outside the image. A tap is then an offset into the planes, for
// any strides, dilations and pose sizes.
//
// `columns`: lanes are columns of the product. This needs enough columns and poses of
// one row. Images of such poses already are the left operand, and are read in place.
//
// `spread_input` computes the input gradient where a pixel has too few columns for
// `columns`: its lanes are the columns of all taps.
#pragma once

#include <cstdint>

#include "cc/cpu/kernels.h"
#include "cc/launch/capsule_conv.h"

namespace capsops::capsule_conv {

// The division of the work, which depends only on the problem and the instruction set.
struct Division {
  bool fits = true;       // whether these kernels can compute the problem
  bool in_place = false;  // whether the result can hold the partial sums of weights
  int64_t workspace;      // bytes of the packed weights, or of the partial sums
  int64_t scratch;        // bytes of scratch per task
  int64_t tasks;          // number of tasks of `run`
  int64_t weights_tasks;  // number of tasks of `pack` or `reduce`
};

// Kernels of the forward convolution or of the input gradient, which both read one
// image and write another. `p` has only the taps that read inside the image. A task of
// `pack` packs weights of tap task % taps; `weights` points to the weights of that tap.
template <typename T>
struct ImageKernels {
  Division (*divide)(const Problem& p);
  void (*pack)(const Problem& p, int64_t task, const T* weights, void* workspace);
  void (*run)(const Problem& p, int64_t task, const T* from, const void* workspace,
              T* to, void* scratch);
};

// Kernels of the weight gradient: `run` writes partial sums to the workspace, and
// `reduce` adds them. The tasks of `reduce` are ordered [pose_depth][tap][tile of
// rows]; `grad_weights` points to the gradient of the weights of the task's tap.
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
  Directions<T> columns;         // poses of one row with enough columns
  ImageKernels<T> spread_input;  // input gradient with enough columns over all taps
  Directions<T> planes;          // all poses
  // Adds the bias to each of `pixels` pixels of `pixel` elements, then applies ReLU.
  void (*bias_relu)(int64_t pixels, int64_t pixel, const T* bias, T* image);
};

CAPSOPS_DECLARE_KERNELS

}  // namespace capsops::capsule_conv
