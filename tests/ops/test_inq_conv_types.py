# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""InqConv's ops: types of codes, exponents and sizes, and defaults."""

import re

import numpy as np
import pytest
import tensorflow as tf
from frames import both_ways
from registrations import bare, refusal

import tf_capsops


def _operands(dtype=tf.float32, codes=tf.uint8, exponent=tf.int32):
    return (
        tf.ones((2, 3, 4, 2), dtype),
        tf.ones((2, 2, 2, 5), codes),
        tf.ones((), exponent),
    )


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
def test_codes_and_exponents_have_one_type(wrong, expected, way, device):
    def compute():
        return tf_capsops.inq_conv2d(*_operands(**wrong))

    def bare_compute():
        inputs, *others = _operands(**wrong)
        grad = tf.ones((2, 3, 4, 5))
        return bare().inq_conv_backprop_input(tf.shape(inputs), *others, grad)

    (given,) = wrong.values()
    for function in (compute, bare_compute):
        text = refusal(function, way)
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
def test_sizes_are_int32(way, device):
    def compute():
        inputs, *others = _operands()
        grad = tf.ones((2, 3, 4, 5))
        sizes = tf.shape(inputs, tf.int64)
        return bare().inq_conv_backprop_input(sizes, *others, grad)

    text = refusal(compute, way)
    assert "int64" in text and "int32" in text


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
