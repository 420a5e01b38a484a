# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Convolution with a different filter at every pixel."""

import math

import tensorflow as tf

from tf_capsops import _library, _portable
from tf_capsops.arguments import (
    float_tensors,
    odd_pair,
    positive_int,
    positive_pair,
    require_int32,
)
from tf_capsops.shapes import ShapeRule, dimensions, shape_text

_ATTRIBUTES = ("kernel_size", "dilations", "groups", "data_format")


def high_order_conv2d(
    inputs,
    filters,
    kernel_size,
    groups=1,
    dilations=1,
    data_format="NHWC",
    name=None,
):
    """Convolves images with a different filter at every pixel.

    With a kernel of `KH` by `KW` and dilations `dh`, `dw`, it computes:

        output[n, y, x, c] = sum over kh, kw of
            inputs[n, y + (kh - KH // 2) * dh, x + (kw - KW // 2) * dw, c] *
                filters[n, y, x, (g * KH + kh) * KW + kw]

    Here `g = c // (channels / groups)`: the channels of a group share their filters.

    This is the second step of high-order convolution; the first is an ordinary
    convolution that generates the filters. With groups, it is the step of an involution
    that applies its kernels. The image is padded with zeros. Filter entries for pixels
    outside of the image have no effect, even if they are not finite. The op is
    differentiable any number of times in both arguments. Half types accumulate in
    float32.

    Args:
      inputs: Images, `[batch, height, width, channels]`, of type float32, float64,
        float16 or bfloat16.
      filters: `[batch, height, width, groups * KH * KW]`, of the same type.
      kernel_size: `KH` and `KW`: an odd positive integer, or two, down and across.
      groups: The number of filters at each pixel, a positive integer that divides
        `channels`.
      dilations: Pixels from one row of the kernel to the next, and from one column to
        the next: a positive integer, or two.
      data_format: "NHWC", or "NCHW", where the last axis of every tensor comes second.
      name: Name of the operation in a graph.

    Returns:
      Images, shaped like `inputs`.

    Raises:
      ValueError: `kernel_size`, `groups`, `dilations` or `data_format` is not as above,
        or `inputs` or `filters` is of another type, ragged or sparse.
      tf.errors.InvalidArgumentError: A rank or a dimension does not fit, or `groups`
        does not divide `channels` (a `ValueError` while a graph is built).
      ImportError: The operator library is missing or of another TensorFlow version.

    Example:

    >>> import tensorflow as tf
    >>> import tf_capsops
    >>> image = tf.reshape(tf.range(12.0), [1, 3, 4, 1])
    >>> mean = tf.fill([1, 3, 4, 9], 1 / 9)            # the same filter everywhere
    >>> mean_but_one = tf.tensor_scatter_nd_update(
    ...     mean, [[0, 1, 1]], [tf.one_hot(4, 9)])     # one pixel is left as it was
    >>> output = tf_capsops.high_order_conv2d(image, mean_but_one, kernel_size=3)
    >>> output[0, 1, :, 0].numpy().round(2)
    array([3.  , 5.  , 6.  , 4.33], dtype=float32)
    """
    owner = "high_order_conv2d"
    if data_format not in ("NHWC", "NCHW"):
        raise ValueError(
            f"{owner}: data_format must be 'NHWC' or 'NCHW', got {data_format!r}"
        )
    operands = float_tensors(owner, inputs=inputs, filters=filters)
    attributes = {
        "kernel_size": odd_pair(owner, "kernel_size", kernel_size),
        "dilations": positive_pair(owner, "dilations", dilations),
        "groups": positive_int(owner, "groups", groups),
        "data_format": data_format,
    }
    require_int32(
        owner,
        kernel_size=attributes["kernel_size"],
        dilations=attributes["dilations"],
        groups=[attributes["groups"]],
    )
    if _portable.is_on():
        return _portable.compute(plain, *operands, **attributes, name=name or owner)
    return _library.load().high_order_conv(*operands, **attributes, name=name)


