# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The digamma function, also of operators that every converter has."""

import tensorflow as tf

from tf_capsops import _portable

_STEPS = 8  # of the recurrence, so that the series is of 9 and more
# B_2k / 2k of the Bernoulli numbers B, for the powers x^-2, x^-4, ...
_SERIES = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)


def digamma(values):
    """Returns the logarithmic derivative of the gamma function, at 1 and above.

    Under `tf_capsops.portable` by its recurrence and its asymptotic series (Abramowitz
    and Stegun, 6.3.5 and 6.3.18): neither ONNX nor TFLite has an operator for it. The
    error is below 1e-14 in float64, and that of rounding in float32.

    Args:
      values: A tensor of float32 or float64, of numbers of at least 1.
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
