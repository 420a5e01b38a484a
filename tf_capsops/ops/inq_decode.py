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
    # The largest weight of a book may overflow float16 even if the weights in use fit.
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
