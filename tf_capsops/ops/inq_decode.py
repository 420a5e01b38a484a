# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Weights from their codes, for layers whose ops take numbers."""

import math

import tensorflow as tf

from tf_capsops import _library, _portable
from tf_capsops.ops.inq_conv import decoded, powers_of_two

tf.no_gradient("InqDecode")


def inq_decode(codes, top_exponents, bits, dtype, axes=()):
    """Returns the weights that codes stand for, a tensor.

    Weights that are normal numbers of `dtype` are exact, as long as n1 is at most 127
    (1023 in float64); others may become infinite or zero.

    Args:
      codes: Codes as for `tf_capsops.inq_conv2d`, of any shape that is known, uint8.
      top_exponents: n1, a scalar, or one for each element of `axes` in row-major order;
        of any type of integers.
      bits: Bits of a code.
      dtype: A floating-point type.
      axes: The neighboring axes of the codes, from first to last, to whose elements
        exponents belong; () if there is one exponent.

    Raises:
      tf.errors.InvalidArgumentError: A code is past the book. A GPU does not check for
        this, and reads it as zero.
    """
    shape = codes.shape.as_list()
    # A book may start above what float16 holds, and its weights may be below.
    wide = tf.float32 if dtype == tf.float16 else dtype
    scales = tf.reshape(powers_of_two(top_exponents, wide), [-1])
    columns = 1
    if axes:
        columns = math.prod(shape[axes[0] :])
        scales = tf.repeat(scales, math.prod(shape[axes[-1] + 1 :]))
    codes = tf.reshape(codes, [math.prod(shape) // max(columns, 1), columns])
    if _portable.is_on():
        weights = decoded(codes, 0, bits, wide)
        weights = tf.where(weights == 0, weights, weights * scales)
    else:
        weights = _library.load().inq_decode(codes, scales, bits=bits)
    return tf.cast(tf.reshape(weights, shape), dtype)
