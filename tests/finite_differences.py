# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gradients of smooth functions against finite differences, in float64."""

import frames
import numpy as np
import tensorflow as tf
import tolerances

_DELTA = 2.0**-14
_DIRECTIONS = 2  # for each argument


def assert_gradients_agree(function, arguments):
    """Asserts that autodiff of `function` agrees with central differences.

    Both give the derivative of a random sum of the results in a random direction, to
    which every element of the Jacobian contributes.

    The error of central differences grows with the square of the step. So the
    differences at one step and at two tell how large it is at one, a third of what
    they differ by; twice that and the rounding of the two values are allowed.

    Args:
        function: Takes float64 tensors and returns one; smooth around `arguments`.
        arguments: float64 arrays.
    """
    function = frames.switched(function)
    arguments = [tf.constant(argument, tf.float64) for argument in arguments]
    rng = np.random.default_rng(0)

    def weights(shape):
        return rng.uniform(0.5, 1.0, shape) * rng.choice([-1.0, 1.0], shape)

    for _ in range(_DIRECTIONS):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            results = function(*arguments)
        of_result = tf.constant(weights(results.shape))
        gradients = tape.gradient(results, arguments, of_result, "zero")
        size = 1 + np.abs(results).sum()
        rounding = 64 * tolerances.ulp(np.float64) * size / _DELTA
        for place, gradient in enumerate(gradients):
            assert np.isfinite(gradient).all()
            direction = weights(gradient.shape)
            exact = np.sum(gradient * direction)

            def difference(delta, place=place, direction=direction, of=of_result):
                moved = [[*arguments], [*arguments]]
                moved[0][place] += delta * direction
                moved[1][place] -= delta * direction
                one, other = (function(*each) for each in moved)
                return np.sum((one - other) * of) / (2 * delta)

            near, far = difference(_DELTA), difference(2 * _DELTA)
            truncation = 2 / 3 * abs(far - near)
            error = abs(exact - near)
            assert error <= truncation + rounding, (error, truncation, rounding)
