# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleConv's values and gradients, against the float64 reference."""

import numpy as np
import tensorflow as tf

import tf_capsops


def test_example_of_all_ones(device):
    """The figure of paper 001: every number of the output is 48."""
    image, kernel = tf.ones((1, 5, 5, 1, 3, 3, 3)), tf.ones((4, 4, 1, 1, 3, 3, 3))
    output = tf_capsops.capsule_conv2d(image, kernel)
    np.testing.assert_array_equal(output, np.full((1, 2, 2, 1, 3, 3, 3), 48))
