// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The boundary between frameworks and kernels: convolution with a separate filter for
// every pixel,
//   output[n,y,x,c] = sum over kh, kw of
//       input[n, y + (kh - kernel_height/2)*dilation_height,
//             x + (kw - kernel_width/2)*dilation_width, c] *
//           filters[n,y,x, (g*kernel_height + kh)*kernel_width + kw]
// with g = c / (channels/groups), and input outside the image zero. Filter values for
// positions outside the image have no effect, even if they are not finite.
//
// T is float, double, Float16 or BFloat16; the 16-bit types accumulate in float. Every
// output element is written, even when a sum is empty. On a GPU all tensors are aligned
// to 16 bytes.
#pragma once

#include <cstdint>

#include "cc/launch/op.h"
#include "cc/launch/plan.h"

namespace capsops::high_order_conv {

// -1 is an unknown dimension; planners need them all.
struct Problem {
  int64_t batch = -1;
  int64_t height = -1;
  int64_t width = -1;
  int64_t channels = -1;  // a multiple of groups
  int64_t groups = 1;
  int64_t kernel_height = 1;  // odd
  int64_t kernel_width = 1;   // odd
  int64_t dilation_height = 1;
  int64_t dilation_width = 1;
  bool channels_first = false;  // NCHW instead of NHWC, for every tensor
  char reserved[7] = {};        // explicit padding: plans are cached by these bytes
};

// input [batch, height, width, channels], filters [batch, height, width, groups *
// kernel_height * kernel_width] -> output, shaped like input. With channels_first the
// last axis of each tensor comes second.
template <typename Exec, typename T>
using ForwardPlan = Plan<Exec, const T* /*input*/, const T* /*filters*/, T* /*output*/>;

CAPSOPS_OP(Forward, "HighOrderConv", ForwardPlan)

// grad is shaped like output; grad_input and grad_filters are shaped like the inputs.
// With (i, j) the offset of (kh, kw) from the center of the window:
//   grad_input[n,y,x,c]          = sum over kh, kw of grad[n,y-i,x-j,c] *
//                                  filters[n,y-i,x-j, g,kh,kw]
//   grad_filters[n,y,x, g,kh,kw] = sum over c of group g of grad[n,y,x,c] *
//                                  input[n,y+i,x+j,c]
// grad_filters is zero for positions outside the image, even if grad is not finite.
template <typename Exec, typename T>
using BackwardPlan = Plan<Exec, const T* /*grad*/, const T* /*input*/,
                          const T* /*filters*/, T* /*grad_input*/, T* /*grad_filters*/>;

CAPSOPS_OP(Backward, "HighOrderConvGrad", BackwardPlan)

}  // namespace capsops::high_order_conv
