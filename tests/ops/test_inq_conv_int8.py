# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""InqConvInt8's values: all sums of integers, exactly, and what is past their range."""

import functools

import fresh
import numpy as np
import pytest
import robustness
import tensorflow as tf
from descriptions import every_dtype
from frames import call
from reference import inq_conv_int8 as reference
from reference.inq_conv import absolute
from registrations import bare

import tf_capsops

# Images, channels, kernels, and how these move. Output channels are around the lanes of
# one and two vectors, output pixels around the rows of a tile and of a task, and terms
# around those of a 32-bit lane and of a block.
SHAPES = {
    "one": ((1, 1, 1), (1, 1), (1, 1), {}),
    "primes": ((3, 11, 7), (5, 7), (3, 2), {}),
    "large_primes": ((1, 13, 17), (11, 37), (2, 3), {"padding": "VALID"}),
    "strides": ((2, 8, 9), (6, 31), (3, 2), {"strides": (2, 3)}),
    "strides_valid": ((2, 9, 8), (4, 33), 3, {"strides": (3, 1), "padding": "VALID"}),
    "dilations": ((2, 8, 9), (8, 15), 3, {"dilations": (3, 2)}),
    "dilated_rows": ((2, 9, 8), (3, 17), 3, {"dilations": (2, 1), "padding": "VALID"}),
    "strides_and_dilations": (
        *((1, 11, 13), (3, 16), (3, 2)),
        {"strides": (2, 1), "dilations": (1, 3)},
    ),
    "small_image": ((2, 2, 1), (3, 2), 7, {"strides": 2}),
    "far_strides": ((2, 3, 4), (2, 3), 2, {"strides": (2**30, 2**31 - 1)}),
    "far_dilations": ((2, 3, 4), (2, 3), 3, {"dilations": (2**30, 2**31 - 1)}),
    "first_layer": ((2, 12, 12), (1, 40), 9, {"padding": "VALID"}),
    "dense": ((13, 1, 1), (70, 65), 1, {}),
    "blocks": ((1, 4, 4), (257, 33), (2, 3), {}),
    "more_blocks": ((1, 2, 2), (1025, 5), (2, 2), {}),
    **{f"pixels_{n}": ((1, 1, n), (3, 2), 1, {}) for n in (11, 12, 13, 47, 48, 49, 97)},
    "many_panels": ((2, 5, 5), (9, 330), 3, {}),
    "many_rows": ((3, 30, 31), (5, 70), 3, {}),
}
EMPTY = {
    "empty_batch": ((0, 3, 4), (2, 3), 2, {}),
    "empty_image": ((2, 0, 4), (2, 3), 2, {"padding": "VALID"}),
    "no_in_channels": ((2, 3, 4), (0, 3), 2, {}),
    "no_out_channels": ((2, 3, 4), (2, 0), 2, {}),
}
every_bits = pytest.mark.parametrize("bits", [2, 3, 4, 5])


def _pair(number):
    return number if isinstance(number, tuple) else (number, number)


def _draw(shape, bits, dtype=tf.float32, seed=0):
    """Returns images, codes, multipliers, and how the kernel moves."""
    image, channels, kernel, moved = shape
    rng = np.random.default_rng([seed, bits])
    images = tf.cast(rng.normal(0, 2, (*image, channels[0])), dtype)
    last = 2 ** (bits - 1)
    drawn = rng.integers(0, last, (*_pair(kernel), *channels), endpoint=True)
    multipliers = tf.constant(2.0 ** rng.integers(-9, 3, channels[1]), tf.float32)
    pairs = {name: _pair(moved.get(name, 1)) for name in ("strides", "dilations")}
    return images, tf.cast(drawn, tf.uint8), multipliers, {**moved, **pairs}


def _compute(images, codes, multipliers, scale=0.03, zero_point=111, **attributes):
    operands = images, codes, tf.constant(scale, tf.float32), zero_point, multipliers
    return call(bare().inq_conv_int8, *operands, **attributes)


def _reference(images, codes, multipliers, scale=0.03, zero_point=111, **attributes):
    arrays = images.numpy(), codes.numpy(), scale, zero_point, multipliers.numpy()
    return reference.forward(*arrays, **attributes)


@every_bits
@pytest.mark.parametrize("name", [*SHAPES, *EMPTY])
def test_float32_values(name, bits, device):
    """Sums are below 2^24, so that a GPU's float32 holds them, too."""
    *tensors, moved = _draw({**SHAPES, **EMPTY}[name], bits)
    result = _compute(*tensors, bits=bits, **moved)
    np.testing.assert_array_equal(result, _reference(*tensors, bits=bits, **moved))


@every_dtype
@pytest.mark.parametrize("bits", [4, 5])
@pytest.mark.parametrize("name", ["primes", "dense", "dilations"])
def test_types(name, bits, dtype, device):
    *tensors, moved = _draw(SHAPES[name], bits, dtype)
    result = _compute(*tensors, bits=bits, **moved)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, _reference(*tensors, bits=bits, **moved))


@every_bits
@pytest.mark.parametrize("zero_point", [0, 1, 127, 128, 254, 255])
def test_zero_points_and_padding(zero_point, bits, device):
    *tensors, moved = _draw(SHAPES["primes"], bits)
    given = {"zero_point": zero_point, "bits": bits, **moved}
    np.testing.assert_array_equal(
        _compute(*tensors, **given), _reference(*tensors, **given)
    )


