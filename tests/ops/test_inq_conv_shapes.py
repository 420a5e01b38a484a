# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""InqConv's ops: shapes inferred, and tensors of sizes."""

import pytest
import tensorflow as tf
from frames import traced
from registrations import bare
from symbols import UNKNOWN, placeholder, symbolic_sizes

import tf_capsops

ANY = [None] * 4
IN_INPUT = "InqConvBackpropInput"

# Two images of 5x6, 3 channels to 8, a kernel of 3x2.
INPUT, CODES, GRAD = (2, 5, 6, 3), (3, 2, 3, 8), (2, 3, 5, 8)
VALID = {"padding": "VALID"}
STRIDED = {"strides": [2, 3]}
APART = {"strides": [2, 1], "dilations": [2, 3], "padding": "VALID"}


def _others(codes, exponent=UNKNOWN):
    return placeholder(codes, tf.uint8), placeholder(exponent, tf.int32)


@pytest.mark.parametrize(
    "inputs, codes, attributes, inferred",
    [
        (INPUT, CODES, VALID, [2, 3, 5, 8]),
        (INPUT, CODES, {}, [2, 5, 6, 8]),
        (INPUT, CODES, STRIDED, [2, 3, 2, 8]),
        (INPUT, CODES, APART, [2, 1, 3, 8]),
        (UNKNOWN, UNKNOWN, {}, ANY),
        (UNKNOWN, CODES, {}, [None, None, None, 8]),
        (UNKNOWN, CODES, VALID, [None, None, None, 8]),
        (INPUT, UNKNOWN, VALID, [2, None, None, None]),
        (INPUT, UNKNOWN, STRIDED, [2, 3, 2, None]),
        ([None, 5, None, 3], CODES, VALID, [None, 3, None, 8]),
        (INPUT, [3, None, None, 8], VALID, [2, 3, None, 8]),
        ((2, 0, 6, 3), CODES, VALID, [2, 0, 5, 8]),
        ((2, 5, 0, 3), UNKNOWN, VALID, [2, None, 0, None]),
    ],
)
def test_inferred_outputs(inputs, codes, attributes, inferred):
    with tf.Graph().as_default():
        operands = placeholder(inputs), *_others(codes)
        shape = bare().inq_conv(*operands, **attributes).shape
    assert shape.as_list() == inferred


@pytest.mark.parametrize(
    "sizes, codes, grad, inferred",
    [
        (INPUT, CODES, GRAD, [*INPUT]),
        (INPUT, UNKNOWN, UNKNOWN, [*INPUT]),
        (UNKNOWN, CODES, UNKNOWN, [None, None, None, 3]),
        (UNKNOWN, UNKNOWN, GRAD, [2, None, None, None]),
        (UNKNOWN, CODES, GRAD, [2, None, None, 3]),
        ([None, 5, 6, None], CODES, GRAD, [*INPUT]),
        ([None, 5, 6, 3], CODES, UNKNOWN, [None, 5, 6, 3]),
        (ANY, UNKNOWN, UNKNOWN, ANY),
        (UNKNOWN, UNKNOWN, UNKNOWN, ANY),
    ],
)
def test_inferred_gradients_of_the_input(sizes, codes, grad, inferred):
    with tf.Graph().as_default():
        operands = symbolic_sizes(sizes), *_others(codes), placeholder(grad)
        shape = bare().inq_conv_backprop_input(*operands, **VALID).shape
    assert shape.as_list() == inferred


def test_gradient_has_its_inputs_static_shape():
    """Through the registered gradient, however little of the shapes is known."""
    with tf.Graph().as_default():
        inputs = placeholder([None, 5, None, None])
        codes, exponent = _others([3, 2, 3, 8], ())
        output = tf_capsops.inq_conv2d(inputs, codes, exponent, padding="VALID")
        (gradient,) = tf.gradients(output, [inputs])
    shapes = [tensor.shape.as_list() for tensor in (output, gradient)]
    assert shapes == [[None, 3, None, 8], [None, 5, None, 3]]


RANK = "must have rank 4 ["
NEGATIVE = "must not be negative, got "
UNCOUNTED = "must count fewer than 2^63 elements, got [2147483647,"
bad_sizes = pytest.mark.parametrize(
    "sizes, text, text_of_shapes",
    [
        (6, "must be a vector, got shape []", "must have rank 1 [rank], got []"),
        (
            [[2, 5, 6, 3]],
            "must be a vector, got shape [1,4]",
            "must have rank 1 [rank], got [1,4]",
        ),
        ([2, 5, 6], RANK, RANK),
        ([], RANK, RANK),
        ([1] * 5, RANK, RANK),
        ([2, 5, -1, 3], NEGATIVE + "[2,5,-1,3]", NEGATIVE),
        ([-(2**31)] * 4, NEGATIVE + "[-2147483648,", None),
        ([2**31 - 1] * 4, UNCOUNTED, UNCOUNTED),
    ],
    ids=lambda value: str(value).replace(" ", ""),
)


@bad_sizes
def test_bad_sizes(sizes, text, text_of_shapes, device):
    sizes = tf.constant(sizes, tf.int32)
    tensors = sizes, tf.zeros(CODES, tf.uint8), tf.constant(0), tf.zeros(GRAD)
    signature = [tf.TensorSpec(UNKNOWN, tensor.dtype) for tensor in tensors]
    backward = bare().inq_conv_backprop_input
    unshaped = traced(lambda *tensors: backward(*tensors), signature)
    for compute in (backward, unshaped):
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            compute(*tensors)
        assert f"{IN_INPUT}: input_sizes {text}" in str(caught.value)


@bad_sizes
def test_bad_constant_sizes(sizes, text, text_of_shapes):
    """Refused while the graph is built, by their shape or by themselves."""
    with tf.Graph().as_default():
        operands = tf.constant(sizes, tf.int32), *_others(UNKNOWN), placeholder(UNKNOWN)
        with pytest.raises(ValueError) as caught:
            bare().inq_conv_backprop_input(*operands)
    message = f"{IN_INPUT}: input_sizes {text_of_shapes}"
    if text_of_shapes is None:  # TensorFlow itself is the first to look
        message = "Invalid value in tensor used for shape: -"
    assert str(caught.value).startswith(message)


def test_outputs_too_large_to_count(device):
    inputs = tf.zeros((2**31, 2, 1, 0))
    codes = tf.zeros((1, 1, 0, 2**31), tf.uint8)
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf_capsops.inq_conv2d(inputs, codes, 0)
