# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The one rule for how far a result may be from the truth, in every test.

The truth is a float64 reference evaluated at exactly the numbers the op was given.
The yardstick is plain TensorFlow, computing the same in the same dtype on the same
device: an op of ours may be off by twice its error. Where plain TensorFlow happens to
be exact, a few units in the last place remain, of the sum of the absolute values of
the terms (not of the result, which may cancel).
"""

import ml_dtypes
import numpy as np

_YARDSTICKS = 2
_ULPS = 4


def ulp(dtype):
    """Returns the distance from 1 to the next number of a floating dtype."""
    return float(ml_dtypes.finfo(np.dtype(dtype)).eps)


def _float64(tensor):
    return np.asarray(tensor).astype(np.float64)


def assert_close(actual, truth, plain, magnitude=None):
    """Asserts that a result is as exact as plain TensorFlow's.

    Args:
        actual: Our result.
        truth: The float64 reference.
        plain: Plain TensorFlow's result, in the dtype of `actual`; or a function that
            returns it, which is called where a few units in the last place do not
            suffice.
        magnitude: The reference evaluated at the inputs' absolute values. Without it
            the reference itself.
    """
    dtype = np.asarray(actual).dtype
    actual = _float64(actual)
    assert actual.shape == truth.shape
    if not truth.size:
        return
    magnitude = np.abs(truth if magnitude is None else magnitude)
    allowed = _ULPS * ulp(dtype) * magnitude
    error = np.abs(actual - truth)
    if callable(plain):
        if np.all(error <= allowed):
            return
        plain = plain()
    assert np.asarray(plain).dtype == dtype
    allowed = allowed + _YARDSTICKS * np.abs(_float64(plain) - truth).max()
    worst = np.unravel_index(np.argmax(error - allowed), error.shape)
    # Written so that a NaN in the result fails.
    assert np.all(error <= allowed), (
        f"{np.sum(~(error <= allowed))} of {error.size} wrong, worst at {worst}: "
        f"{actual[worst]}, not {truth[worst]}, in {dtype}; "
        f"error {error[worst]:.3g}, allowed {allowed[worst]:.3g}"
    )


def assert_rounded(actual, truth):
    """Asserts that a result of positive terms is the truth rounded to its dtype.

    One unit in the last place suffices where the sums were kept in a wider type; a sum
    in the dtype itself drifts away from it as terms are added.
    """
    dtype = np.asarray(actual).dtype
    error = np.abs(_float64(actual) - truth)
    assert np.all(error <= ulp(dtype) * truth), (error / (ulp(dtype) * truth)).max()


def assert_jacobians_close(jacobians, magnitude, delta):
    """Asserts that a gradient agrees with finite differences, for a linear function.

    Args:
        jacobians: What tf.test.compute_gradient returned.
        magnitude: Largest absolute value of the function's result, which is what is
            rounded before two results are subtracted and divided by `2 * delta`.
        delta: The step given to compute_gradient, which is exact at the sources.
    """
    for theoretical, numeric in zip(*jacobians, strict=True):
        error = np.abs(_float64(theoretical) - _float64(numeric))
        allowed = _ULPS * ulp(theoretical.dtype) * magnitude / delta
        assert np.all(error <= allowed), (error.max(), allowed)
