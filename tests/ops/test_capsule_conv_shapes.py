# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleConv's ops: shapes inferred, and tensors of sizes."""

import pytest
import tensorflow as tf
from frames import both_ways, traced
from registrations import bare, refusal
from symbols import UNKNOWN, placeholder, symbolic_sizes

import tf_capsops

ANY_6, ANY_7 = [None] * 6, [None] * 7

# Two images of 5x6, 3 capsules of 4x7 to 8 of 4x9, a kernel of 3x2.
INPUT, WEIGHTS, GRAD = (2, 5, 6, 3, 4, 7), (3, 2, 3, 8, 7, 9), (2, 3, 5, 8, 4, 9)
SIZES = {"CapsuleConvBackpropInput": "input_sizes"}
SIZES["CapsuleConvBackpropWeights"] = "weight_sizes"
SAME = {"padding": "SAME", "strides": [2, 3]}
APART = {"strides": [2, 1], "dilations": [2, 3]}


@pytest.mark.parametrize(
    "inputs, weights, attributes, inferred",
    [
        (INPUT, WEIGHTS, {}, [2, 3, 5, 8, 4, 9]),
        (INPUT, WEIGHTS, SAME, [2, 3, 2, 8, 4, 9]),
        (INPUT, WEIGHTS, APART, [2, 1, 3, 8, 4, 9]),
        ([2, 5, 6, 3, 9, 4, 7], ANY_7, SAME, [2, 3, 2, None, 9, 4, None]),
        (ANY_7, [3, 2, 3, 8, 9, 7, 5], {}, [None, None, None, 8, 9, None, 5]),
        (UNKNOWN, UNKNOWN, {}, UNKNOWN),
        (UNKNOWN, WEIGHTS, {}, [None, None, None, 8, None, 9]),
        (UNKNOWN, WEIGHTS, SAME, [None, None, None, 8, None, 9]),
        (INPUT, UNKNOWN, {}, [2, None, None, None, 4, None]),
        (INPUT, UNKNOWN, SAME, [2, 3, 2, None, 4, None]),
        (UNKNOWN, ANY_7, {}, ANY_7),
        ([None, 5, None, 3, 4, 7], WEIGHTS, {}, [None, 3, None, 8, 4, 9]),
        (INPUT, [3, None, 3, 8, 7, 9], {}, [2, 3, None, 8, 4, 9]),
        (INPUT, [3, None, 3, 8, 7, 9], SAME, [2, 3, 2, 8, 4, 9]),
        ((2, 0, 6, 3, 4, 7), WEIGHTS, {}, [2, 0, 5, 8, 4, 9]),
        ((2, 5, 0, 3, 4, 7), UNKNOWN, {}, [2, None, 0, None, 4, None]),
        ((0, 5, 6, 3, 4, 7), UNKNOWN, SAME, [0, 3, 2, None, 4, None]),
    ],
)
def test_inferred_outputs(inputs, weights, attributes, inferred):
    with tf.Graph().as_default():
        operands = placeholder(inputs), placeholder(weights)
        shape = bare().capsule_conv(*operands, **attributes).shape
    assert shape == tf.TensorShape(inferred)
    assert (shape.rank is None) == (inferred is UNKNOWN)


