# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the functions take for tensors, and how they refuse everything else."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from frames import both_ways

import tf_capsops

# Each function of operands of one type, their names and shapes.
_FUNCTIONS = {
    "capsule_prediction": (
        tf_capsops.capsule_prediction,
        {"inputs": (1, 2, 3), "weights": (2, 4, 5, 3)},
    ),
    "capsule_routing": (
        tf_capsops.capsule_routing,
        {"inputs": (1, 2, 3), "weights": (2, 4, 5, 3), "logits": (2, 4)},
    ),
    "routing_coefficients": (
        tf_capsops.routing_coefficients,
        {"inputs": (1, 2, 3), "weights": (2, 4, 5, 3), "logits": (2, 4)},
    ),
    "capsule_conv2d": (
        tf_capsops.capsule_conv2d,
        {"inputs": (1, 3, 3, 2, 4, 4), "weights": (2, 2, 2, 3, 4, 4)},
    ),
    "capsule_conv_routing": (
        tf_capsops.capsule_conv_routing,
        {
            "inputs": (1, 3, 3, 2, 4),
            "weights": (2, 2, 4, 3, 5),
            "bias": (3, 5),
            "logits": (2, 3),
        },
    ),
    "high_order_conv2d": (
        functools.partial(tf_capsops.high_order_conv2d, kernel_size=3),
        {"inputs": (1, 4, 4, 2), "filters": (1, 4, 4, 9)},
    ),
    "inq_conv2d": (
        functools.partial(
            tf_capsops.inq_conv2d, codes=np.ones([2, 2, 2, 3], np.int64), top_exponent=0
        ),
        {"inputs": (1, 4, 4, 2)},
    ),
    "inq_conv2d_int8": (
        functools.partial(
            tf_capsops.inq_conv2d_int8,
            codes=np.ones([2, 2, 2, 3], np.int64),
            top_exponent=0,
            scale=0.5,
            zero_point=3,
        ),
        {"inputs": (1, 4, 4, 2)},
    ),
}
_OPS = {
    "capsule_prediction": "CapsulePrediction",
    "capsule_routing": "CapsuleRoutingWithSums",
    "routing_coefficients": "CapsuleRoutingCoefficients",
    "capsule_conv2d": "CapsuleConv",
    "capsule_conv_routing": "CapsuleConvRouting",
    "high_order_conv2d": "HighOrderConv",
    "inq_conv2d": "InqConv",
    "inq_conv2d_int8": "InqConvInt8",
}
_OPERANDS = [
    (function, operand)
    for function, (_, shapes) in _FUNCTIONS.items()
    for operand in shapes
]
every_function = pytest.mark.parametrize("function", _FUNCTIONS)
every_operand = pytest.mark.parametrize("function, operand", _OPERANDS)
_TYPES = "float32, float64, float16, bfloat16"


def _called(function, operands, way):
    compute, _ = _FUNCTIONS[function]
    return way(lambda: compute(**operands))()


def _assert_refused(function, operands, text, way=lambda compute: compute):
    with pytest.raises(ValueError) as caught:
        _called(function, operands, way)
    assert isinstance(caught.value, TypeError)
    assert str(caught.value).startswith(f"{function}: {text}")


def _ones(function, make=tf.ones):
    return {name: make(shape) for name, shape in _FUNCTIONS[function][1].items()}


@both_ways
@pytest.mark.parametrize(
    "wrong, text",
    [
        (tf.RaggedTensor.from_tensor, "must be a dense tensor, got a RaggedTensor"),
        (tf.sparse.from_dense, "must be a dense tensor, got a SparseTensor"),
        (lambda _: [[1.0], [1.0, 2.0]], "must be a tensor: "),
        (lambda _: "one", "must be a tensor: "),
    ],
    ids=["ragged", "sparse", "jagged", "text"],
)
@every_operand
def test_what_is_no_dense_tensor_is_refused(function, operand, wrong, text, way):
    operands = _ones(function)
    operands[operand] = wrong(operands[operand])
    _assert_refused(function, operands, f"{operand} {text}", way)


