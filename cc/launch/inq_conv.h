// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The boundary between frameworks and kernels: convolution with weights that are zero
// or powers of two, each given as a one-byte code,
//   output[n,y,x,o] = sum over kh, kw, c of
//       input[n, y*stride_height - pad_top + kh*dilation_height,
//             x*stride_width - pad_left + kw*dilation_width, c] *
//           weight(codes[kh,kw,c,o])
// where input outside the image is zero, and with top_exponent n1
//   weight(0) = 0,  weight(1 + 2k) = 2^(n1 - k),  weight(2 + 2k) = -2^(n1 - k)
// for 0 <= k < 2^(bits - 2). On a CPU a larger code is an error that names its index;
// on a GPU it reads as 0.
//
// T is float, double, Float16 or BFloat16; the 16-bit types accumulate in float.
// Weights are exact, even where kernels hold them in 16 bits, so float results have the
// accuracy of a float convolution. Scaling by 2^n1 is exact if the result is a normal
// number. Every output element is written, even when a sum is empty. On a GPU input,
// output and grad are aligned to 16 bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "cc/launch/capsule_conv.h"
#include "cc/launch/op.h"
#include "cc/launch/plan.h"

namespace capsops::inq_conv {

struct Problem : capsule_conv::WindowProblem {
  int64_t bits = 5;  // 2 to 8
};

// Returns the sizes of the codes.
inline std::vector<int64_t> CodesShape(const Problem& p) {
  return {p.kernel_height, p.kernel_width, p.in_channels, p.out_channels};
}

// Returns the same convolution as a capsule convolution: groups of `in` channels become
// 1 x `in` poses, and the weights become `in` x `out` matrices.
inline capsule_conv::Problem AsPoses(const Problem& p, int64_t in, int64_t out) {
  capsule_conv::Problem poses{p};
  poses.in_channels /= in;
  poses.out_channels /= out;
  poses.pose_depth = 1;
  poses.pose_rows = 1;
  poses.pose_inner = in;
  poses.pose_columns = out;
  return poses;
}

template <typename Exec, typename T>
using InqPlan = Plan<Exec, const T* /*source*/, const uint8_t* /*codes*/,
                     int32_t /*top_exponent*/, T* /*target*/>;

// input [batch, in_height, in_width, in_channels] and codes [kernel_height,
// kernel_width, in_channels, out_channels] -> output [batch, out_height, out_width,
// out_channels].
CAPSOPS_OP(Forward, "InqConv", InqPlan)

// grad, shaped like output, and codes -> grad_input, shaped like input: the sum of grad
// * weight(codes) over kh, kw, o and the output pixels that read the element.
CAPSOPS_OP(BackpropInput, "InqConvBackpropInput", InqPlan)

}  // namespace capsops::inq_conv
