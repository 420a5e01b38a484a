# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Portable ops check sizes that are unknown while a graph is built when it runs."""

import numpy as np
import pytest
import tensorflow as tf

import tf_capsops

_MOMENTS = tf_capsops.capsule_moments
_ROUTING = tf_capsops.capsule_routing
_COEFFICIENTS = tf_capsops.routing_coefficients
_POSES, _KERNEL = (2, 5, 4, 3, 4, 4), (2, 2, 3, 6, 4, 4)


def _center(poses, weights, center):
    return _MOMENTS(poses, None, weights, center=center)


def _prior(poses, weights, prior):
    return _MOMENTS(poses, None, weights, prior=prior)


def _moments(poses, activations):
    return _MOMENTS(poses, activations, tf.ones(_KERNEL))


def _slim(inputs, weights, logits):
    return tf_capsops.capsule_conv_routing(inputs, weights, logits=logits)


def _high_order(inputs, filters):
    return tf_capsops.high_order_conv2d(inputs, filters, 3)


def _inq(inputs, codes):
    return tf_capsops.inq_conv2d(inputs, tf.cast(codes, tf.uint8), 0)


# A function, shapes of operands that do not fit, and what the error names. TensorFlow
# would broadcast, reshape or group these operands.
@pytest.mark.parametrize(
    "function, shapes, named",
    [
        (_moments, [_POSES, (2, 4, 5, 3)], "activations dim 1 (in_height)"),
        (_center, [_POSES, _KERNEL, (2, 4, 3, 6, 2, 8)], "center dim 4 (pose_rows)"),
        (_center, [_POSES, _KERNEL, (2, 3, 4, 6, 4, 4)], "center dim 1 (out_height)"),
        (_prior, [_POSES, _KERNEL, (2, 2, 6, 3)], "prior dim 2 (in_channels)"),
        (_ROUTING, [(2, 4, 8), (4, 3, 6, 8), (4, 1)], "logits dim 1 (out_caps)"),
        (_ROUTING, [(2, 1, 4), (5, 3, 6, 4)], "weights dim 0 (in_caps)"),
        (_COEFFICIENTS, [(2, 4, 8), (4, 3, 6, 8), (4, 2)], "logits dim 1 (out_caps)"),
        (_COEFFICIENTS, [(2, 5, 8), (4, 3, 6, 8)], "weights dim 0 (in_caps)"),
        (_slim, [(1, 5, 5, 3, 4), (2, 2, 4, 2, 3), (3, 1)], "logits dim 1 (parents)"),
        (
            tf_capsops.capsule_conv2d,
            [(2, 5, 5, 4, 4, 2), (2, 2, 2, 2, 4, 4)],
            "weights dim 2 (in_channels)",
        ),
        (
            tf_capsops.capsule_conv2d_bias_relu,
            [(1, 5, 5, 4, 4, 4), (2, 2, 4, 2, 4, 4), (1, 4, 4)],
            "bias dim 0 (out_channels)",
        ),
        (
            tf_capsops.capsule_conv2d_transpose,
            [(1, 5, 5, 4, 4, 4), (0, 0, 4, 2, 4, 4)],
            "weights dim 0 (kernel_height) must be at least 1",
        ),
        (
            tf_capsops.capsule_prediction,
            [(2, 1, 4), (5, 3, 6, 4)],
            "weights dim 0 (in_caps)",
        ),
        (_high_order, [(1, 5, 4, 2), (1, 4, 5, 9)], "filters dim 1 (height)"),
        (_inq, [(1, 5, 5, 4), (3, 3, 2, 4)], "codes dim 2 (in_channels)"),
    ],
)
def test_unknown_sizes_are_checked(function, shapes, named):
    kernel_is_needed = function in (_center, _prior)
    signature = [
        tf.TensorSpec(shape if kernel_is_needed and each == 1 else [None] * len(shape))
        for each, shape in enumerate(shapes)
    ]
    operands = [tf.ones(shape) for shape in shapes]
    with tf_capsops.portable():
        graph = tf.function(function, input_signature=signature)
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            graph(*operands)
    assert named in str(error.value)


def _gradient(inputs, weights):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = tf_capsops.capsule_conv2d(inputs, weights, 3, "SAME", (2, 1))
    return tape.gradient(outputs, inputs)


def test_kernel_rows_that_read_nothing_have_gradients_under_xla():
    operands = tf.ones([1, 4, 2, 2, 2, 2]), tf.ones([1, 3, 2, 2, 2, 2])
    with tf_capsops.portable():
        compiled = tf.function(_gradient, jit_compile=True)(*operands)
    np.testing.assert_array_equal(compiled, _gradient(*operands))


def test_one_channel_and_unequal_strides():
    inputs = tf.random.stateless_normal([3, 4, 3, 1, 1, 1], (1, 2))
    weights = tf.ones([1, 2, 1, 1, 1, 1])
    expected = tf_capsops.capsule_conv2d(inputs, weights, (1, 2))
    with tf_capsops.portable():
        found = tf_capsops.capsule_conv2d(inputs, weights, (1, 2))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
