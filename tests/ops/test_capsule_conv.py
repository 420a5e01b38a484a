# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleConv's values: examples, overflow, and what it takes for arguments."""

import numpy as np
import tensorflow as tf
from descriptions import half_types
from descriptions.capsule_conv import OP
from frames import call

import tf_capsops


def test_example_of_all_ones(device):
    """The figure of paper 001: every number of the output is 48."""
    image, kernel = (
        tf.ones(array.shape)
        for array in OP.draw(OP.case("all_ones_48"), tf.float32)[1:]
    )
    output = call(tf_capsops.capsule_conv2d, image, kernel)
    np.testing.assert_array_equal(output, np.full((1, 2, 2, 1, 3, 3, 3), 48))


@half_types
def test_half_types_do_not_overflow_inside(dtype, device):
    """Each product of 90000 is past float16's largest number; their sum is not."""
    inputs = tf.fill((1, 2, 2, 2, 4, 4), tf.constant(300, dtype))
    signs = tf.reshape(tf.constant([1, -1], dtype), (1, 1, 2, 1, 1, 1))
    weights = signs * tf.fill((2, 2, 2, 3, 4, 4), tf.constant(300, dtype))
    output = call(tf_capsops.capsule_conv2d, inputs, weights)
    np.testing.assert_array_equal(output.numpy(), np.zeros((1, 1, 1, 3, 4, 4)))


def test_accepts_what_tensorflow_converts(device):
    """Arrays, nested lists and variables, as any function of TensorFlow does."""
    inputs, weights = np.float32([[[[[[1, 2]]]]]]), [[[[[[3.0], [4.0]]]]]]
    for convert in (tf.Variable, tf.constant, np.float32, np.ndarray.tolist):
        output = tf_capsops.capsule_conv2d(convert(inputs), weights)
        np.testing.assert_array_equal(output, [[[[[[11]]]]]])


def test_one_number_is_both(device):
    _, *inputs = OP.draw(OP.case("primes"), tf.float32)
    for padding in ("VALID", "SAME"):
        one = call(tf_capsops.capsule_conv2d, *inputs, 2, padding.lower(), 3)
        both = tf_capsops.capsule_conv2d(
            *inputs, strides=[2, 2], padding=padding, dilations=(3, 3)
        )
        np.testing.assert_array_equal(one, both)
