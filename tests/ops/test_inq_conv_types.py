# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""InqConv's ops: dtypes refused, kernels registered, names and documentation."""

import re

import numpy as np
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
    "InqConv": "inq_conv",
    "InqConvBackpropInput": "inq_conv_backprop_input",
}
HOST_MEMORY = {
    "InqConv": ["top_exponent"],
    "InqConvBackpropInput": ["input_sizes", "top_exponent"],
}

every_op = pytest.mark.parametrize("op", WRAPPERS)


def _operands(dtype=tf.float32, codes=tf.uint8, exponent=tf.int32):
    return (
        tf.ones((2, 3, 4, 2), dtype),
        tf.ones((2, 2, 2, 5), codes),
        tf.ones((), exponent),
    )


@both_ways
@pytest.mark.parametrize("dtype", [tf.int32, tf.uint8, tf.bool, tf.complex64])
def test_other_dtypes_are_refused(dtype, graph, device):
    text = refusal(lambda: tf_capsops.inq_conv2d(*_operands(dtype)), graph)
    assert re.search(ALLOWED, text)


@both_ways
@pytest.mark.parametrize(
    "wrong, expected",
    [
        ({"codes": tf.int8}, "uint8"),
        ({"codes": tf.int32}, "uint8"),
        ({"codes": tf.float32}, "uint8"),
        ({"exponent": tf.int64}, "int32"),
        ({"exponent": tf.float32}, "int32"),
    ],
    ids=str,
)
def test_codes_and_exponents_have_one_type(wrong, expected, graph, device):
    def compute():
        return tf_capsops.inq_conv2d(*_operands(**wrong))

    def bare_compute():
        inputs, *others = _operands(**wrong)
        grad = tf.ones((2, 3, 4, 5))
        return bare().inq_conv_backprop_input(tf.shape(inputs), *others, grad)

    (given,) = wrong.values()
    for function in (compute, bare_compute):
        text = refusal(function, graph)
        assert expected in text and re.search(f"{given.name}|float", text)


def test_tensors_from_outside_of_a_graph_have_one_type():
    """TensorFlow's own wrappers say nothing but "Unreachable" about these."""
    for wrong, text in (
        ({"codes": tf.int32}, "codes must have the type uint8, got int32"),
        ({"exponent": tf.int64}, "top_exponent must have the type int32, got int64"),
    ):
        operands = _operands(**wrong)
        with pytest.raises(ValueError, match=text):
            tf.function(lambda given=operands: tf_capsops.inq_conv2d(*given))()


@both_ways
def test_sizes_are_int32(graph, device):
    def compute():
        inputs, *others = _operands()
        grad = tf.ones((2, 3, 4, 5))
        sizes = tf.shape(inputs, tf.int64)
        return bare().inq_conv_backprop_input(sizes, *others, grad)

    text = refusal(compute, graph)
    assert "int64" in text and "int32" in text


@every_op
def test_kernels_are_those_of_the_dtype_list(op):
    """With sizes and exponent in host memory, where a kernel reads them."""
    assert_kernels_are_those_of_the_dtype_list(op, HOST_MEMORY[op])


@every_op
def test_op_is_documented(op):
    assert_documented(op, WRAPPERS[op], ("bits", "strides", "padding", "dilations"))


def test_attributes_have_defaults(device):
    inputs, _, exponent = _operands()
    # Codes past the books of fewer bits, and sizes that show the padding.
    codes = tf.reshape(tf.cast(tf.range(7, 17), tf.uint8), (1, 1, 2, 5))
    codes = tf.concat([codes, codes], 0)
    operands = inputs, codes, exponent
    moved = {"strides": [1, 1], "padding": "SAME", "dilations": [1, 1]}
    output = bare().inq_conv(*operands)
    assert output.shape == (2, 3, 4, 5)
    for same in (
        bare().inq_conv(*operands, bits=5, **moved),
        tf_capsops.inq_conv2d(*operands),
    ):
        np.testing.assert_array_equal(output, same)
    sizes = tf.shape(inputs)
    by_input = bare().inq_conv_backprop_input(sizes, codes, exponent, output)
    same = bare().inq_conv_backprop_input(
        sizes, codes, exponent, output, bits=5, **moved
    )
    np.testing.assert_array_equal(by_input, same)


def test_name_is_the_ops_name():
    with tf.Graph().as_default():
        output = tf_capsops.inq_conv2d(*_operands(), name="conv")
    assert (output.op.name, output.op.type) == ("conv", "InqConv")