def plain(inputs, filters, kernel_size, groups, dilations, data_format):
    """The definition of `high_order_conv2d` in TensorFlow's own ops.

    It follows the steps of the paper: pad, slice, multiply by filters, and sum. Taps
    that no pixel can read are left out; other filter entries for pixels outside of the
    image are multiplied by zero.
    """
    inputs, filters = _bound(inputs, filters, kernel_size, groups, data_format)
    first, axis = (2, 1) if data_format == "NCHW" else (1, 3)
    shape = dimensions(inputs)
    height, width = shape[first : first + 2]
    down, across = map(offsets, (height, width), kernel_size, dilations)
    top, left = down[-1][1], across[-1][1]
    padding = [[0, 0]] * 4
    padding[first : first + 2] = [top, top], [left, left]
    padded = tf.pad(inputs, padding)

    def in_groups(tensor):
        sizes = dimensions(tensor)
        if groups > 1:
            sizes[axis : axis + 1] = groups, sizes[axis] // groups
        return tf.reshape(tensor, sizes)

    # Fails where filters are not of the image's sizes, which may be unknown until now.
    sizes = [*shape[:axis], groups * math.prod(kernel_size), *shape[axis + 1 :]]
    filters = tf.reshape(filters, sizes)
    taps = tf.split(in_groups(filters), math.prod(kernel_size), axis + (groups > 1))
    output = None
    for kh, i in down:
        for kw, j in across:
            window = [slice(None)] * 4
            window[first] = slice(top + i, top + i + height)
            window[first + 1] = slice(left + j, left + j + width)
            read = in_groups(padded[tuple(window)])
            term = read * taps[kh * kernel_size[1] + kw]
            output = term if output is None else output + term
    return tf.reshape(output, shape)


def offsets(size, kernel, dilation):
    """Returns (number, displacement) of the taps that can read inside an image.

    The center is always among them, even if the image is empty, so that gradients
    exist. If the size is unknown (a tensor), all taps are returned.
    """
    far = center = kernel // 2
    if not tf.is_tensor(size):
        far = min(center, max(size - 1, 0) // dilation)
    return [(center + k, k * dilation) for k in range(-far, far + 1)]


def _bound(inputs, filters, kernel_size, groups, data_format):
    """Checks that operands fit each other, and returns them with known ranks."""

    def axes(last):
        image = ("batch", "height", "width", last)
        return (image[0], last, *image[1:3]) if data_format == "NCHW" else image

    rule = ShapeRule("HighOrderConv")
    inputs = rule.bind("input", inputs, axes("channels"))
    axis = axes("channels").index("channels")
    channels, got = inputs.shape.as_list()[axis], shape_text(inputs.shape)
    rule.require(
        channels is None or channels % groups == 0,
        f"input dim {axis} (channels) must be a multiple of {groups} (groups), got "
        f"{got}",
    )
    depth = "groups * kernel_height * kernel_width"
    rule.define(depth, groups * math.prod(kernel_size))
    return rule.checked(inputs, rule.bind("filters", filters, axes(depth)))


def _attributes(op):
    return {name: op.get_attr(name) for name in _ATTRIBUTES}


@tf.RegisterGradient("HighOrderConv")
def _high_order_conv_grad(op, grad):
    return _library.load().high_order_conv_grad(grad, *op.inputs, **_attributes(op))


@tf.RegisterGradient("HighOrderConvGrad")
def _high_order_conv_grad_grad(op, inputs_like, filters_like):
    """Differentiates <grad, conv(inputs_like, filters) + conv(inputs, filters_like)>.

    Because the convolution is linear in inputs and in filters, this is the inner
    product of the incoming gradients and the op's two results.
    """
    grad, inputs, filters = op.inputs
    attributes = _attributes(op)
    library = _library.load()
    in_grad = library.high_order_conv(inputs_like, filters, **attributes)
    in_grad += library.high_order_conv(inputs, filters_like, **attributes)
    return (
        in_grad,
        *library.high_order_conv_grad(grad, inputs_like, filters_like, **attributes),
    )
