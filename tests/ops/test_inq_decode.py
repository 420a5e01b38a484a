# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""InqDecode: exact weights of all types and shapes, and what it refuses."""

import functools

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from descriptions import DTYPES
from frames import call
from reference import inq
from reference.inq_conv import decode_columns
from refusals import at_once_or_by_shape, every_way, mismatch
from registrations import bare

import tf_capsops
from tf_capsops.ops.inq_conv import powers_of_two
from tf_capsops.ops.inq_decode import inq_decode

# Around the lanes of vectors, and sizes that several threads share.
_SHAPES = [(1, 1), (15, 1), (17, 1), (33, 1), (2, 3), (3, 16), (5, 17), (4, 33)]
_SHAPES += [(63, 1), (64, 1), (65, 1), (131, 1), (7, 64)]
_SHAPES += [(0, 5), (0, 1), (5, 0), (70001, 1), (701, 101)]


@pytest.mark.parametrize("shape", _SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("bits", [2, 5])
def test_weights_are_exact(shape, dtype, bits, device):
    rng = np.random.default_rng(sum(shape))
    codes = rng.integers(0, 2 ** (bits - 1), shape, np.uint8, endpoint=True)
    tops = rng.integers(-6, 3, shape[1])
    found = call(
        bare().inq_decode, tf.constant(codes), tf.constant(tops), T=dtype, bits=bits
    )
    assert found.dtype == dtype and tuple(found.shape) == shape
    np.testing.assert_array_equal(
        tf.cast(found, tf.float64), decode_columns(codes, tops, bits)
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_a_code_of_zero_is_zero_even_if_the_largest_weight_is_infinite(dtype, device):
    codes = tf.constant(np.resize([0, 1, 2], [40, 3]).astype(np.uint8))
    for columns in (3, 1):
        shaped, tops = tf.reshape(codes, [-1, columns]), tf.fill([columns], 2**40)
        found = call(bare().inq_decode, shaped, tops, T=dtype, bits=3)
        expected = np.resize([0, np.inf, -np.inf], [120])
        np.testing.assert_array_equal(tf.reshape(found, [-1]), expected)


def _portable(*arguments):
    with tf_capsops.portable():
        return inq_decode(*arguments)


@pytest.mark.parametrize("decode", [inq_decode, _portable])
@pytest.mark.parametrize("axes", [(), (0,), (1,), (1, 2), (2,), (0, 1, 2)], ids=str)
def test_exponents_of_axes(decode, axes, device):
    shape, rng = (4, 3, 5), np.random.default_rng(7)
    codes = rng.integers(0, 17, shape, np.uint8)
    exponents = rng.integers(-9, 9, [shape[axis] for axis in axes])
    expected = inq.decode(codes, 5, 0) * 2.0 ** exponents.reshape(
        [shape[axis] if axis in axes else 1 for axis in range(3)]
    )
    found = call(
        decode,
        tf.constant(codes),
        tf.constant(exponents.reshape(-1) if axes else exponents, tf.int64),
        5,
        tf.float32,
        axes,
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("axes", [(), (1,)], ids=str)
@pytest.mark.parametrize("top", [-130, -20, 0, 17, 127])
@pytest.mark.parametrize("bits", [5, 8])
def test_normal_weights_are_exact_whatever_the_largest_is(
    bits, axes, top, dtype, device
):
    """Books that start above the numbers of a type, and end below them."""
    codes = np.resize(np.arange(2 ** (bits - 1) + 1, dtype=np.uint8), (43, 3))
    exponents = np.array([top, top - 1, 3]) if axes else np.array(top)
    expected = inq.decode(codes, bits, 0) * 2.0**exponents
    operands = tf.constant(codes), exponents, bits, dtype, axes
    found = [
        tf.cast(call(decode, *operands), tf.float64)
        for decode in (inq_decode, _portable)
    ]
    np.testing.assert_array_equal(*found)
    limits = ml_dtypes.finfo(dtype.as_numpy_dtype)
    sizes = np.abs(expected)
    normal = (sizes >= limits.tiny) & (sizes <= float(limits.max))
    normal |= codes == 0
    np.testing.assert_array_equal(found[0].numpy()[normal], expected[normal])


def _operands(codes, tops):
    return tf.zeros(codes, tf.uint8), tf.ones(tops, tf.int64)


_BAD = [
    ((2, 3, 4), (3,), 5, "codes must have rank 2 [rows, columns], got [2,3,4]"),
    ((), (3,), 5, "codes must have rank 2 [rows, columns], got []"),
    ((2, 3), (), 5, "top_exponents must have rank 1 [columns], got []"),
    ((2, 3), (4,), 5, mismatch("top_exponents", 0, "columns", 3, (4,))),
    ((2, 3), (1,), 5, mismatch("top_exponents", 0, "columns", 3, (1,))),
]
_BAD += [
    ((2, 3), (3,), bits, f"bits must be from 2 to 8, got {bits}") for bits in (1, 9, 0)
]


@every_way
@pytest.mark.parametrize("codes, tops, bits, text", _BAD[:5], ids=str)
def test_operands_that_do_not_fit(codes, tops, bits, text, assert_refused, device):
    compute = functools.partial(bare().inq_decode, T=tf.float32, bits=bits)
    assert_refused(compute, _operands(codes, tops), f"InqDecode: {text}")


@at_once_or_by_shape
@pytest.mark.parametrize("codes, tops, bits, text", _BAD[5:])
def test_bits_that_do_not_exist(codes, tops, bits, text, assert_refused, device):
    compute = functools.partial(bare().inq_decode, T=tf.float32, bits=bits)
    assert_refused(compute, _operands(codes, tops), f"InqDecode: {text}")


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize(
    "shape, place", [((9, 7), (8, 6)), ((63, 1), (40, 0)), ((200, 1), (100, 0))]
)
def test_codes_past_the_book_are_refused_on_cpu(bits, shape, place):
    last = 2 ** (bits - 1)
    codes = np.zeros(shape, np.uint8)
    codes[place] = last + 1
    tops = tf.ones(shape[1], tf.int64)
    decode = functools.partial(bare().inq_decode, T=tf.float32, bits=bits)
    text = rf"InqDecode: codes\[{place[0]},{place[1]}\] must be at most {last} "
    with tf.device("CPU:0"), pytest.raises(tf.errors.InvalidArgumentError, match=text):
        call(decode, tf.constant(codes), tops)
    codes[place] = last
    with tf.device("CPU:0"):
        call(decode, tf.constant(codes), tops)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_powers_of_two_are_exact(dtype, device):
    limits = ml_dtypes.finfo(dtype.as_numpy_dtype)
    exponents = np.arange(limits.minexp, limits.maxexp)
    beyond = np.array([-(2**31), 2**31 - 1])
    found = call(powers_of_two, tf.constant([*exponents, *beyond], tf.int64), dtype)
    assert found.dtype == dtype
    expected = [*np.ldexp(1.0, exponents), 0, np.inf]
    np.testing.assert_array_equal(tf.cast(found, tf.float64), expected)
