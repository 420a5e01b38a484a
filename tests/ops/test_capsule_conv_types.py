# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleConv's ops: dtypes refused, kernels registered, names and documentation."""

import re

import pytest
import tensorflow as tf
from registrations import (
    ALLOWED,
    assert_documented,
    assert_kernels_are_those_of_the_dtype_list,
    bare,
    both_ways,
    refusal,
)

import tf_capsops

WRAPPERS = {
    "CapsuleConv": "capsule_conv",
    "CapsuleConvBackpropInput": "capsule_conv_backprop_input",
    "CapsuleConvBackpropWeights": "capsule_conv_backprop_weights",
}
HOST_MEMORY = {
    "CapsuleConv": [],
    "CapsuleConvBackpropInput": ["input_sizes"],
    "CapsuleConvBackpropWeights": ["weight_sizes"],
}

every_op = pytest.mark.parametrize("op", WRAPPERS)


def _zeros(dtype, other=None):
    return tf.zeros((2, 3, 3, 1, 2, 4), dtype), tf.zeros(
        (2, 2, 1, 5, 4, 3), other or dtype
    )


@both_ways
@pytest.mark.parametrize("dtype", [tf.int32, tf.uint8, tf.bool, tf.complex64])
def test_other_dtypes_are_refused(dtype, graph, device):
    text = refusal(lambda: tf_capsops.capsule_conv2d(*_zeros(dtype)), graph)
    assert re.search(ALLOWED, text)


@both_ways
def test_mixed_dtypes_are_refused(graph, device):
    operands = _zeros(tf.float32, tf.float64)
    text = refusal(lambda: tf_capsops.capsule_conv2d(*operands), graph)
    assert re.search("float32|float", text) and re.search("float64|double", text)


@both_ways
def test_sizes_are_int32(graph, device):
    ops = bare()
    inputs, weights = _zeros(tf.float32)
    grad = tf_capsops.capsule_conv2d(inputs, weights)
    for compute in (
        lambda: ops.capsule_conv_backprop_input(
            tf.shape(inputs, tf.int64), weights, grad
        ),
        lambda: ops.capsule_conv_backprop_weights(
            inputs, tf.shape(weights, tf.int64), grad
        ),
    ):
        text = refusal(compute, graph)
        assert "int64" in text and "int32" in text


@every_op
def test_kernels_are_those_of_the_dtype_list(op):
    """With sizes in host memory, where a kernel reads them."""
    assert_kernels_are_those_of_the_dtype_list(op, HOST_MEMORY[op])


@every_op
def test_op_is_documented(op):
    assert_documented(op, WRAPPERS[op], ("strides", "padding", "dilations"))


def test_attributes_have_defaults(device):
    ops = bare()
    operands = [tf.random.uniform(t.shape) for t in _zeros(tf.float32)]
    output = ops.capsule_conv(*operands)
    assert output.shape == (2, 2, 2, 5, 2, 3)
    for same in (
        ops.capsule_conv(*operands, strides=[1, 1], padding="VALID", dilations=[1, 1]),
        tf_capsops.capsule_conv2d(*operands),
    ):
        assert tf.reduce_all(output == same)


def test_name_is_the_ops_name():
    with tf.Graph().as_default():
        output = tf_capsops.capsule_conv2d(*_zeros(tf.float32), name="caps")
    assert (output.op.name, output.op.type) == ("caps", "CapsuleConv")
