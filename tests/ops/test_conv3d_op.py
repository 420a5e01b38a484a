# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Convolutions of volumes, several windows at once, next to TensorFlow's."""

import numpy as np
import pytest
import tensorflow as tf
import tolerances

from tf_capsops.ops.conv3d import conv3d, windows_together

_RANDOM = np.random.default_rng(3)
# Sizes, kernel, dilations and padding.
_PROBLEMS = {
    "dilated": ((8, 6, 5), (5, 3, 2), (2, 2, 1), "SAME"),
    "valid": ((13, 7, 6), (5, 2, 3), (2, 3, 2), "VALID"),
    "one_window": ((9, 5, 5), (5, 3, 3), (2, 2, 2), "VALID"),
    "phases": ((7, 4, 3), (3, 1, 2), (3, 1, 1), "SAME"),
    "flat": ((5, 4, 4), (1, 3, 3), (1, 2, 2), "SAME"),
    "plain": ((4, 3, 5), (2, 2, 2), (1, 1, 1), "SAME"),
}
every_problem = pytest.mark.parametrize("name", _PROBLEMS)
TOGETHER = None, 1, 2, 3, 4


def _drawn(name, dtype=tf.float32):
    size, kernel, *window = _PROBLEMS[name]
    volumes = _RANDOM.normal(size=(2, *size, 3))
    filters = _RANDOM.normal(size=(*kernel, 3, 4))
    numbers = [tf.cast(tf.constant(each), dtype) for each in (volumes, filters)]
    return numbers, window


def _tensorflows(volumes, filters, dilations, padding):
    return tf.nn.convolution(volumes, filters, 1, padding, "NDHWC", dilations)


def _with_gradients(convolve, volumes, filters, grad):
    with tf.GradientTape() as tape:
        tape.watch([volumes, filters])
        outputs = convolve(volumes, filters)
    return [outputs, *tape.gradient(outputs, [volumes, filters], grad)]


def _grad(name):
    (volumes, filters), window = _drawn(name)
    shape = _tensorflows(volumes, filters, *window).shape
    return tf.constant(_RANDOM.normal(size=shape), tf.float32)


def _assert_as_tensorflow(found, name, *numbers):
    _, window = _drawn(name)

    def results(numbers):
        def convolve(*operands):
            return _tensorflows(*operands, *window)

        return _with_gradients(convolve, *numbers)

    exact = [tf.cast(each, tf.float64) for each in numbers]
    truths = [each.numpy() for each in results(exact)]
    magnitudes = [each.numpy() for each in results(map(tf.abs, exact))]
    for each in zip(found, truths, results(numbers), magnitudes, strict=True):
        tolerances.assert_close(*each)


@every_problem
@pytest.mark.parametrize("together", TOGETHER)
def test_results_and_gradients(name, together, device):
    numbers, (dilations, padding) = _drawn(name)
    numbers.append(_grad(name))

    def convolve(volumes, filters):
        return conv3d(volumes, filters, padding, dilations, together)

    _assert_as_tensorflow(_with_gradients(convolve, *numbers), name, *numbers)


@pytest.mark.parametrize("dtype", [tf.float64, tf.float16, tf.bfloat16])
def test_types(dtype, device):
    numbers, (dilations, padding) = _drawn("dilated", dtype)
    found = conv3d(*numbers, padding, dilations)
    assert found.dtype == dtype
    exact = [tf.cast(each, tf.float64) for each in numbers]
    truth = _tensorflows(*exact, dilations, padding)
    magnitude = _tensorflows(*map(tf.abs, exact), dilations, padding)
    plain = tf.cast(truth, dtype)  # 16-bit types are rounded once
    tolerances.assert_close(found, truth.numpy(), plain, magnitude.numpy())


@every_problem
def test_sizes_that_are_unknown(name, device):
    numbers, (dilations, padding) = _drawn(name)
    numbers.append(_grad(name))
    volumes, outputs = (tf.TensorSpec([*[None] * 4, size]) for size in (3, 4))

    @tf.function(input_signature=[volumes, tf.TensorSpec(numbers[1].shape), outputs])
    def compute(*numbers):
        def convolve(*operands):
            return conv3d(*operands, padding, dilations, 2)

        return _with_gradients(convolve, *numbers)

    _assert_as_tensorflow(compute(*numbers), name, *numbers)


@pytest.mark.parametrize("empty", range(4))
def test_empty_volumes(empty, device):
    shape = [2, 3, 4, 5, 3]
    shape[empty] = 0
    filters = tf.ones([3, 3, 3, 3, 2])
    outputs = conv3d(tf.zeros(shape), filters, "SAME", (2, 2, 2))
    assert outputs.shape == [*shape[:4], 2]
    compute = tf.function(lambda volumes: conv3d(volumes, filters, "SAME", (2, 2, 2)))
    spec = tf.TensorSpec([None, None, None, None, 3])
    outputs = compute.get_concrete_function(spec)(tf.zeros(shape))
    assert outputs.shape == [*shape[:4], 2]


def test_windows_that_do_not_fit(device):
    filters = tf.ones([3, 1, 1, 2, 2])
    compute = tf.function(
        lambda volumes: conv3d(volumes, filters, "VALID", (2, 1, 1)),
        input_signature=[tf.TensorSpec([None, None, None, None, 2])],
    )
    assert compute(tf.ones([1, 5, 2, 2, 2])).shape == [1, 1, 2, 2, 2]
    text = "kernel_depth. must be at most in_depth, got 3"
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        compute(tf.ones([1, 4, 2, 2, 2]))


@pytest.mark.parametrize("together", TOGETHER)
def test_compiled(together, device):
    numbers, (dilations, padding) = _drawn("dilated")
    numbers.append(_grad("dilated"))

    def convolve(volumes, filters):
        return conv3d(volumes, filters, padding, dilations, together)

    compute = tf.function(
        lambda *numbers: _with_gradients(convolve, *numbers), jit_compile=True
    )
    _assert_as_tensorflow(compute(*numbers), "dilated", *numbers)


@pytest.mark.parametrize(
    "taps, channels, columns, together",
    [
        (5, 16, 32, 4),  # 128 numbers are read and written
        (5, 32, 64, 4),  # 256
        (3, 64, 64, 2),
        (5, 256, 256, 1),
    ],
)
def test_how_many_windows_are_a_pixel(taps, channels, columns, together):
    assert windows_together(taps, channels, columns) == together


@pytest.mark.parametrize("axis, name", enumerate(["depth", "height", "width"]))
def test_kernels_must_fit_into_volumes_of_unknown_size(axis, name):
    kernel = [4 if each == axis else 1 for each in range(3)]
    filters = tf.ones([*kernel, 2, 3])
    compute = tf.function(lambda volumes: conv3d(volumes, filters, dilations=(2, 2, 2)))
    compute = compute.get_concrete_function(tf.TensorSpec([1, None, None, None, 2]))
    assert compute(tf.ones([1, 7, 7, 7, 2])).shape[axis + 1] == 1
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"most in_{name}, got 4"):
        compute(tf.ones([1, 6, 6, 6, 2]))
