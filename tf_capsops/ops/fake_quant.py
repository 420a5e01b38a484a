# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rounding of numbers to integers of few bits and back, as TFLite does it."""

from typing import NamedTuple

import tensorflow as tf

from tf_capsops import _portable
from tf_capsops.ops.straight_through import with_gradient_of


class QuantizedRange(NamedTuple):
    """The range and bits of a rounded tensor, as `scale_and_zero_point` takes them."""

    lo: tf.Tensor
    hi: tf.Tensor
    bits: int


def with_range(tensor, quantized_range):
    """Attaches to a tensor how it was rounded, for layers that read this very tensor.

    Keras attaches masks to tensors in the same way.
    """
    tensor._capsops_quantized_range = quantized_range
    return tensor


def range_of(tensor):
    """Returns the `QuantizedRange` attached to a tensor, or None if there is none."""
    return getattr(tensor, "_capsops_quantized_range", None)


def scale_and_zero_point(lo, hi, bits=8):
    """Returns the scale and zero point of an affine quantization, as TFLite nudges it.

    A number x becomes the integer `clip(round(x / scale) + zero_point, 0, 2^bits - 1)`,
    and an integer q stands for `(q - zero_point) * scale`. Zero is exact. Equations 1
    and 13 of Jacob et al. (2018).

    Args:
      lo, hi: the range, float32 scalars. It is extended to 0 if it does not contain 0.
      bits: bits of an integer, 2 to 8.

    Returns:
      Two float32 scalars, tensors: the scale, `(hi - lo) / (2^bits - 1)`, and the zero
      point, a whole number from 0 to `2^bits - 1`. Both are 0 if `lo` and `hi` are.

    >>> from tf_capsops.ops.fake_quant import scale_and_zero_point
    >>> scale, zero_point = scale_and_zero_point(-1.0, 4.1, bits=8)
    >>> round(float(scale), 6), float(zero_point)
    (0.02, 50.0)
    """
    lo, hi = _with_zero(lo, hi)
    scale = (hi - lo) / (2**bits - 1)
    return scale, tf.floor(tf.math.divide_no_nan(-lo, scale) + 0.5)


def fake_quant(inputs, lo, hi, bits=8):
    """Rounds numbers to the integers of `scale_and_zero_point` and back.

    The gradient is straight-through: for numbers in the range, it goes to the inputs;
    for numbers below or above, it goes to `lo` or `hi`.

    Args:
      inputs: floating-point tensor; it is rounded in float32.
      lo, hi, bits: as `scale_and_zero_point` takes them. A range of 0 to 0 gives zeros.

    Returns:
      A tensor of the shape and type of `inputs`.
    """
    numbers = tf.cast(inputs, tf.float32)
    ends = _with_zero(lo, hi)
    if _portable.is_on():
        return tf.cast(_plain(numbers, *ends, bits), inputs.dtype)
    # The gradient of TensorFlow's op is not deterministic on a GPU.
    rounded = with_gradient_of(
        lambda *tensors: _clipped(*tensors, bits),
        lambda *tensors: _rounded(*tensors, bits),
    )(numbers, *ends)
    return tf.cast(rounded, inputs.dtype)


def _rounded(numbers, lo, hi, bits):
    # Compiled by XLA, TensorFlow's op divides by the width of the range, which must not
    # be 0. The widest range replaces an empty one: it rounds numbers below 2^118 to
    # zero, and is faster than a `tf.where` over all numbers.
    hi = tf.where(hi > lo, hi, hi.dtype.max)
    return tf.quantization.fake_quant_with_min_max_vars(numbers, lo, hi, bits)


def _clipped(numbers, lo, hi, bits):
    smallest, largest = _ends(lo, hi, bits)
    return tf.clip_by_value(numbers, _passing(lo, smallest), _passing(hi, largest))


def _plain(numbers, lo, hi, bits):
    """Computes `fake_quant` for converters, which take TensorFlow's at 8 bits only."""
    scale, _ = scale_and_zero_point(lo, hi, bits)
    smallest, _ = _ends(lo, hi, bits)
    clipped = _clipped(numbers, lo, hi, bits)
    steps = tf.math.divide_no_nan(clipped - smallest, scale)
    return _passing(clipped, tf.floor(steps + 0.5) * scale + smallest)


def _ends(lo, hi, bits):
    """Returns the smallest and the largest number that the integers stand for."""
    scale, zero_point = scale_and_zero_point(lo, hi, bits)
    return -zero_point * scale, (2**bits - 1 - zero_point) * scale


def _passing(tensor, value):
    """Returns `value` with the gradient of `tensor`."""
    return tf.stop_gradient(value) + (tensor - tf.stop_gradient(tensor))


def _with_zero(lo, hi):
    lo, hi = (tf.convert_to_tensor(each, tf.float32) for each in (lo, hi))
    return tf.minimum(lo, 0.0), tf.maximum(hi, 0.0)
