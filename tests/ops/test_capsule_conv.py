# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleConv's values and gradients, against the float64 reference."""

import frames
import numpy as np
import pytest
import tensorflow as tf
from descriptions import every_dtype, half_types
from descriptions.capsule_conv import OP

import tf_capsops


@every_dtype
@OP.every_case
def test_values_and_gradients(case, dtype, device):
    frames.values_and_gradients(OP, case, dtype, device)


def test_example_of_all_ones(device):
    """The figure of paper 001: every number of the output is 48."""
    image, kernel = (
        tf.ones(array.shape)
        for array in OP.draw(OP.case("all_ones_48"), tf.float32)[1:]
    )
    output = tf_capsops.capsule_conv2d(image, kernel)
    np.testing.assert_array_equal(output, np.full((1, 2, 2, 1, 3, 3, 3), 48))


@every_dtype
@pytest.mark.parametrize(
    "name",
    [
        *("ones", "primes", "strides_2_2_SAME", "dilations_3_2_by_2_VALID"),
        *("pose_2_4_3_moved", "pose_3_3_3_3_moved", "small_image_2_1", *OP.empty),
    ],
)
def test_second_derivatives(name, dtype, device):
    frames.second_derivatives_of_a_bilinear_op(OP, name, dtype)


@pytest.mark.parametrize("rival", OP.suite.rivals)
@pytest.mark.parametrize(
    "name", ["primes", "strides_3_1_SAME_large", "pose_5_7_2_moved", "pose_5_1_8_3"]
)
def test_rivals(name, rival, device):
    frames.rival(OP, name, rival)


@half_types
@pytest.mark.parametrize(
    "name", ["long_sums", "long_sums_of_grad", "long_sums_of_pixels", "channels_33"]
)
def test_half_types_accumulate_in_float32(name, dtype, device):
    case = OP.case(name)
    frames.sums_are_rounded_once(OP, case, [*map(tf.abs, OP.draw(case, dtype))])


@half_types
def test_half_types_do_not_overflow_inside(dtype, device):
    """Each product of 90000 is past float16's largest number; their sum is not."""
    inputs = tf.fill((1, 2, 2, 2, 4, 4), tf.constant(300, dtype))
    signs = tf.reshape(tf.constant([1, -1], dtype), (1, 1, 2, 1, 1, 1))
    weights = signs * tf.fill((2, 2, 2, 3, 4, 4), tf.constant(300, dtype))
    output = tf_capsops.capsule_conv2d(inputs, weights)
    np.testing.assert_array_equal(output.numpy(), np.zeros((1, 1, 1, 3, 4, 4)))


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize(
    "name", ["primes", "channels_33", "pose_8_8_8", "pose_5_7_2", "strides_2_2_SAME"]
)
def test_tensor_float_32_follows_the_switch(name, allowed, device):
    frames.tensor_float_32_follows_the_switch(OP, name, allowed)


@every_dtype
@pytest.mark.parametrize(
    "name", ["primes", "pose_2_2_4_4_moved", "dilations_1_3_by_2_SAME", *OP.empty]
)
def test_unknown_shapes_change_nothing(name, dtype, device):
    frames.unknown_shapes_change_nothing(OP, name, dtype)


@every_dtype
@pytest.mark.parametrize("name", OP.empty)
def test_empty_dimensions_give_zeros(name, dtype, device):
    frames.empty_dimensions_give_zeros(OP, name, dtype)


def test_accepts_what_tensorflow_converts(device):
    """Arrays, nested lists and variables, as any function of TensorFlow does."""
    inputs, weights = np.float32([[[[[[1, 2]]]]]]), [[[[[[3.0], [4.0]]]]]]
    for convert in (tf.Variable, tf.constant, np.float32, np.ndarray.tolist):
        output = tf_capsops.capsule_conv2d(convert(inputs), weights)
        np.testing.assert_array_equal(output, [[[[[[11]]]]]])


def test_one_number_is_both(device):
    _, *inputs = OP.draw(OP.case("primes"), tf.float32)
    for padding in ("VALID", "SAME"):
        one = tf_capsops.capsule_conv2d(*inputs, 2, padding.lower(), 3)
        both = tf_capsops.capsule_conv2d(
            *inputs, strides=[2, 2], padding=padding, dilations=(3, 3)
        )
        np.testing.assert_array_equal(one, both)
