// Copyright 2026 The tf_capsops Authors.
// SPDX-License-Identifier: Apache-2.0

#include "cc/shapes/high_order_conv.h"

#include "tensorflow/core/framework/op.h"

#include "cc/framework/infer_shapes.h"

namespace capsops::high_order_conv {
namespace {

REGISTER_OP("HighOrderConv")
    .Input("input: T")
    .Input("filters: T")
    .Output("output: T")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("kernel_size: list(int)")
    .Attr("dilations: list(int) = [1, 1]")
    .Attr("groups: int = 1")
    .Attr("data_format: {'NHWC', 'NCHW'} = 'NHWC'")
    .SetShapeFn(InferShapes<ForwardOp>)
    .Doc(R"doc(
Convolves images with a filter of its own at every pixel, which channels share.

    output[n, y, x, c] = sum over kh, kw of
        input[n, y + (kh - KH // 2) * dh, x + (kw - KW // 2) * dw, c] *
            filters[n, y, x, (g * KH + kh) * KW + kw]

with g = c // (channels / groups). What is outside the image is zero, and what filters
hold for it has no effect. Half types accumulate in float32. In the format NCHW the last
axis of every tensor comes second.

input: Images, [batch, height, width, channels].
filters: A filter for each pixel and group, [batch, height, width, groups * kernel_height * kernel_width].
output: Images, [batch, height, width, channels].
kernel_size: Rows and columns of a filter, two odd numbers.
dilations: Pixels between neighbors in a filter, down and across.
groups: Runs of neighboring channels that have a filter each; divides channels.
data_format: The order of axes: channels last (NHWC) or second (NCHW).
)doc");

REGISTER_OP("HighOrderConvGrad")
    .Input("grad: T")
    .Input("input: T")
    .Input("filters: T")
    .Output("grad_input: T")
    .Output("grad_filters: T")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("kernel_size: list(int)")
    .Attr("dilations: list(int) = [1, 1]")
    .Attr("groups: int = 1")
    .Attr("data_format: {'NHWC', 'NCHW'} = 'NHWC'")
    .SetShapeFn(InferShapes<BackwardOp>)
    .Doc(R"doc(
Gradients of HighOrderConv with respect to both of its inputs.

    grad_input[n, y, x, c] = sum over kh, kw of
        grad[n, y - i, x - j, c] * filters[n, y - i, x - j, (g * KH + kh) * KW + kw]
    grad_filters[n, y, x, (g * KH + kh) * KW + kw] =
        sum over c of group g of grad[n, y, x, c] * input[n, y + i, x + j, c]

with i = (kh - KH // 2) * dh and j = (kw - KW // 2) * dw. Where y + i or x + j is outside
the image, grad_filters is zero.

grad: Gradient of the loss in the output, [batch, height, width, channels].
input: As given to HighOrderConv, [batch, height, width, channels].
filters: As given to HighOrderConv, [batch, height, width, groups * kernel_height * kernel_width].
grad_input: Shaped like input.
grad_filters: Shaped like filters.
kernel_size: As given to HighOrderConv.
dilations: As given to HighOrderConv.
groups: As given to HighOrderConv.
data_format: As given to HighOrderConv.
)doc");

}  // namespace
}  // namespace capsops::high_order_conv
