# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Convolutions along lines and in volumes, and transposed convolutions."""

import contextlib
import functools
import re

import finite_differences
import numpy as np
import pytest
import tensorflow as tf
from descriptions import every_dtype, exact
from frames import call
from reference import windows as reference
from tolerances import assert_close

import tf_capsops

_line, _volume = tf_capsops.capsule_conv1d, tf_capsops.capsule_conv3d
_image_up = tf_capsops.capsule_conv2d_transpose
_volume_up = tf_capsops.capsule_conv3d_transpose
_CONVOLUTIONS = {
    # function, image, kernel, pose depth, strides, padding, dilations
    "line": (_line, (11,), (3,), (), (2,), "VALID", (2,)),
    "line_same_deep": (_line, (7,), (4,), (3,), (1,), "SAME", (1,)),
    "volume": (_volume, (7, 5, 6), (3, 2, 3), (), (2, 1, 3), "VALID", (2, 1, 1)),
    "volume_same": (_volume, (5, 4, 3), (4, 3, 1), (), (2, 1, 2), "SAME", (1, 1, 1)),
    "volume_deep": (_volume, (4, 3, 3), (2, 2, 2), (3,), (1, 1, 1), "SAME", (2, 1, 2)),
    "no_slices": (_volume, (0, 3, 3), (3, 3, 3), (), (2, 1, 1), "SAME", (1, 1, 1)),
}
_TRANSPOSED = {
    # function, image, kernel, pose depth, strides, padding
    "image": (_image_up, (3, 4), (3, 2), (), (2, 3), "VALID"),
    "image_same": (_image_up, (3, 4), (4, 3), (), (2, 1), "SAME"),
    "image_deep": (_image_up, (2, 3), (3, 3), (3,), (1, 2), "SAME"),
    "volume": (_volume_up, (3, 2, 3), (5, 3, 2), (), (2, 1, 3), "VALID"),
    "volume_same": (_volume_up, (3, 2, 3), (4, 2, 3), (), (2, 2, 1), "SAME"),
    "volume_deep": (_volume_up, (2, 2, 2), (2, 3, 3), (3,), (3, 1, 2), "SAME"),
}


def _drawn(image, kernel, depth, dtype):
    random = np.random.default_rng(3)
    inputs = random.uniform(-1, 1, (2, *image, 2, *depth, 2, 3))
    weights = random.uniform(-1, 1, (*kernel, 2, 3, *depth, 3, 4))
    return tf.constant(inputs, dtype), tf.constant(weights, dtype)


def _assert_as_exact(compute, operands, truth):
    """Asserts that a result is as exact as the portable definition's."""

    def portable():
        with tf_capsops.portable():
            return compute(*operands)

    values = exact(operands)
    magnitude = truth(*map(np.abs, values))
    assert_close(call(compute, *operands), truth(*values), portable, magnitude)
    with tf_capsops.portable():
        assert_close(call(compute, *operands), truth(*values), portable, magnitude)


@every_dtype
@pytest.mark.parametrize("name", _CONVOLUTIONS)
def test_convolutions(name, dtype, device):
    function, *shapes, strides, padding, dilations = _CONVOLUTIONS[name]
    window = {"strides": strides, "padding": padding, "dilations": dilations}
    compute = functools.partial(function, **window)
    truth = functools.partial(reference.convolution, **window)
    _assert_as_exact(compute, _drawn(*shapes, dtype), truth)


@every_dtype
@pytest.mark.parametrize("name", _TRANSPOSED)
def test_transposed_convolutions(name, dtype, device):
    function, *shapes, strides, padding = _TRANSPOSED[name]
    window = {"strides": strides, "padding": padding}
    compute = functools.partial(function, **window)
    truth = functools.partial(reference.transposed, **window)
    _assert_as_exact(compute, _drawn(*shapes, dtype), truth)


def _functions():
    for name, (function, *shapes, strides, padding, _) in _CONVOLUTIONS.items():
        yield pytest.param(function, shapes, strides, padding, id=f"{name}_forth")
    for name, (function, *shapes, strides, padding) in _TRANSPOSED.items():
        yield pytest.param(function, shapes, strides, padding, id=f"{name}_back")


@pytest.mark.parametrize("function, shapes, strides, padding", _functions())
def test_gradients_of_both_orders(function, shapes, strides, padding, device):
    def square(*operands):
        return function(*operands, strides, padding) ** 2

    def slopes(*operands):
        with tf.GradientTape() as tape:
            tape.watch(operands)
            result = square(*operands)
        return tf.concat(
            [tf.reshape(each, [-1]) for each in tape.gradient(result, operands)], 0
        )

    operands = _drawn(*shapes, tf.float64)
    for each in (square, slopes):  # calls of a graph take less time
        each = tf.function(each, autograph=False)
        finite_differences.assert_gradients_agree(each, operands)