@every_dtype
@every_bits
def test_saturation_ties_infinities_and_nan(bits, dtype, device):
    """Ties are rounded to even numbers; NaN is the smallest number."""
    given = [-np.inf, -1e4, -40, -2.5, -1.5, -0.5, 0, 0.5, 1.5, 2.5, 400, np.inf]
    images = tf.reshape(tf.cast([*given, np.nan], dtype), (1, 1, -1, 1))
    codes = tf.ones((1, 1, 1, 1), tf.uint8)
    attributes = {"scale": 1.0, "zero_point": 30, "bits": bits}
    result = _compute(images, codes, tf.ones(1), **attributes)
    expected = np.array([-30, -30, -30, -2, -2, 0, 0, 0, 2, 2, 225, 225, -30])
    largest = 2 ** reference.smallest_exponent(bits)
    np.testing.assert_array_equal(
        tf.cast(result, tf.float64)[0, 0, :, 0],
        (expected * largest).astype(dtype.as_numpy_dtype).astype(np.float64),
    )
    np.testing.assert_array_equal(
        result, _reference(images, codes, tf.ones(1), **attributes)
    )


@every_bits
def test_every_code(bits, device):
    codes = tf.reshape(tf.range(2 ** (bits - 1) + 1), (1, 1, 1, -1))
    images = tf.constant([-100.0, 155.0], shape=(1, 1, 2, 1))
    multipliers = tf.ones(codes.shape[3])
    tensors = images, tf.cast(codes, tf.uint8), multipliers
    given = {"scale": 1.0, "zero_point": 100, "bits": bits}
    np.testing.assert_array_equal(
        _compute(*tensors, **given), _reference(*tensors, **given)
    )


@pytest.mark.parametrize("bits, most", [(3, 4210752), (4, 1052688), (5, 65793)])
@pytest.mark.parametrize("zero_point", [0, 255])
@pytest.mark.parametrize("code", [1, 2])
def test_the_largest_sums_of_an_int32(bits, most, zero_point, code):
    """On a CPU: sums of as many terms as the op takes, and one more."""
    images = tf.fill((1, 1, 1, most), 1e9 if zero_point == 0 else -1e9)
    codes = tf.fill((1, 1, most, 1), tf.constant(code, tf.uint8))
    given = {"scale": 1.0, "zero_point": zero_point, "bits": bits}
    with tf.device("CPU:0"):
        result = _compute(images, codes, tf.ones(1), **given)
    largest = most * 255 * 2 ** reference.smallest_exponent(bits)
    assert 2**31 - 1 - 255 * 2 ** reference.smallest_exponent(bits) < largest < 2**31
    sign = (1 if zero_point == 0 else -1) * (1 if code == 1 else -1)
    assert result.numpy().item() == np.float32(sign * largest)


def test_every_bit_of_large_sums():
    """On a CPU: float64 shows all bits of sums that float32 would round."""
    images, codes, multipliers, moved = _draw(((2, 3, 3), (2000, 35), 2, {}), 5)
    images, codes = tf.cast(tf.abs(images), tf.float64), absolute(codes.numpy())
    tensors = images, tf.constant(codes), multipliers
    given = {"scale": 0.01, "zero_point": 1, **moved}
    with tf.device("CPU:0"):
        result = _compute(*tensors, **given)
    np.testing.assert_array_equal(result, _reference(*tensors, **given))
    sums = np.abs(result / multipliers.numpy())
    assert (sums[sums > 2**24] % 2 == 1).any()


@pytest.mark.ci
def test_kernels_of_older_processors():
    """Level 4 has no VNNI, which this processor may have."""
    chosen = "-k", "values or types or zero_points or every or large"
    fresh.pass_on_levels((2, 3, 4), "test_inq_conv_int8.py", *chosen)


def _of_several_calls(dtype):
    for name in ("primes", "many_panels", "many_rows", "blocks"):
        *tensors, moved = _draw(SHAPES[name], 5, dtype)
        yield _compute(*tensors, **moved)


def test_threads_do_not_change_the_bits():
    robustness.threads_do_not_change_the_bits(_of_several_calls)


def test_calls_of_different_sizes_at_the_same_time(device):
    names = ("primes", "dense", "many_panels", "strides")
    drawn = [_draw(SHAPES[name], 5) for name in names]

    def results(*tensors):
        *operands, moved = tensors
        return [_compute(*operands, **moved)]

    robustness.same_at_the_same_time(results, drawn, device)


@pytest.mark.parametrize("position", [0, 1])
def test_slices_of_larger_tensors(position, device):
    images, codes, multipliers, moved = _draw(SHAPES["primes"], 5)
    compute = functools.partial(_compute, multipliers=multipliers, **moved)
    robustness.slices_of_larger_tensors(
        lambda *tensors: [compute(*tensors)], [images, codes], position
    )


@every_bits
@pytest.mark.parametrize("per_channel", [False, True])
def test_the_function_is_a_convolution_of_rounded_numbers(per_channel, bits, device):
    images, codes, _, moved = _draw(SHAPES["primes"], bits)
    top = np.arange(7, dtype=np.int32) - 4 if per_channel else np.int32(-3)
    given = {"scale": 2**-5, "zero_point": 100}
    result = call(
        tf_capsops.inq_conv2d_int8, images, codes, top, bits=bits, **given, **moved
    )
    rounded = tf.cast(reference.steps(images, **given) * given["scale"], tf.float32)
    expected = tf_capsops.inq_conv2d(rounded, codes, 0, bits=bits, **moved) * 2.0**top
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-5)
    with tf_capsops.portable():
        portable = call(
            tf_capsops.inq_conv2d_int8, images, codes, top, bits=bits, **given, **moved
        )
    np.testing.assert_array_equal(result, portable)
