// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/inq_conv.h"

#include "tensorflow/core/framework/op.h"

#include "cc/framework/infer_shapes.h"
#include "cc/shapes/inq_conv_int8.h"
#include "cc/shapes/inq_decode.h"

namespace capsops::inq_conv {
namespace {

REGISTER_OP("InqConv")
    .Input("input: T")
    .Input("codes: uint8")
    .Input("top_exponent: int32")
    .Output("output: T")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("bits: int = 5")
    .Attr("strides: list(int) = [1, 1]")
    .Attr("padding: {'VALID', 'SAME'} = 'SAME'")
    .Attr("dilations: list(int) = [1, 1]")
    .SetShapeFn(InferShapes<ForwardOp>)
    .Doc(R"doc(
Convolves images with weights that are zero or powers of two.

    output[n, y, x, o] = sum over kh, kw, c of
        input[n, y * sh + kh * dh, x * sw + kw * dw, c] * weight(codes[kh, kw, c, o])

Code 0 is zero, code 1 + 2k is 2^(top_exponent - k) and code 2 + 2k is
-2^(top_exponent - k), for k from 0 to 2^(bits - 2) - 1. A larger code is an error on a
CPU and zero on a GPU. Half types accumulate in float32. Empty sums give zeros, empty
images an empty output.

input: Images, [batch, in_height, in_width, in_channels].
codes: Codes of the weights, [kernel_height, kernel_width, in_channels, out_channels].
top_exponent: Exponent of the largest weights of the code book, [].
output: Images, [batch, out_height, out_width, out_channels].
bits: Bits that a code takes in storage, 2 to 8.
strides: Pixels from one position of the kernel to the next, down and across.
padding: What is beyond the image: nothing (VALID), or zeros so that output pixels are as many as strides begin in the image (SAME).
dilations: Pixels between neighbors in the kernel, down and across.
)doc");

REGISTER_OP("InqConvBackpropInput")
    .Input("input_sizes: int32")
    .Input("codes: uint8")
    .Input("top_exponent: int32")
    .Input("grad: T")
    .Output("grad_input: T")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("bits: int = 5")
    .Attr("strides: list(int) = [1, 1]")
    .Attr("padding: {'VALID', 'SAME'} = 'SAME'")
    .Attr("dilations: list(int) = [1, 1]")
    .SetShapeFn(InferShapes<BackpropInputOp>)
    .Doc(R"doc(
Gradient of InqConv with respect to its input.

input_sizes: Shape of the input, [rank].
codes: As given to InqConv, [kernel_height, kernel_width, in_channels, out_channels].
top_exponent: As given to InqConv, [].
grad: Gradient of the loss in the output, [batch, out_height, out_width, out_channels].
grad_input: Shaped like the input.
bits: As given to InqConv.
strides: As given to InqConv.
padding: As given to InqConv.
dilations: As given to InqConv.
)doc");

REGISTER_OP("InqConvInt8")
    .Input("input: T")
    .Input("codes: uint8")
    .Input("scale: float")
    .Input("zero_point: int32")
    .Input("multipliers: float")
    .Output("output: T")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("bits: int = 5")
    .Attr("strides: list(int) = [1, 1]")
    .Attr("padding: {'VALID', 'SAME'} = 'SAME'")
    .Attr("dilations: list(int) = [1, 1]")
    .SetShapeFn(InferShapes<inq_conv_int8::ForwardOp>)
    .Doc(R"doc(
Convolves 8-bit activations with weights that are zero or powers of two.

    q = clip(round(input / scale) + zero_point, 0, 255)
    output[n, y, x, o] = multipliers[o] * sum over kh, kw, c of
        (q[n, y * sh + kh * dh, x * sw + kw * dw, c] - zero_point) *
        weight(codes[kh, kw, c, o])

Code 0 is zero, code 1 + 2k is 2^(levels - 1 - k) and code 2 + 2k is its negative, for k
from 0 to levels - 1, where levels is 2^(bits - 2). A larger code is an error on a CPU
and zero on a GPU. A CPU sums integers; a GPU sums the same numbers in float32, or in
float64 if T is double. NaN gives q = 0.

input: Images, [batch, in_height, in_width, in_channels].
codes: Codes of the weights, [kernel_height, kernel_width, in_channels, out_channels].
scale: Distance of neighboring activations, [].
zero_point: The q of an activation of zero, 0 to 255, [].
multipliers: The scale times the smallest weight of each output channel, [out_channels].
output: Images, [batch, out_height, out_width, out_channels].
bits: Bits that a code takes in storage, 2 to 5.
strides: As given to InqConv.
padding: As given to InqConv.
dilations: As given to InqConv.
)doc");

REGISTER_OP("InqDecode")
    .Input("codes: uint8")
    .Input("top_exponents: int64")
    .Output("weights: T")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("bits: int = 5")
    .SetShapeFn(InferShapes<inq_decode::DecodeOp>)
    .Doc(R"doc(
Decodes weights that are zero or powers of two.

Code 0 of column c is zero, code 1 + 2k is 2^(top_exponents[c] - k) and code 2 + 2k is
-2^(top_exponents[c] - k), for k from 0 to 2^(bits - 2) - 1. A larger code is an error on
a CPU and zero on a GPU.

codes: Codes of the weights, [rows, columns].
top_exponents: Exponents of the largest weights of the columns' code books, [columns].
weights: Shaped like codes.
bits: Bits that a code takes in storage, 2 to 8.
)doc");

}  // namespace
}  // namespace capsops::inq_conv
