# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checks that an op refuses tensors, in its kernel, in a graph, or by its shapes.

Each way takes `(compute, tensors, message)` and fails unless `compute(*tensors)` is
refused with exactly that message. A test marked `every_way` gets them in turn as
`assert_refused`. Integer tensors are sizes: shape functions know what is in them.
"""

import re

import frames
import pytest
import tensorflow as tf


def eagerly(compute, tensors, message):
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        compute(*tensors)
    assert re.search(r"\}\} (.*) \[Op:", str(caught.value))[1] == message


def by_kernel(compute, tensors, message):
    """Under XLA, what is wrong with attributes alone is seen while a graph is made."""
    if frames.compiled():
        errors = tf.errors.InvalidArgumentError, ValueError
        _by_kernel_in_graph_without_shapes(compute, tensors, message, errors)
    else:
        eagerly(compute, tensors, message)


def _by_kernel_in_graph_without_shapes(
    compute, tensors, message, errors=tf.errors.InvalidArgumentError
):
    signature = [tf.TensorSpec(None, tensor.dtype) for tensor in tensors]
    with pytest.raises(errors) as caught:
        frames.traced(compute, signature)(*tensors)
    assert re.search(rf"{re.escape(message)}(\n| \[Op:| for ')", str(caught.value))


def by_shape_function(compute, tensors, message):
    with tf.Graph().as_default():
        symbols = [
            tf.constant(t.numpy())
            if t.dtype.is_integer
            else tf.compat.v1.placeholder(t.dtype, t.shape)
            for t in tensors
        ]
        with pytest.raises(ValueError) as caught:
            compute(*symbols)
    assert str(caught.value).startswith(f"{message} for '{{{{node ")


every_way = pytest.mark.parametrize(
    "assert_refused",
    [by_kernel, _by_kernel_in_graph_without_shapes, by_shape_function],
    ids=lambda function: function.__name__.lstrip("_"),
)


# What is no pair of positive integers.
BAD_PAIRS = [[], [1], [1, 1, 1], [0, 1], [1, 0], [-2, 1], [1, -2]]

at_once_or_by_shape = pytest.mark.parametrize(
    "assert_refused", [by_kernel, by_shape_function]
)


def resized(shape, axis, size):
    """Returns a shape with another size of one axis."""
    return (*shape[:axis], size, *shape[axis + 1 :])


def shape_text(shape):
    """Returns a shape as messages have it."""
    return "[" + ",".join(map(str, shape)) + "]"


def mismatch(name, axis, axis_name, size, shape):
    """Returns the message, without the op's name, about a size that does not fit."""
    return f"{name} dim {axis} ({axis_name}) must be {size}, got {shape_text(shape)}"


def bad_kernels(name, kernel):
    """Yields shapes of a convolution's kernel, attributes, and what the message says.

    For images of 5x6, which VALID positions of these kernels do not fit into.
    """
    for axis, axis_name in enumerate(("kernel_height", "kernel_width")):
        shape = resized(kernel, axis, 0)
        text = f"{name} dim {axis} ({axis_name}) must be at least 1, got "
        for padding in ("VALID", "SAME"):
            yield shape, {"padding": padding}, text + shape_text(shape)
    for size, dilation, most in ((6, 1, 5), (4, 2, 3), (2, 5, 1), (3, 2**31 - 1, 1)):
        shape = resized(kernel, 0, size)
        text = f"{name} dim 0 (kernel_height) must be at most {most} (in_height 5, "
        text += f"dilation {dilation}, padding VALID), got {shape_text(shape)}"
        yield shape, {"padding": "VALID", "dilations": [dilation, 1]}, text


def bad_gradients(grad):
    """Yields shapes of its output's gradient, attributes, and what the message says.

    For images of 5x6 and a kernel of 3x2, of which `grad` is the right shape.
    """
    valid, same = {"padding": "VALID"}, {"padding": "SAME"}
    for axis, name in enumerate(("batch", "out_height", "out_width", "out_channels")):
        for wrong in (1, 0):
            shape = resized(grad, axis, wrong)
            yield shape, valid, mismatch("grad", axis, name, grad[axis], shape)
    for attributes, out in (
        ({**valid, "strides": [2, 1]}, 2),
        ({**valid, "dilations": [2, 1]}, 1),
        (same, 5),
        ({**same, "strides": [3, 1]}, 2),
    ):
        yield grad, attributes, mismatch("grad", 1, "out_height", out, grad)
