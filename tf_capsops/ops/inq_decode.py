# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Decoding of weights from codes, for layers whose ops take numbers."""

import math

import tensorflow as tf

from tf_capsops import _library, _portable
from tf_capsops.ops.inq_conv import decoded, powers_of_two

tf.no_gradient("InqDecode")


def inq_decode(codes, top_exponents, bits, dtype, axes=()):
    """Returns the weights that codes stand for, as a tensor.

    If top exponents are at most 127 (1023 in float64), weights that are normal numbers
    of `dtype` are exact. Other weights may become infinite or zero.

    Args:
      codes: Codes as for `tf_capsops.inq_conv2d`, uint8, of any known shape.
      top_exponents: The exponent of the largest weights of the code book, a scalar of
        any integer type; or one for each element of `axes`, in row-major order.
      bits: Bits of a code.
      dtype: A floating-point type.
      axes: The axes of the codes that have a code book for each element: neighboring
        axes, in ascending order; () for a single book.

    Raises:
      tf.errors.InvalidArgumentError: A code is past the end of the book. A GPU does not
        check for this, and reads it as zero.
    """
    shape = codes.shape.as_list()
    exponents = tf.reshape(tf.cast(top_exponents, tf.int64), [-1])
    columns = math.prod(shape[axes[0] :]) if axes else 1
    if axes and axes[-1] + 1 < len(shape):
        exponents = tf.repeat(exponents, math.prod(shape[axes[-1] + 1 :]))
    codes = tf.reshape(codes, [math.prod(shape) // max(columns, 1), columns])
    if not _portable.is_on():
        op = _library.load().inq_decode
        return tf.reshape(op(codes, exponents, bits=bits, T=dtype), shape)
    # The largest weight of a book may overflow float16 even if the weights in use fit.
    wide = tf.float32 if dtype == tf.float16 else dtype
    weights = decoded(codes, 0, bits, wide)
    scales = powers_of_two(exponents, wide)
    weights = tf.where(weights == 0, weights, weights * scales)
    return tf.cast(tf.reshape(weights, shape), dtype)
