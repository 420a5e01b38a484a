# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""InqConv, as the tests that all ops share see it."""

import functools

import numpy as np
import tensorflow as tf
from reference import inq_conv as reference

from descriptions import Description
from tf_capsops._portable import widened
from tf_capsops.bench import cases
from tf_capsops.ops.conv2d import product_of_patches
from tf_capsops.ops.inq_conv import plain

_SUITE = cases.suites()["InqConv"]


def _reference(grad, inputs, codes, top_exponent, **attributes):
    others = codes, int(top_exponent)
    return (
        reference.forward(inputs, *others, **attributes),
        reference.backprop_input(inputs.shape, *others, grad, **attributes),
    )


def _magnitude(grad, inputs, codes, top_exponent, **attributes):
    sizes = np.abs(grad), np.abs(inputs), reference.absolute(codes)
    return _reference(*sizes, top_exponent, **attributes)


def _positive(tensors):
    grad, inputs, codes, top_exponent = tensors
    codes = tf.constant(reference.absolute(codes.numpy()))
    return [tf.abs(grad), tf.abs(inputs), codes, top_exponent]


_FRAMES = {
    "higher_derivatives": [case.name for case in _SUITE.select(cases.GRADIENT)],
    "long_sums": ("long_sums", "long_sums_of_grad", "channels_33"),
    "tensor_float_32": (
        *("primes", "channels_33", "bits_8", "bits_4_by_16", "strides_2_2_SAME_large"),
    ),
    "unknown_shapes": ("primes", "strides_3_1_SAME_large", "dilations_1_3_by_2_SAME"),
}
_PLAIN = widened(functools.partial(plain, convolve=product_of_patches))
OP = Description(_SUITE, _PLAIN, _reference, _magnitude, _FRAMES, _positive)
