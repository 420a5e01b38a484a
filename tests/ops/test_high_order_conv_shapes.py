# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""HighOrderConv's ops: shapes inferred as far as they can be."""

import pytest
import tensorflow as tf

import tf_capsops

UNKNOWN = None  # as a shape: not even the rank is known
ANY = [None] * 4

# Two images of 8x9 with 6 channels in 2 groups, a kernel of 5x3.
IMAGE, FILTERS = [2, 8, 9, 6], [2, 8, 9, 30]
ATTRIBUTES = {"kernel_size": [5, 3], "groups": 2}

both_formats = pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])


def _bare():
    return tf.load_op_library(tf_capsops.library_path())


def _ordered(shape, data_format):
    """Takes a shape from the order NHWC to another."""
    if shape is UNKNOWN or data_format == "NHWC":
        return shape
    batch, height, width, last = shape
    return [batch, last, height, width]


def _infer(op, data_format, *shapes):
    """Returns what `op` knows of its results' shapes, given these."""
    with tf.Graph().as_default():
        operands = [
            tf.compat.v1.placeholder(tf.float32, _ordered(shape, data_format))
            for shape in shapes
        ]
        results = op(*operands, data_format=data_format, **ATTRIBUTES)
    return [result.shape.as_list() for result in tf.nest.flatten(results)]


@both_formats
@pytest.mark.parametrize(
    "image, filters, inferred",
    [
        (IMAGE, FILTERS, IMAGE),
        (IMAGE, UNKNOWN, IMAGE),
        (UNKNOWN, FILTERS, [2, 8, 9, None]),
        (ANY, FILTERS, [2, 8, 9, None]),
        ([None, 8, None, 6], [2, None, 9, None], IMAGE),
        ([None, None, 9, None], [None, 8, None, 30], [None, 8, 9, None]),
        ([None, 8, 9, 6], UNKNOWN, [None, 8, 9, 6]),
        ([0, 8, None, 6], ANY, [0, 8, None, 6]),
        (ANY, ANY, ANY),
        (UNKNOWN, ANY, ANY),
        (UNKNOWN, UNKNOWN, ANY),
    ],
)
def test_inferred_outputs(image, filters, inferred, data_format):
    shapes = _infer(_bare().high_order_conv, data_format, image, filters)
    assert shapes == [_ordered(inferred, data_format)]


@both_formats
@pytest.mark.parametrize(
    "grad, image, filters, inferred",
    [
        (IMAGE, IMAGE, FILTERS, IMAGE),
        (UNKNOWN, UNKNOWN, UNKNOWN, ANY),
        (IMAGE, UNKNOWN, UNKNOWN, IMAGE),
        (UNKNOWN, IMAGE, UNKNOWN, IMAGE),
        (UNKNOWN, UNKNOWN, FILTERS, [2, 8, 9, None]),
        (ANY, UNKNOWN, [None, 8, None, 30], [None, 8, None, None]),
        ([2, *ANY[1:]], [None, 8, None, 6], [None, None, 9, None], IMAGE),
    ],
)
def test_inferred_gradients(grad, image, filters, inferred, data_format):
    op = _bare().high_order_conv_grad
    shapes = _infer(op, data_format, grad, image, filters)
    # How deep the filters are is known from the attributes alone.
    both = inferred, [*inferred[:3], 30]
    assert shapes == [_ordered(shape, data_format) for shape in both]


@both_formats
def test_gradients_have_their_inputs_static_shapes(data_format):
    """Through the registered gradient, however little of the shapes is known."""
    compute = tf_capsops.high_order_conv2d

    def output_and_gradients(*inputs, **attributes):
        output = compute(*inputs, **attributes)
        return output, *tf.gradients(output, inputs)

    image, filters = [None, 8, None, 6], [2, None, 9, None]
    shapes = _infer(output_and_gradients, data_format, image, filters)
    expected = [IMAGE, IMAGE, FILTERS]
    assert shapes == [_ordered(shape, data_format) for shape in expected]


@both_formats
@pytest.mark.parametrize(
    "image, filters, text",
    [
        ([2, None, 9], UNKNOWN, "input must have rank 4 ["),
        (UNKNOWN, [None] * 5, "filters must have rank 4 ["),
        (
            [2, *ANY[1:]],
            [3, *ANY[1:]],
            "filters dim 0 (batch) must be 2, got [3,?,?,?]",
        ),
    ],
)
def test_partial_shapes_that_cannot_fit(image, filters, text, data_format):
    with tf.Graph().as_default():
        tensors = [tf.compat.v1.placeholder(tf.float32, s) for s in (image, filters)]
        with pytest.raises(ValueError) as caught:
            tf_capsops.high_order_conv2d(*tensors, (5, 3), 2, data_format=data_format)
    assert str(caught.value).startswith(f"HighOrderConv: {text}")


@pytest.mark.parametrize(
    "image, filters, axis, name, must",
    [
        ([None, None, None, 5], UNKNOWN, 3, "channels", "a multiple of 2 (groups)"),
        (ANY, [None, None, None, 15], 3, "groups * kernel_height * kernel_width", "30"),
    ],
)
def test_a_known_depth_that_cannot_fit(image, filters, axis, name, must):
    with tf.Graph().as_default():
        tensors = [tf.compat.v1.placeholder(tf.float32, s) for s in (image, filters)]
        with pytest.raises(ValueError) as caught:
            _bare().high_order_conv(*tensors, **ATTRIBUTES)
    message = f"dim {axis} ({name}) must be {must}, got [?,?,?,"
    assert message in str(caught.value)


def test_outputs_too_large_to_count():
    """The image and the filters may each be counted, and still not both be made."""
    with tf.Graph().as_default():
        image = tf.compat.v1.placeholder(tf.float32, [2**31, 2**31, None, None])
        filters = tf.compat.v1.placeholder(tf.float32, [None, None, 2**10, None])
        with pytest.raises(ValueError, match=r"overflow|too many"):
            tf_capsops.high_order_conv2d(image, filters, 3)