@every_function
def test_no_inputs_are_refused(function):
    operands = {**_ones(function), "inputs": None}
    _assert_refused(function, operands, "inputs must be a tensor: ")


@both_ways
@pytest.mark.parametrize(
    "dtype", [tf.int32, tf.uint8, tf.bool, tf.complex64, tf.float64]
)
@every_operand
def test_types_that_do_not_fit_are_refused(function, operand, dtype, way):
    operands = _ones(function, lambda shape: tf.ones(shape, tf.float16))
    operands[operand] = tf.cast(operands[operand], dtype)
    if operand != "inputs":
        text = f"{operand} must have the type of inputs, float16, got {dtype.name}"
    elif not dtype.is_floating:
        text = f"inputs must have one of the types {_TYPES}, got {dtype.name}"
    elif len(operands) > 1:
        text = f"{list(operands)[1]} must have the type of inputs, float64, got float16"
    else:
        assert _called(function, operands, way).dtype == dtype
        return
    _assert_refused(function, operands, text, way)


@every_function
def test_integer_arrays_alone_are_refused(function):
    arrays = _ones(function, lambda shape: np.ones(shape, np.int64))
    text = f"inputs must have one of the types {_TYPES}, got int64"
    _assert_refused(function, arrays, text)


@both_ways
@pytest.mark.parametrize("dtype", [tf.float64, tf.bfloat16])
@every_operand
def test_numbers_take_the_type_of_the_tensor(function, operand, dtype, way):
    operands = _ones(function, np.ones)
    operands[operand] = tf.Variable(operands[operand], dtype=dtype)
    tensors = {name: tf.cast(value, dtype) for name, value in operands.items()}
    expected = _called(function, tensors, way)
    lists = {name: np.asarray(value).tolist() for name, value in operands.items()}
    for given in (operands, {**lists, operand: operands[operand]}):
        result = _called(function, given, way)
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, expected)


@every_function
def test_numbers_alone_are_of_their_arrays_type_or_float32(function):
    compute, _ = _FUNCTIONS[function]
    assert compute(**_ones(function, np.ones)).dtype == tf.float64
    assert compute(**_ones(function, lambda s: np.ones(s).tolist())).dtype == tf.float32
    integers = _ones(function, lambda s: np.ones(s, np.int64).tolist())
    assert compute(**integers).dtype == tf.float32


@every_function
def test_name_is_the_ops_name(function):
    compute, _ = _FUNCTIONS[function]
    with tf.Graph().as_default():
        op = compute(**_ones(function), name="caps").op
    assert (op.name, op.type) == ("caps", _OPS[function])


def test_codes_and_exponents_are_named():
    inputs, codes = tf.ones([1, 4, 4, 2]), tf.ones([2, 2, 2, 3], tf.uint8)
    for given, text in (
        ((tf.cast(codes, tf.int32), 0), "codes must have the type uint8, got int32"),
        (
            (tf.RaggedTensor.from_tensor(codes), 0),
            "codes must be a dense tensor, got a",
        ),
        ((codes, tf.constant(0.0)), "top_exponent must have the type int32, got float"),
    ):
        with pytest.raises(ValueError, match=f"^inq_conv2d: {text}"):
            tf_capsops.inq_conv2d(inputs, *given)


@pytest.mark.parametrize("error", [TypeError, ValueError])
def test_autograph_raises_the_same(error):
    inputs, weights = tf.ones([1, 2, 3]), tf.ones([2, 4, 5, 3], tf.float64)
    text = "capsule_prediction: weights must have the type of inputs, float32, got"
    with pytest.raises(error, match=text):
        tf.function(lambda: tf_capsops.capsule_prediction(inputs, weights))()
