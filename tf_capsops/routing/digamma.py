# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The digamma function, in portable graphs built from ops that converters support."""

import tensorflow as tf

from tf_capsops import _portable

_STEPS = 8  # The recurrence shifts arguments of 1 or more to 9 or more.
# The coefficients B_2k / 2k of x^-2, x^-4, ..., where B are the Bernoulli numbers.
_SERIES = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)


def digamma(values):
    """Returns the logarithmic derivative of the gamma function.

    ONNX and TFLite have no operator for it. Under `tf_capsops.portable` it is computed
    by its recurrence and its asymptotic series (Abramowitz and Stegun, 6.3.5 and
    6.3.18). The error is below 1e-14 in float64, and only rounding in float32.

    Args:
      values: A float32 or float64 tensor of numbers that are at least 1.
    """
    if not _portable.is_on():
        return tf.math.digamma(values)
    shifted = values + _STEPS
    inverse_square = 1.0 / tf.square(shifted)
    series = tf.zeros_like(values)
    for coefficient in reversed(_SERIES):
        series = (series + coefficient) * inverse_square
    below = tf.add_n([1.0 / (values + step) for step in range(_STEPS)])
    return tf.math.log(shifted) - 0.5 / shifted - series - below
