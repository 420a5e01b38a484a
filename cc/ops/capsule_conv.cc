// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/capsule_conv.h"

#include "tensorflow/core/framework/op.h"

#include "cc/framework/infer_shapes.h"

namespace capsops::capsule_conv {
namespace {

REGISTER_OP("CapsuleConv")
    .Input("input: T")
    .Input("weights: T")
    .Output("output: T")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("strides: list(int) = [1, 1]")
    .Attr("padding: {'VALID', 'SAME'} = 'VALID'")
    .Attr("dilations: list(int) = [1, 1]")
    .SetShapeFn(InferShapes<ForwardOp>)
    .Doc(R"doc(
Convolves images whose pixels are capsules, matrices that are multiplied.

    output[n, y, x, o] = sum over kh, kw, c of
        input[n, y * sh + kh * dh, x * sw + kw * dw, c] @ weights[kh, kw, c, o]

Capsules of rank 3 have one axis more, pose_depth before the matrix, in all three tensors;
their matrices are multiplied side by side. Half types accumulate in float32. Empty sums
give zeros, empty images an empty output.

input: Capsules, [batch, in_height, in_width, in_channels, pose_rows, pose_inner].
weights: Matrices, [kernel_height, kernel_width, in_channels, out_channels, pose_inner, pose_columns].
output: Capsules, [batch, out_height, out_width, out_channels, pose_rows, pose_columns].
strides: Pixels from one position of the kernel to the next, down and across.
padding: What is beyond the image: nothing (VALID), or zeros so that output pixels are as many as strides begin in the image (SAME).
dilations: Pixels between neighbors in the kernel, down and across.
)doc");

REGISTER_OP("CapsuleConvBiasRelu")
    .Input("input: T")
    .Input("weights: T")
    .Input("bias: T")
    .Output("output: T")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("strides: list(int) = [1, 1]")
    .Attr("padding: {'VALID', 'SAME'} = 'VALID'")
    .Attr("dilations: list(int) = [1, 1]")
    .SetShapeFn(InferShapes<ForwardBiasReluOp>)
    .Doc(R"doc(
CapsuleConv with a bias, and with zeros for what is negative.

    output = max(0, CapsuleConv(input, weights) + bias)

input: Capsules, [batch, in_height, in_width, in_channels, pose_rows, pose_inner].
weights: Matrices, [kernel_height, kernel_width, in_channels, out_channels, pose_inner, pose_columns].
bias: Of every pixel, [out_channels, pose_rows, pose_columns].
output: Capsules, [batch, out_height, out_width, out_channels, pose_rows, pose_columns].
strides: As of CapsuleConv.
padding: As of CapsuleConv.
dilations: As of CapsuleConv.
)doc");

REGISTER_OP("CapsuleConvBackpropInput")
    .Input("input_sizes: int32")
    .Input("weights: T")
    .Input("grad: T")
    .Output("grad_input: T")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("strides: list(int) = [1, 1]")
    .Attr("padding: {'VALID', 'SAME'} = 'VALID'")
    .Attr("dilations: list(int) = [1, 1]")
    .SetShapeFn(InferShapes<BackpropInputOp>)
    .Doc(R"doc(
Gradient of CapsuleConv with respect to its input.

input_sizes: Shape of the input, [rank].
weights: As given to CapsuleConv, [kernel_height, kernel_width, in_channels, out_channels, pose_inner, pose_columns].
grad: Gradient of the loss in the output, [batch, out_height, out_width, out_channels, pose_rows, pose_columns].
grad_input: Shaped like the input.
strides: As given to CapsuleConv.
padding: As given to CapsuleConv.
dilations: As given to CapsuleConv.
)doc");

REGISTER_OP("CapsuleConvBackpropWeights")
    .Input("input: T")
    .Input("weight_sizes: int32")
    .Input("grad: T")
    .Output("grad_weights: T")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("strides: list(int) = [1, 1]")
    .Attr("padding: {'VALID', 'SAME'} = 'VALID'")
    .Attr("dilations: list(int) = [1, 1]")
    .SetShapeFn(InferShapes<BackpropWeightsOp>)
    .Doc(R"doc(
Gradient of CapsuleConv with respect to its weights.

input: As given to CapsuleConv, [batch, in_height, in_width, in_channels, pose_rows, pose_inner].
weight_sizes: Shape of the weights, [rank].
grad: Gradient of the loss in the output, [batch, out_height, out_width, out_channels, pose_rows, pose_columns].
grad_weights: Shaped like the weights.
strides: As given to CapsuleConv.
padding: As given to CapsuleConv.
dilations: As given to CapsuleConv.
)doc");

}  // namespace
}  // namespace capsops::capsule_conv
