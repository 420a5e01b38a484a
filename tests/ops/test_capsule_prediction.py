# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsulePrediction's values and gradients, against the float64 reference."""

import itertools
import unittest

import frames
import numpy as np
import pytest
import tensorflow as tf
from descriptions import every_dtype, exact, half_types
from descriptions.capsule_prediction import OP
from parameterized import parameterized
from tolerances import assert_close

import tf_capsops
from tf_capsops.bench import cases

WAYS = {"eager": lambda f: f, "tf.function": lambda f: tf.function(f)}


@every_dtype
@OP.every_case
def test_values_and_gradients(case, dtype, device):
    frames.values_and_gradients(OP, case, dtype, device)


@every_dtype
@pytest.mark.parametrize(
    "name", ["ones", "primes", "mnist_layer", "empty_batch", "empty_reduction"]
)
def test_second_derivatives(name, dtype, device):
    frames.second_derivatives_of_a_bilinear_op(OP, name, dtype)


@half_types
@pytest.mark.parametrize("name", ["long_rows", "columns_513", "batch_129"])
def test_half_types_accumulate_in_float32(name, dtype, device):
    case = OP.case(name)
    frames.sums_are_rounded_once(OP, case, [*map(tf.abs, OP.draw(case, dtype))])


@every_dtype
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["primes", "empty_batch", "empty_reduction"])
def test_unknown_shapes_change_nothing(name, way, dtype, device):
    frames.unknown_shapes_change_nothing(OP, name, dtype, WAYS[way])


@every_dtype
def test_empty_batch(dtype, device):
    grad, inputs = tf.zeros((0, 3, 2, 4), dtype), tf.zeros((0, 3, 8), dtype)
    weights = tf.ones((3, 2, 4, 8), dtype)
    assert tf_capsops.capsule_prediction(inputs, weights).shape == (0, 3, 2, 4)
    by_input, by_weights = OP.gradients(
        tf_capsops.capsule_prediction, grad, inputs, weights
    )
    assert by_input.shape == (0, 3, 8)
    np.testing.assert_array_equal(by_weights.numpy(), np.zeros((3, 2, 4, 8)))


@every_dtype
def test_empty_reductions_give_zeros(dtype, device):
    output = tf_capsops.capsule_prediction(
        tf.ones((2, 3, 0), dtype), tf.ones((3, 4, 5, 0), dtype)
    )
    np.testing.assert_array_equal(output.numpy(), np.zeros((2, 3, 4, 5)))
    by_input, _ = OP.gradients(
        tf_capsops.capsule_prediction,
        tf.ones((2, 3, 0, 5), dtype),
        tf.ones((2, 3, 6), dtype),
        tf.ones((3, 0, 5, 6), dtype),
    )
    np.testing.assert_array_equal(by_input.numpy(), np.zeros((2, 3, 6)))


def test_accepts_what_tensorflow_converts(device):
    """Arrays, nested lists and variables, as any function of TensorFlow does."""
    inputs = np.float32([[[1, 2]]])
    weights = [[[[3.0, 4.0], [5.0, 6.0]]]]
    for convert in (tf.Variable, tf.constant, np.float32, np.ndarray.tolist):
        output = tf_capsops.capsule_prediction(convert(inputs), weights)
        np.testing.assert_array_equal(output.numpy(), [[[[11, 17]]]])


class PaperTest(unittest.TestCase):
    """The forward test of paper 002, on its grid of sizes."""

    @parameterized.expand(
        itertools.product(
            [f"{d.device_type}:0" for d in tf.config.list_logical_devices()],
            OP.suite.select(cases.PAPER),
        )
    )
    def test_forward(self, device, case):
        with tf.device(device):
            _, inputs, weights = map(abs, OP.draw(case, tf.float32))
            output = tf_capsops.capsule_prediction(inputs, weights)
            plain = OP.plain(inputs, weights)
        truth = np.zeros(output.shape)
        exact_inputs, exact_weights = exact([inputs, weights])
        for b, i, j, d in np.ndindex(truth.shape):
            truth[b, i, j, d] = exact_inputs[b, i] @ exact_weights[i, j, d]
        assert_close(output.numpy(), truth, plain.numpy())