@pytest.mark.parametrize("function, shapes, strides, padding", _functions())
def test_sizes_that_are_unknown(function, shapes, strides, padding, device):
    inputs, weights = _drawn(*shapes, tf.float64)
    expected = function(inputs, weights, strides, padding)
    axes = len(strides)
    unknown = [None] * (1 + axes) + inputs.shape.as_list()[1 + axes :]

    def compute(each):
        each = tf.raw_ops.PlaceholderWithDefault(input=each, shape=unknown)
        return function(each, weights, strides, padding)

    result = tf.function(compute, autograph=False)(inputs)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "function, inputs, weights, arguments, text",
    [
        (
            _volume,
            (1, 4, 4, 4, 2, 4, 4),
            (5, 3, 3, 2, 3, 4, 4),
            {},
            "weights dim 0 (kernel_depth) must be at most 4",
        ),
        (
            _line,
            (1, 9, 2, 4, 4),
            (3, 3, 3, 4, 4),
            {},
            "weights dim 1 (in_channels) must be 2, got [3,3,3,4,4]",
        ),
        (
            _line,
            (1, 9, 2, 4),
            (3, 2, 3, 4, 4),
            {},
            "capsule_conv1d: input must have rank 5 [batch, in_width, in_channels, "
            "pose_rows, pose_inner] or 6",
        ),
        (
            _volume_up,
            (1, 4, 4, 4, 2, 4, 4),
            (0, 3, 3, 2, 3, 4, 4),
            {},
            "weights dim 0 (kernel_depth) must be at least 1",
        ),
        (
            _volume,
            (1, 4, 4, 4, 2, 4, 4),
            (3, 3, 3, 2, 3, 4, 4),
            {"strides": (1, 2)},
            "capsule_conv3d: strides must be one or three integers, got (1, 2)",
        ),
        (
            _image_up,
            (1, 4, 4, 2, 4, 4),
            (3, 3, 2, 3, 4, 4),
            {"padding": "FULL"},
            "padding must be 'VALID' or 'SAME', got 'FULL'",
        ),
    ],
)
def test_what_does_not_fit(function, inputs, weights, arguments, text, device):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)) as caught:
        function(tf.ones(inputs), tf.ones(weights), **arguments)
    assert text in str(caught.value)


def test_a_kernel_whose_depth_is_unknown_is_refused():
    @tf.function(autograph=False)
    def compute(weights):
        weights = tf.ensure_shape(weights, [None, 3, 3, 2, 3, 4, 4])
        return tf_capsops.capsule_conv3d(tf.ones([1, 4, 4, 4, 2, 4, 4]), weights)

    signature = tf.TensorSpec([None, 3, 3, 2, 3, 4, 4])
    with pytest.raises(ValueError, match="kernel_depth must be known"):
        compute.get_concrete_function(signature)


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize(
    "inputs, weights, expected",
    [
        ((2, 0, 4, 2, 2, 3), (3, 3, 2, 3, 3, 4), (2, 2, 6, 3, 2, 4)),
        ((2, 3, 3, 2, 0, 2, 3), (3, 3, 2, 3, 0, 3, 4), (2, 5, 5, 3, 0, 2, 4)),
        ((2, 3, 3, 2, 2, 3), (3, 3, 2, 0, 3, 4), (2, 5, 5, 0, 2, 4)),
        ((2, 3, 3, 0, 2, 3), (3, 3, 0, 3, 3, 4), (2, 5, 5, 3, 2, 4)),
    ],
)
def test_transposed_convolutions_without_numbers(
    inputs, weights, expected, portable, device
):
    operands = tf.ones(inputs), tf.ones(weights)
    with contextlib.ExitStack() as stack:
        if portable:
            stack.enter_context(tf_capsops.portable())
        tape = stack.enter_context(tf.GradientTape())
        tape.watch(operands)
        result = tf_capsops.capsule_conv2d_transpose(*operands)
        gradients = tape.gradient(result, operands)
    np.testing.assert_array_equal(result, np.zeros(expected))
    for gradient, operand in zip(gradients, operands, strict=True):
        np.testing.assert_array_equal(gradient, np.zeros(operand.shape))


@pytest.mark.parametrize("portable", [False, True])
def test_a_volume_that_is_too_flat_when_it_runs(portable, device):
    @tf.function(autograph=False)
    def compute(inputs):
        with tf_capsops.portable() if portable else contextlib.nullcontext():
            return tf_capsops.capsule_conv3d(inputs, tf.ones([4, 1, 1, 2, 3, 2, 2]))

    traced = compute.get_concrete_function(tf.TensorSpec([1, None, 2, 2, 2, 2, 2]))
    assert traced(tf.ones([1, 5, 2, 2, 2, 2, 2])).shape[1] == 2
    assert traced(tf.ones([1, 0, 2, 2, 2, 2, 2])).shape[1] == 0
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most in_depth, got 4"):
        traced(tf.ones([1, 2, 2, 2, 2, 2, 2]))


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize(
    "function, inputs, weights, text",
    [
        (
            _line,
            (1, 3, 2, 2, 2),
            (4, 2, 3, 2, 2),
            "capsule_conv1d: weights dim 0 (kernel_width) must be at most in_width, "
            "got 4",
        ),
        (
            _line,
            (1, 5, 3, 2, 2),
            (4, 2, 3, 2, 2),
            "capsule_conv1d: weights dim 1 (in_channels) must be] [3] [got] [4 2 3 2 2",
        ),
        (
            _volume,
            (1, 5, 3, 5, 2, 2, 2),
            (1, 4, 1, 2, 3, 2, 2),
            "capsule_conv3d: weights dim 1 (kernel_height) must be at most in_height",
        ),
        (
            _volume,
            (1, 5, 5, 5, 2, 2, 3),
            (3, 1, 1, 2, 3, 2, 2),
            "capsule_conv3d: weights dim 5 (pose_inner) must be] [3] [got] "
            "[3 1 1 2 3 2 2",
        ),
        (
            _volume_up,
            (1, 5, 5, 5, 3, 2, 2),
            (3, 1, 1, 2, 3, 2, 2),
            "capsule_conv3d_transpose: weights dim 3 (in_channels) must be] [3]",
        ),
    ],
)
def test_errors_at_run_time_name_the_function(
    function, inputs, weights, text, portable, device
):
    """They name its dimensions, and not those of the images that compute it."""

    @tf.function(autograph=False)
    def compute(inputs):
        with tf_capsops.portable() if portable else contextlib.nullcontext():
            return function(inputs, tf.ones(weights))

    traced = compute.get_concrete_function(tf.TensorSpec([None] * len(inputs)))
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(text)):
        traced(tf.ones(inputs))