@pytest.mark.parametrize(
    "sizes, weights, grad, inferred",
    [
        (INPUT, WEIGHTS, GRAD, [*INPUT]),
        (INPUT, UNKNOWN, UNKNOWN, [*INPUT]),
        (UNKNOWN, WEIGHTS, UNKNOWN, [None, None, None, 3, None, 7]),
        (UNKNOWN, UNKNOWN, GRAD, [2, None, None, None, 4, None]),
        (UNKNOWN, WEIGHTS, GRAD, [2, None, None, 3, 4, 7]),
        ([None, 5, 6, None, None, None], WEIGHTS, GRAD, [*INPUT]),
        ([None, 5, 6, 3, 4, 7], WEIGHTS, UNKNOWN, [None, 5, 6, 3, 4, 7]),
        (ANY_7, UNKNOWN, UNKNOWN, ANY_7),
        (UNKNOWN, ANY_7, UNKNOWN, ANY_7),
        (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
    ],
)
def test_inferred_gradients_of_the_input(sizes, weights, grad, inferred):
    with tf.Graph().as_default():
        operands = symbolic_sizes(sizes), placeholder(weights), placeholder(grad)
        shape = bare().capsule_conv_backprop_input(*operands).shape
    assert shape.rank == tf.TensorShape(inferred).rank
    assert shape.rank is None or shape.as_list() == inferred


@pytest.mark.parametrize(
    "inputs, sizes, grad, inferred",
    [
        (INPUT, WEIGHTS, GRAD, [*WEIGHTS]),
        (UNKNOWN, WEIGHTS, UNKNOWN, [*WEIGHTS]),
        (INPUT, UNKNOWN, UNKNOWN, [None, None, 3, None, 7, None]),
        (UNKNOWN, UNKNOWN, GRAD, [None, None, None, 8, None, 9]),
        (INPUT, [3, 2, None, None, None, None], GRAD, [*WEIGHTS]),
        (UNKNOWN, UNKNOWN, ANY_7, ANY_7),
        (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
    ],
)
def test_inferred_gradients_of_the_weights(inputs, sizes, grad, inferred):
    with tf.Graph().as_default():
        operands = placeholder(inputs), symbolic_sizes(sizes), placeholder(grad)
        shape = bare().capsule_conv_backprop_weights(*operands).shape
    assert shape.rank == tf.TensorShape(inferred).rank
    assert shape.rank is None or shape.as_list() == inferred


def test_gradients_have_their_inputs_static_shapes():
    """Through the registered gradient, however little of the shapes is known."""
    with tf.Graph().as_default():
        inputs = placeholder([None, 5, None, 3, None, 7])
        weights = placeholder([3, 2, None, 8, None, 9])
        output = tf_capsops.capsule_conv2d(inputs, weights)
        gradients = tf.gradients(output, [inputs, weights])
    shapes = [tensor.shape.as_list() for tensor in (output, *gradients)]
    assert shapes == [
        [None, 3, None, 8, None, 9],
        [None, 5, None, 3, None, 7],
        [3, 2, 3, 8, 7, 9],
    ]


def _backward(op):
    """Returns the op as a function of the sizes, then of the two other operands."""
    if op == "CapsuleConvBackpropInput":
        return bare().capsule_conv_backprop_input
    return lambda sizes, inputs, grad: bare().capsule_conv_backprop_weights(
        inputs, sizes, grad
    )


RANK = "must have rank 6 ["
NEGATIVE = "must not be negative, got "
UNCOUNTED = "must count fewer than 2^63 elements, got [2147483647,"
every_op = pytest.mark.parametrize("op", SIZES)
bad_sizes = pytest.mark.parametrize(
    "sizes, text, text_of_shapes",
    [
        (6, "must be a vector, got shape []", "must have rank 1 [rank], got []"),
        (
            [[2, 5, 6, 3, 4, 7]],
            "must be a vector, got shape [1,6]",
            "must have rank 1 [rank], got [1,6]",
        ),
        ([2, 5, 6, 3, 4], RANK, RANK),
        ([], RANK, RANK),
        ([1] * 8, RANK, RANK),
        ([2, 5, -1, 3, 4, 7], NEGATIVE + "[2,5,-1,3,4,7]", NEGATIVE),
        ([2, 5, 6, 3, -4, 7], NEGATIVE + "[2,5,6,3,-4,7]", None),
        ([-(2**31)] * 7, NEGATIVE + "[-2147483648,", None),
        ([2**31 - 1] * 6, UNCOUNTED, UNCOUNTED),
    ],
    ids=lambda value: str(value).replace(" ", ""),
)


@every_op
@bad_sizes
def test_bad_sizes(op, sizes, text, text_of_shapes, device):
    others = tf.zeros(WEIGHTS if op.endswith("Input") else INPUT), tf.zeros(GRAD)
    sizes = tf.constant(sizes, tf.int32)
    signature = [tf.TensorSpec(UNKNOWN, tensor.dtype) for tensor in (sizes, *others)]
    unshaped = traced(_backward(op), signature)
    for compute in (_backward(op), unshaped):
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            compute(sizes, *others)
        assert f"{op}: {SIZES[op]} {text}" in str(caught.value)


@every_op
@bad_sizes
def test_bad_constant_sizes(op, sizes, text, text_of_shapes):
    """Refused while the graph is built, by their shape or by themselves."""
    with tf.Graph().as_default():
        operands = tf.constant(sizes, tf.int32), *[placeholder(UNKNOWN)] * 2
        with pytest.raises(ValueError) as caught:
            _backward(op)(*operands)
    message = f"{op}: {SIZES[op]} {text_of_shapes}"
    if text_of_shapes is None:  # TensorFlow itself is the first to look
        message = "Invalid value in tensor used for shape: -"
    assert str(caught.value).startswith(message)


@both_ways
def test_sizes_are_int32(way, device):
    ops = bare()
    inputs, weights = tf.zeros(INPUT), tf.zeros(WEIGHTS)
    grad = tf_capsops.capsule_conv2d(inputs, weights)
    for compute in (
        lambda: ops.capsule_conv_backprop_input(
            tf.shape(inputs, tf.int64), weights, grad
        ),
        lambda: ops.capsule_conv_backprop_weights(
            inputs, tf.shape(weights, tf.int64), grad
        ),
    ):
        text = refusal(compute, way)
        assert "int64" in text and "int32" in text


def test_outputs_too_large_to_count(device):
    inputs = tf.zeros((2**31, 1, 1, 0, 1, 1))
    weights = tf.zeros((1, 1, 0, 2**31, 1, 2))
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf_capsops.capsule_conv2d(inputs, weights)
