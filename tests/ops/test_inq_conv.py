# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""InqConv's values: every code, exponents, large numbers, what it takes."""

import functools

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from descriptions import every_dtype, exact, half_types
from descriptions.inq_conv import OP
from frames import call
from reference import inq_conv as reference
from tolerances import assert_close

import tf_capsops


def test_example_of_every_code(device):
    """Two numbers times each weight of a book of three bits."""
    codes = tf.reshape(tf.range(5), (1, 1, 1, 5))
    image = tf.reshape([1.0, 3.0], (1, 2, 1, 1))
    codes = tf.cast(codes, tf.uint8)
    output = call(tf_capsops.inq_conv2d, image, codes, 2, bits=3)
    np.testing.assert_array_equal(
        output[0, :, 0], [[0, 4, -4, 2, -2], [0, 12, -12, 6, -6]]
    )


@every_dtype
@pytest.mark.parametrize("bits", range(2, 9))
def test_every_code(bits, dtype, device):
    """Weights are exact, also those that are too small for a type of 16 bits."""
    codes = np.arange(2 ** (bits - 1) + 1, dtype=np.uint8).reshape(1, 1, 1, -1)
    inputs = tf.fill((1, 1, 1, 1), tf.constant(2**15 + 2**8, dtype))
    output = call(tf_capsops.inq_conv2d, inputs, codes, 0, bits=bits)
    truth = reference.forward(inputs.numpy().astype(np.float64), codes, 0, bits)
    np.testing.assert_array_equal(output, truth.astype(dtype.as_numpy_dtype))


@every_dtype
@pytest.mark.parametrize(
    "top_exponent",
    [*(-10, 10, -100, 100, 127, 200, -160, 1100, -1100), 2**31 - 1, -(2**31)],
)
@pytest.mark.parametrize(
    "name", ["primes", "bits_8", "strides_2_2_SAME", "channels_33"]
)
def test_top_exponents(name, top_exponent, dtype, device):
    """Results are those of top exponent 0 times a power of two, and then rounded."""
    case = OP.case(name)
    tensors = [*OP.draw(case, dtype)[:3], tf.constant(0)]
    ours = case.bind(tf_capsops.inq_conv2d)
    results = call(OP.results, ours, *tensors[:3], tf.constant(top_exponent))
    plain = OP.results(case.bind(OP.plain), *tensors)
    arrays = exact(tensors)
    truths = case.bind(OP.reference)(*arrays)
    magnitudes = case.bind(OP.magnitude)(*arrays)
    for one in zip(results, truths, magnitudes, plain, strict=True):
        result, truth, magnitude, measure = (np.asarray(array) for array in one)
        _assert_scaled(result, truth, measure, magnitude, top_exponent)


def _assert_scaled(result, truth, plain, magnitude, exponent):
    """Asserts that a result is truth * 2^exponent, in the type of the result.

    Nothing is said of numbers near the largest and of those that are subnormal.
    """
    limits = ml_dtypes.finfo(result.dtype)
    exact = result.astype(np.float64)
    power = np.frexp(truth)[1] + np.int64(exponent)
    large = power > limits.maxexp + 1
    small = (power < limits.minexp - limits.nmant - 1) | (truth == 0)
    inside = (power > limits.minexp + 1) & (power < limits.maxexp) & ~small
    assert (large | small | inside).any()
    np.testing.assert_array_equal(exact[large], np.copysign(np.inf, truth[large]))
    np.testing.assert_array_equal(exact[small], 0)
    back = np.ldexp(exact[inside], -np.clip(exponent, -2200, 2200)).astype(result.dtype)
    assert_close(back, truth[inside], plain[inside], magnitude[inside])


@half_types
def test_half_types_do_not_overflow_inside(dtype, device):
    """Each product of 76800 is past float16's largest number; their sum is not."""
    inputs = tf.fill((1, 2, 2, 2), tf.constant(300, dtype))
    codes = tf.constant([[1], [2]], tf.uint8) * tf.ones((2, 2, 2, 3), tf.uint8)
    output = call(tf_capsops.inq_conv2d, inputs, codes, 8, padding="VALID")
    np.testing.assert_array_equal(output.numpy(), np.zeros((1, 1, 1, 3)))


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("power", [-90, 100])
def test_large_and_small_numbers(power, allowed, device):
    """Splitting an activation must not lose what is far from 1."""
    case = OP.case("channels_33")
    grad, inputs, *others = OP.draw(case, tf.float32)
    tf.config.experimental.enable_tensor_float_32_execution(allowed)
    compute = case.bind(tf_capsops.inq_conv2d)
    plain = call(OP.results, compute, grad, inputs, *others)
    grad, inputs = grad * 2.0**power, inputs * 2.0**power
    scaled = call(OP.results, compute, grad, inputs, *others)
    for one, other in zip(plain, scaled, strict=True):
        np.testing.assert_array_equal(one * 2.0**power, other)


@every_dtype
@pytest.mark.parametrize("channels", [1, 16, 64])
def test_the_largest_numbers(channels, dtype, device):
    """A part of an activation must not be rounded to infinity."""
    largest = float(ml_dtypes.finfo(dtype.as_numpy_dtype).max)
    inputs = tf.one_hot([[[channels - 1, 0]]], channels, dtype=dtype)[0]
    inputs *= tf.constant([largest, -largest], dtype)[:, tf.newaxis]
    inputs = tf.reshape(inputs, (1, 1, 2, channels))
    codes = tf.ones((1, 1, channels, channels), tf.uint8)
    compute = functools.partial(tf_capsops.inq_conv2d, bits=2)
    for result in call(OP.results, compute, inputs, inputs, codes, tf.constant(-1)):
        expected = np.array([[[[largest / 2], [-largest / 2]]]])
        expected = np.broadcast_to(expected, result.shape)
        exact = expected.astype(result.numpy().dtype)
        assert_close(result.numpy(), expected, exact)


def test_accepts_what_tensorflow_converts(device):
    """Arrays, nested lists and variables, as any function of TensorFlow does."""
    inputs, codes = np.float32([[[[1, 3]]]]), [[[[1], [4]]]]
    for convert in (tf.Variable, tf.constant, np.float32, np.ndarray.tolist):
        for top in (1, np.int64(1), tf.constant(1), tf.Variable(1)):
            output = tf_capsops.inq_conv2d(convert(inputs), codes, top)
            np.testing.assert_array_equal(output, [[[[-1]]]])


def test_one_number_is_both(device):
    _, *operands = OP.draw(OP.case("primes"), tf.float32)
    for padding in ("VALID", "SAME"):
        one = call(tf_capsops.inq_conv2d, *operands, 5, 2, padding.lower(), 3)
        both = tf_capsops.inq_conv2d(
            *operands, strides=[2, 2], padding=padding, dilations=(3, 3)
        )
        np.testing.assert_array_equal(one, both)
