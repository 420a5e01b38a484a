# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsulePrediction's values on the paper's grid, and what it takes."""

import itertools
import unittest

import numpy as np
import tensorflow as tf
from descriptions import exact
from descriptions.capsule_prediction import OP
from frames import call
from parameterized import parameterized
from tolerances import assert_close

import tf_capsops
from tf_capsops.bench import cases


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
            output = call(tf_capsops.capsule_prediction, inputs, weights)
            plain = OP.plain(inputs, weights)
        truth = np.zeros(output.shape)
        exact_inputs, exact_weights = exact([inputs, weights])
        for b, i, j, d in np.ndindex(truth.shape):
            truth[b, i, j, d] = exact_inputs[b, i] @ exact_weights[i, j, d]
        assert_close(output.numpy(), truth, plain.numpy())
