# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""InqConvInt8 refuses what does not fit, and what a sum of 32 bits may not hold."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from frames import both_ways, traced
from refusals import (
    BAD_PAIRS,
    at_once_or_by_shape,
    bad_kernels,
    by_kernel,
    every_way,
    mismatch,
    shape_text,
)
from registrations import bare
from symbols import UNKNOWN, placeholder

import tf_capsops

OP = "InqConvInt8"
VALID, SAME = {"padding": "VALID"}, {"padding": "SAME"}
# Two images of 5x6, 3 channels to 8, a kernel of 3x2; a scalar.
INPUT, CODES, SCALAR, BOOKS = (2, 5, 6, 3), (3, 2, 3, 8), (), (8,)
MOST = {2: 8421504, 3: 4210752, 4: 1052688, 5: 65793}


def _operands(inputs=INPUT, codes=CODES, scale=SCALAR, zero_point=SCALAR, books=BOOKS):
    return (
        tf.zeros(inputs),
        tf.zeros(codes, tf.uint8),
        tf.ones(scale),
        tf.zeros(zero_point, tf.int32),
        tf.ones(books),
    )


def _bad():
    """Yields the shapes of operands, attributes, and what the message says."""
    for shape in ((2, 5, 6), (*INPUT, 1)):
        text = "input must have rank 4 [batch, in_height, in_width, in_channels], got "
        yield {"inputs": shape}, VALID, text + shape_text(shape)
    for shape in ((3, 2), (*CODES, 1)):
        text = "codes must have rank 4 [kernel_height, kernel_width, in_channels, "
        yield {"codes": shape}, VALID, f"{text}out_channels], got {shape_text(shape)}"
    for name in ("scale", "zero_point"):
        text = f"{name} must have rank 0 [], got [1]"
        yield {name: (1,)}, VALID, text
    shape = (3, 2, 1, 8)
    yield {"codes": shape}, VALID, mismatch("codes", 2, "in_channels", 3, shape)
    yield {"books": ()}, VALID, "multipliers must have rank 1 [out_channels], got []"
    for size in (1, 9):
        text = mismatch("multipliers", 0, "out_channels", 8, (size,))
        yield {"books": (size,)}, VALID, text
    for shape, attributes, text in bad_kernels("codes", CODES):
        yield {"codes": shape}, attributes, text
    for bits, most in MOST.items():
        codes = (1, most + 1, 1, 0)
        shapes = {"inputs": (0, 1, 1, 1), "codes": codes, "books": (0,)}
        text = f"codes must have at most {most} elements per output channel (bits "
        text += f"{bits}), as the sum of more may exceed an int32, got "
        yield shapes, {**SAME, "bits": bits}, text + shape_text(codes)


@every_way
@pytest.mark.parametrize("case", _bad(), ids=lambda case: str(case).replace(" ", ""))
def test_bad_operands(case, assert_refused, device):
    shapes, attributes, text = case
    compute = functools.partial(bare().inq_conv_int8, **attributes)
    assert_refused(compute, _operands(**shapes), f"{OP}: {text}")


@pytest.mark.parametrize("name", ["strides", "dilations"])
@pytest.mark.parametrize("pair", BAD_PAIRS, ids=str)
@at_once_or_by_shape
def test_bad_steps(name, pair, assert_refused, device):
    message = f"{OP}: {name} must be two positive integers, got {shape_text(pair)}"
    compute = functools.partial(bare().inq_conv_int8, padding="VALID", **{name: pair})
    assert_refused(compute, _operands(), message)


@pytest.mark.parametrize("bits", [1, 0, -3, 6, 9, 2**31 - 1])
@at_once_or_by_shape
def test_bad_bits(bits, assert_refused, device):
    message = f"{OP}: bits must be from 2 to 5, as sums of weights of more bits exceed "
    compute = functools.partial(bare().inq_conv_int8, padding="VALID", bits=bits)
    assert_refused(compute, _operands(), f"{message}an int32, got {bits}")


@pytest.mark.parametrize("zero_point", [-1, 256, 2**31 - 1, -(2**31)])
def test_bad_zero_points(zero_point, device):
    inputs, codes, scale, _, books = _operands()

    def compute(inputs):
        return bare().inq_conv_int8(inputs, codes, scale, zero_point, books)

    text = f"{OP}: zero_point must be from 0 to 255, got {zero_point}"
    by_kernel(compute, (inputs,), text)


@pytest.mark.parametrize("bits", [2, 3, 4, 5])
@pytest.mark.parametrize("batch", [2, 0])
def test_codes_past_the_book_are_refused_on_a_cpu(bits, batch):
    """The first is named, with its place; also where nothing is computed."""
    last = 2 ** (bits - 1)
    codes = np.full((3, 2, 70, 8), last, np.uint8)
    codes[1, 0, 2, 7], codes[2, 1, 0, 3], codes[2, 1, 69, 7] = last + 1, 255, 254
    text = f"codes[1,0,2,7] must be at most {last} (bits {bits}), got {last + 1}"
    for code in (last + 1, 17, 128, 255):
        codes[1, 0, 2, 7] = code
        operands = _operands((batch, 5, 6, 70), (3, 2, 70, 8))
        with tf.device("CPU"), pytest.raises(tf.errors.InvalidArgumentError) as caught:
            bare().inq_conv_int8(
                *(operands[0], tf.constant(codes), *operands[2:]), bits=bits
            )
        text = f"codes[1,0,2,7] must be at most {last} (bits {bits}), got {code}"
        assert f"{OP}: {text}" in str(caught.value)


