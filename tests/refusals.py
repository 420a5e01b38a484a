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


def by_kernel(compute, tensors, message):
    """Under XLA, what is wrong with attributes alone is seen while a graph is made."""
    if frames.compiled():
        errors = tf.errors.InvalidArgumentError, ValueError
        _by_kernel_in_graph_without_shapes(compute, tensors, message, errors)
        return
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        compute(*tensors)
    assert re.search(r"\}\} (.*) \[Op:", str(caught.value))[1] == message


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


def resized(shape, axis, size):
    """Returns a shape with another size of one axis."""
    return (*shape[:axis], size, *shape[axis + 1 :])


def shape_text(shape):
    """Returns a shape as messages have it."""
    return "[" + ",".join(map(str, shape)) + "]"


def mismatch(name, axis, axis_name, size, shape):
    """Returns the message, without the op's name, about a size that does not fit."""
    return f"{name} dim {axis} ({axis_name}) must be {size}, got {shape_text(shape)}"
