// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The boundary between frameworks and kernels: convolution over pose matrices,
//   output[n,y,x,o,g] = sum over kh, kw, c of
//       input[n, y*stride_height - pad_top + kh*dilation_height,
//             x*stride_width - pad_left + kw*dilation_width, c, g] @
//             weights[kh,kw,c,o,g]
// where @ is the product of a pose_rows x pose_inner and a pose_inner x pose_columns
// matrix, and input outside the image is zero. g runs over pose_depth matrices that are
// multiplied side by side; capsules of rank 2 have one.
//
// T is float, double, Float16 or BFloat16; the 16-bit types accumulate in float. Every
// output element is written, even when a sum is empty. On a GPU all tensors are aligned
// to 16 bytes.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "cc/launch/op.h"
#include "cc/launch/plan.h"

namespace capsops::capsule_conv {

// Dimensions of any convolution. -1 is an unknown dimension; planners need them all.
struct WindowProblem {
  int64_t batch = -1;
  int64_t in_height = -1;
  int64_t in_width = -1;
  int64_t in_channels = -1;
  int64_t kernel_height = -1;
  int64_t kernel_width = -1;
  int64_t out_height = -1;
  int64_t out_width = -1;
  int64_t out_channels = -1;
  int64_t stride_height = 1;
  int64_t stride_width = 1;
  int64_t dilation_height = 1;
  int64_t dilation_width = 1;
  int64_t pad_top = 0;  // rows of zeros above the image
  int64_t pad_left = 0;
};

struct Problem : WindowProblem {
  int64_t pose_depth = -1;
  int64_t pose_rows = -1;
  int64_t pose_inner = -1;
  int64_t pose_columns = -1;
};

// Returns the product of the sizes, modulo 2^64. It is exact if a tensor can have that
// many elements, and 0 if any size is 0, however large the others are.
inline int64_t Elements(std::initializer_list<int64_t> sizes) {
  uint64_t product = 1;
  for (const int64_t size : sizes) product *= static_cast<uint64_t>(size);
  return static_cast<int64_t>(product);
}

// The number of output pixels, and the number of elements in one.
inline int64_t Pixels(const Problem& p) {
  return Elements({p.batch, p.out_height, p.out_width});
}
inline int64_t PixelSize(const Problem& p) {
  return Elements({p.out_channels, p.pose_depth, p.pose_rows, p.pose_columns});
}

// A plan that multiplies two tensors into a third.
template <typename Exec, typename T>
using ConvPlan = Plan<Exec, const T* /*left*/, const T* /*right*/, T* /*out*/>;

// input [batch, in_height, in_width, in_channels, pose_depth, pose_rows, pose_inner]
// and weights [kernel_height, kernel_width, in_channels, out_channels, pose_depth,
// pose_inner, pose_columns] -> output [batch, out_height, out_width, out_channels,
// pose_depth, pose_rows, pose_columns].
CAPSOPS_OP(Forward, "CapsuleConv", ConvPlan)

template <typename Exec, typename T>
using BiasReluPlan = Plan<Exec, const T* /*input*/, const T* /*weights*/,
                          const T* /*bias*/, T* /*output*/>;

// PlanForward with bias [out_channels, pose_depth, pose_rows, pose_columns] and ReLU:
// output = max(0, convolution + bias).
CAPSOPS_OP(ForwardBiasRelu, "CapsuleConvBiasRelu", BiasReluPlan)

// grad, shaped like output, and weights -> grad_input, shaped like input: the sum of
// grad @ transpose(weights) over kh, kw, o and the output pixels that read the element.
CAPSOPS_OP(BackpropInput, "CapsuleConvBackpropInput", ConvPlan)

// input and grad -> grad_weights, shaped like weights: the sum over n, y, x of
// transpose(input) @ grad.
CAPSOPS_OP(BackpropWeights, "CapsuleConvBackpropWeights", ConvPlan)

}  // namespace capsops::capsule_conv