@pytest.mark.parametrize(
    "argument, value, text",
    [
        ("bits", 6, "must be an integer from 2 to 5, got 6"),
        ("bits", 1, "must be an integer from 2 to 5, got 1"),
        ("zero_point", 256, "must be integers from 0 to 255, got [256]"),
        ("zero_point", 0.5, "must be integers from 0 to 255, got [0.5]"),
        ("scale", 0.0, "must be a positive number, got 0.0"),
        ("scale", -1.0, "must be a positive number, got -1.0"),
        ("scale", float("nan"), "must be a positive number, got nan"),
        ("codes", [[[[300]]]], "must be integers from 0 to 255, got [300]"),
        (
            *("top_exponent", 2**31),
            "must be integers from -2147483648 to 2147483647, got [2147483648]",
        ),
        ("top_exponent", tf.ones([]), "must have the type int32, got float32"),
        ("scale", tf.ones([], tf.float64), "must have the type float32, got float64"),
        ("inputs", tf.ones([1, 1, 1, 1], tf.int32), "must have one of the types float"),
        ("padding", "full", "must be 'VALID' or 'SAME', got 'full'"),
    ],
)
def test_bad_arguments_are_named(argument, value, text):
    given = {
        "inputs": tf.ones([1, 1, 1, 1]),
        "codes": np.ones([1, 1, 1, 1], np.uint8),
        "top_exponent": 0,
        "scale": 1.0,
        "zero_point": 0,
    }
    with pytest.raises(ValueError) as caught:
        tf_capsops.inq_conv2d_int8(**given | {argument: value})
    assert str(caught.value).startswith(f"inq_conv2d_int8: {argument} {text}")


def _called(inputs, codes, top_exponent, **attributes):
    return tf_capsops.inq_conv2d_int8(inputs, codes, top_exponent, 0.1, 3, **attributes)


@pytest.mark.parametrize(
    "inputs, codes, top, attributes",
    [
        ((2, 5, 6), CODES, (), {}),
        (INPUT, (3, 2, 1, 8), (), {}),
        (INPUT, CODES, (7,), {}),
        (INPUT, CODES, (1, 8), {}),
        (INPUT, (6, 2, 3, 8), (), VALID),
        ((0, 1, 1, 1), (1, 65794, 1, 0), (), SAME),
    ],
)
def test_portable_refuses_with_the_ops_own_text(inputs, codes, top, attributes):
    operands = tf.zeros(inputs), tf.zeros(codes, tf.uint8), tf.zeros(top, tf.int32)
    with pytest.raises(tf.errors.InvalidArgumentError) as ours:
        _called(*operands, **attributes)
    with tf_capsops.portable(), pytest.raises(tf.errors.InvalidArgumentError) as theirs:
        _called(*operands, **attributes)
    assert theirs.value.message in ours.value.message


@both_ways
def test_a_gradient_is_refused_in_words(way, device):
    inputs, codes, *_ = _operands()

    def compute():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = _called(inputs, codes, 0)
        return tape.gradient(output, inputs)

    with pytest.raises(LookupError, match="InqConvInt8 has no gradient, because it is"):
        way(compute)()


@pytest.mark.parametrize(
    "inputs, codes, attributes, inferred",
    [
        (INPUT, CODES, VALID, [2, 3, 5, 8]),
        (INPUT, CODES, {"strides": [2, 3]}, [2, 3, 2, 8]),
        (UNKNOWN, UNKNOWN, {}, [None] * 4),
        ([None, 5, None, 3], CODES, VALID, [None, 3, None, 8]),
        (INPUT, [3, None, None, 8], VALID, [2, 3, None, 8]),
    ],
)
def test_inferred_outputs(inputs, codes, attributes, inferred):
    with tf.Graph().as_default():
        operands = placeholder(inputs), placeholder(codes, tf.uint8)
        more = placeholder((), tf.float32), placeholder((), tf.int32)
        shape = (
            bare()
            .inq_conv_int8(
                *operands, *more, placeholder(UNKNOWN, tf.float32), **attributes
            )
            .shape
        )
    assert shape.as_list() == inferred


@pytest.mark.parametrize("portable", [False, True])
def test_unknown_shapes(portable, device):
    rng = np.random.default_rng(0)
    inputs = rng.normal(0, 2, INPUT).astype(np.float32)
    codes = rng.integers(0, 16, CODES, np.uint8, endpoint=True)
    signature = [
        tf.TensorSpec([None] * 4, tf.float32),
        tf.TensorSpec([None] * 4, tf.uint8),
        tf.TensorSpec([], tf.int32),
    ]

    def compute(*operands):
        if not portable:
            return _called(*operands)
        with tf_capsops.portable():
            return _called(*operands)

    expected = _called(inputs, codes, -4)
    result = traced(compute, signature)(inputs, codes, -4)
    np.testing.assert_array_equal(result, expected)
