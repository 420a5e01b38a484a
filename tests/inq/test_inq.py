# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Quantization to powers of two, its codes and their storage, against the reference."""

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from reference import inq as reference

from tf_capsops import inq

every_bits = pytest.mark.parametrize("bits", range(2, 9))
_DTYPES = ("float64", "float32", "float16", "bfloat16")


def _boundaries(n1, powers, dtype="float64"):
    """Every power near a book, every middle of two, both neighbors, and signs."""
    exponents = np.arange(n1 - powers - 3, n1 + 3)
    sizes = np.outer(np.ldexp(1.0, exponents), [1, 1.5]).reshape(-1).astype(dtype)
    step = np.ldexp(sizes.astype(np.float64), 1 - ml_dtypes.finfo(dtype).nmant - 2)
    near = [sizes.astype(np.float64) + s * step for s in (-2, -1, 0, 1, 2)]
    values = np.concatenate([*near, [0.0]]).astype(dtype)
    return np.concatenate([values, -values])


@every_bits
@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("n1", [None, -7, 0, 1])
def test_quantize_at_every_boundary(bits, dtype, n1):
    # Float16 has no powers below 2^-24.
    powers = min(2 ** (bits - 2), 12)
    weights = _boundaries(-2, powers, dtype)
    result = inq.quantize(weights, bits, n1)
    assert result.dtype == weights.dtype
    np.testing.assert_array_equal(result, reference.quantize(weights, bits, n1))
    assert not np.signbit(result[result == 0]).any()


@every_bits
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e30])
def test_quantize_random_weights(bits, scale):
    random = np.random.default_rng(bits)
    weights = (random.standard_t(2, size=[3, 5, 7, 11]) * scale).astype(np.float32)
    expected = reference.quantize(weights, bits)
    np.testing.assert_array_equal(inq.quantize(weights, bits), expected)
    codes, n1 = inq.encode(weights, bits)
    assert codes.dtype == np.uint8 and n1 == reference.top_exponent(weights)
    assert n1 == inq.top_exponent(weights)
    np.testing.assert_array_equal(reference.decode(codes, bits, n1), expected)
    np.testing.assert_array_equal(inq.decode(codes, bits, n1), expected)


def test_ties_go_up():
    np.testing.assert_array_equal(inq.quantize([1, 0.75, -0.375], 4), [1, 1, -0.5])
    np.testing.assert_array_equal(inq.quantize([1.0, 0.0625], 4), [1, 0.125])


def test_large_weights_are_clamped_and_not_dropped():
    weights = [3.0, -1.5, 1e300, np.nextafter(1.5, 0)]
    np.testing.assert_array_equal(inq.quantize(weights, 3, 0), [1, -1, 1, 1])


def test_a_weight_below_half_of_the_smallest_power_is_zero():
    below = np.nextafter(np.float32(0.0625), np.float32(0))
    np.testing.assert_array_equal(inq.quantize([1, below, -below], 4), [1, 0, 0])


def test_top_exponent_is_exact_where_a_logarithm_is_not():
    for exponent in range(-1000, 1000, 7):
        bound = np.ldexp(0.75, exponent)
        assert inq.top_exponent([bound]) == exponent
        assert inq.top_exponent([-np.nextafter(bound, 0)]) == exponent - 1


@every_bits
def test_zeros_stay_zeros(bits):
    zeros = np.zeros([2, 3], np.float32)
    assert inq.top_exponent(zeros) == 0
    np.testing.assert_array_equal(inq.quantize(zeros, bits), zeros)
    np.testing.assert_array_equal(inq.encode(-zeros, bits)[0], zeros)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), ()])
def test_any_shape(shape):
    weights = np.full(shape, 0.3, np.float32)
    assert inq.quantize(weights, 5).shape == shape
    codes, n1 = inq.encode(weights, 5)
    assert codes.shape == shape
    packed = inq.pack(codes, 5)
    np.testing.assert_array_equal(inq.unpack(packed, 5, shape), codes)
    np.testing.assert_array_equal(inq.decode(codes, 5, n1), np.full(shape, 0.25))


@pytest.mark.parametrize("make", [np.asarray, tf.constant, tf.Variable, keras.Variable])
@pytest.mark.parametrize("dtype", _DTYPES)
def test_takes_arrays_tensors_and_variables(make, dtype):
    weights = make(np.array([[1, -0.5], [0.4, 0]], dtype))
    for call in (inq.quantize, inq.encode):
        np.testing.assert_array_equal(
            call(weights, 5)[0], call(np.array([[1, -0.5], [0.4, 0]]), 5)[0]
        )
    assert inq.top_exponent(weights) == 0
    assert inq.quantize(weights, bits=5).dtype == dtype


def test_takes_integers():
    result = inq.quantize([3, -4, 0], 5)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, [4, -4, 0])


def test_subnormal_weights_are_exact():
    weights = np.ldexp(np.float32(1), np.arange(-149, -126)).astype(np.float32)
    np.testing.assert_array_equal(inq.quantize(weights, 8), weights)


