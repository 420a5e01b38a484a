// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

// The boundary between frameworks and kernels: convolution of 8-bit activations with
// weights that are zero or powers of two. With levels = 2^(bits - 2),
//   q = clip(round(input / scale) + zero_point, 0, 255), ties to even,
//   output[n,y,x,o] = multipliers[o] * sum over kh, kw, c of
//       (q[n, y*stride_height - pad_top + kh*dilation_height,
//          x*stride_width - pad_left + kw*dilation_width, c] - zero_point) *
//           weight(codes[kh,kw,c,o])
//   weight(0) = 0,  weight(1 + 2k) = 2^(levels - 1 - k),  weight(2 + 2k) = the negative
// where terms outside the image are zero, and multipliers are the scale times the
// smallest weight of each output channel. NaN gives q = 0; zero_point is 0 to 255.
//
// T is float, double, Float16 or BFloat16. On a CPU sums are int32 and exact, and a
// code above 2 * levels is an error that names its index. A GPU reads such a code as 0.
// The GPU path "int8" has the same exact sums; the path "float" sums in float or, if T
// is double, in double. On a GPU input and output are aligned to 16 bytes.
#pragma once

#include <cstdint>

#include "cc/launch/capsule_conv.h"
#include "cc/launch/inq_conv.h"
#include "cc/launch/op.h"
#include "cc/launch/plan.h"

namespace capsops::inq_conv_int8 {

// More bits need weights beyond 2^7, and then few terms would fit in an int32.
constexpr int kMostBits = 5;

struct Problem : inq_conv::Problem {};

// The number of terms per output element, of output pixels, and of input elements.
inline int64_t Terms(const Problem& p) {
  return p.kernel_height * p.kernel_width * p.in_channels;
}
inline int64_t Pixels(const Problem& p) {
  return capsule_conv::Elements({p.batch, p.out_height, p.out_width});
}
inline int64_t Inputs(const Problem& p) {
  return capsule_conv::Elements({p.batch, p.in_height, p.in_width, p.in_channels});
}

// Returns the largest number of terms whose sum always fits in an int32.
inline int64_t MostTerms(int64_t bits) {
  return INT32_MAX / (int64_t{255} << ((1 << (bits - 2)) - 1));
}

template <typename Exec, typename T>
using Int8Plan =
    Plan<Exec, const T* /*input*/, const uint8_t* /*codes*/, const float* /*scale*/,
         int32_t /*zero_point*/, const float* /*multipliers*/, T* /*output*/>;

// input [batch, in_height, in_width, in_channels], codes [kernel_height, kernel_width,
// in_channels, out_channels], scale [], multipliers [out_channels] -> output [batch,
// out_height, out_width, out_channels].
CAPSOPS_OP(Forward, "InqConvInt8", Int8Plan)

}  // namespace capsops::inq_conv_int8
