# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gradients of smooth functions against finite differences, in float64."""

import frames
import numpy as np
import tensorflow as tf
import tolerances

_DELTA = 2.0**-14


def assert_gradients_agree(function, arguments):
    """Asserts that autodiff of `function` agrees with central differences.

    The error of central differences grows with the square of the step. So the
    differences at one step and at two tell how large it is at one, a third of what
    they differ by; twice that and the rounding of the two values are allowed.

    Args:
        function: Takes float64 tensors and returns one; smooth around `arguments`.
        arguments: float64 arrays.
    """
    function = frames.switched(function)
    arguments = [np.asarray(argument, np.float64) for argument in arguments]
    largest = np.abs(function(*map(tf.constant, arguments))).max()
    theory, numeric = tf.test.compute_gradient(function, arguments, delta=_DELTA)
    _, coarse = tf.test.compute_gradient(function, arguments, delta=2 * _DELTA)
    for exact, near, far in zip(theory, numeric, coarse, strict=True):
        truncation = 2 / 3 * np.abs(far - near).max()
        rounding = 64 * tolerances.ulp(np.float64) * (1 + largest) / _DELTA
        error = np.abs(exact - near).max()
        assert np.isfinite(exact).all()
        assert error <= truncation + rounding, (error, truncation, rounding)