@pytest.mark.parametrize("dtype", [*_DTYPES, tf.float16, tf.bfloat16])
def test_decode_to_any_type(dtype):
    codes = np.arange(9)
    result = inq.decode(codes, 4, -3, dtype)
    assert result.dtype == tf.as_dtype(dtype).as_numpy_dtype
    np.testing.assert_array_equal(result, reference.decode(codes, 4, -3))


def test_decode_is_exact_or_refuses():
    np.testing.assert_array_equal(inq.decode([1, 4], 8, 127), [2.0**127, -(2.0**126)])
    np.testing.assert_array_equal(inq.decode([1], 8, -149), [2.0**-149])
    # Codes that do not occur do not matter.
    np.testing.assert_array_equal(inq.decode([0, 3], 3, 128), [0, 2.0**127])
    np.testing.assert_array_equal(inq.decode([0, 0], 3, 2**31 - 1), [0, 0])
    with pytest.raises(ValueError, match=r"float32 has no 2\^128: .* 2\^-149 to 2\^12"):
        inq.decode([1], 3, 128)
    with pytest.raises(ValueError, match=r"float32 has no 2\^-150: "):
        inq.decode([3], 3, -149)
    with pytest.raises(ValueError, match=r"float16 has no 2\^16: "):
        inq.quantize(np.array([65504], np.float16), 5)
    with pytest.raises(ValueError, match=r"float64 has no 2\^-2147483648: "):
        inq.decode([1], 2, -(2**31), "float64")


@every_bits
def test_pack_stores_bit_after_bit(bits):
    codes = np.random.default_rng(1).integers(0, 2 ** (bits - 1) + 1, [3, 1, 5, 3])
    packed = inq.pack(codes, bits)
    assert packed.dtype == np.uint8
    assert packed.shape == ((codes.size * bits + 7) // 8,)
    number = sum(int(c) << bits * i for i, c in enumerate(codes.reshape(-1)))
    assert number == int.from_bytes(packed.tobytes(), "little")
    for form in (packed, packed.tobytes(), bytearray(packed)):
        unpacked = inq.unpack(form, bits, codes.shape)
        assert unpacked.dtype == np.uint8
        np.testing.assert_array_equal(unpacked, codes)


@pytest.mark.parametrize("bits", [1, 9, 0, -5, 5.0, "5", None])
def test_bits_are_checked(bits):
    calls = (
        lambda: inq.quantize([1.0], bits),
        lambda: inq.encode([1.0], bits),
        lambda: inq.decode([1], bits, 0),
        lambda: inq.pack([1], bits),
        lambda: inq.unpack(b"\1", bits, [1]),
    )
    for call in calls:
        with pytest.raises(ValueError, match="bits must be an integer from 2 to 8, go"):
            call()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_weights_must_be_finite(wrong):
    for call in (inq.top_exponent, lambda w: inq.quantize(w, 5)):
        with pytest.raises(ValueError, match="must be finite, but 1 of 2 are not"):
            call(np.array([1.0, wrong], np.float32))


@pytest.mark.parametrize("weights", [[1j], ["a"], [True], [None]])
def test_weights_must_be_numbers(weights):
    with pytest.raises(ValueError, match="encode: weights must be real numbers, got"):
        inq.encode(weights, 5)


@pytest.mark.parametrize("exponent", [0.5, 2**31, "0"])
def test_top_exponent_must_be_an_integer(exponent):
    with pytest.raises(ValueError, match="top_exponent must be an integer of 32 bits"):
        inq.quantize([1.0], 5, exponent)


@every_bits
def test_codes_past_the_book_are_refused(bits):
    last = 2 ** (bits - 1)
    inq.decode([last], bits, 0)
    for codes in ([last + 1], [-1], [1000]):
        with pytest.raises(ValueError, match=f"codes of {bits} bits must be 0 to"):
            inq.decode(codes, bits, 0)
        with pytest.raises(ValueError, match=f"must be 0 to {last}, got {codes[0]}"):
            inq.pack(codes, bits)
    with pytest.raises(ValueError, match="codes must be integers, got float64"):
        inq.decode([1.0], bits, 0)


@pytest.mark.parametrize(
    "packed, shape, text",
    [
        (b"\1\2", [2, 2], r"shape \(2, 2\) take 3 bytes, got 2"),
        (b"\1\2\3\4", [2, 2], "take 3 bytes, got 4"),
        (b"\1\x80", [3], "the bits after the last code must be zero"),
        (b"\x1f", [1], "codes of 5 bits must be 0 to 16, got 31"),
        ([1, 2], [1], "packed must be bytes or uint8 of one axis, got int64"),
        (np.zeros([1, 1], np.uint8), [1], r"one axis, got uint8 of shape \(1, 1\)"),
        (b"\1", [-1], "shape must be an integer >= 0, got -1"),
        ([None, []], [2], "packed is no array"),
        (b"", [2**64, 0], r"there is no array of shape \(18446744073709551616, 0\)"),
        (b"", [0] * 65, r"there is no array of shape \(0, 0"),
    ],
)
def test_unpack_refuses(packed, shape, text):
    with pytest.raises(ValueError, match=f"unpack: .*{text}"):
        inq.unpack(packed, 5, shape)
