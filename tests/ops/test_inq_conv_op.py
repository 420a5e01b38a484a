# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""InqConv's ops refuse codes, shapes, attributes and arguments that do not fit."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf
from frames import both_ways, call
from refusals import (
    BAD_PAIRS,
    at_once_or_by_shape,
    bad_gradients,
    bad_kernels,
    by_kernel,
    eagerly,
    every_way,
    mismatch,
    resized,
    shape_text,
)
from registrations import bare, refusal

import tf_capsops

CONV = "InqConv"
IN_INPUT = "InqConvBackpropInput"
VALID, SAME = {"padding": "VALID"}, {"padding": "SAME"}

# Two images of 5x6, 3 channels to 8, a kernel of 3x2; a scalar.
INPUT, CODES, GRAD, TOP = (2, 5, 6, 3), (3, 2, 3, 8), (2, 3, 5, 8), ()
INPUT_AXES = "[batch, in_height, in_width, in_channels]"
CODES_AXES = "[kernel_height, kernel_width, in_channels, out_channels]"
GRAD_AXES = "[batch, out_height, out_width, out_channels]"


def _bad_forward():
    """Yields shapes of input, codes and exponent, attributes, what the message says."""
    for shape in ((2, 5, 6), (), (*INPUT, 1)):
        rank = f"input must have rank 4 {INPUT_AXES}, got {shape_text(shape)}"
        yield shape, CODES, TOP, VALID, rank
    for shape in ((3, 2), (*CODES, 1)):
        rank = f"codes must have rank 4 {CODES_AXES}, got {shape_text(shape)}"
        yield INPUT, shape, TOP, VALID, rank
    for shape in ((1,), (0,), (1, 1)):
        rank = f"top_exponent must have rank 0 [], got {shape_text(shape)}"
        yield INPUT, CODES, shape, VALID, rank
    for wrong in (1, 0):
        shape = resized(CODES, 2, wrong)
        text = mismatch("codes", 2, "in_channels", 3, shape)
        yield INPUT, shape, TOP, VALID, text
    for shape, attributes, text in bad_kernels("codes", CODES):
        yield INPUT, shape, TOP, attributes, text


def _bad_backward():
    """Yields the shape of grad, attributes, and what the message says."""
    yield from bad_gradients(GRAD)
    for shape in ((2, 3, 5), (*GRAD, 1)):
        rank = f"grad must have rank 4 {GRAD_AXES}, got {shape_text(shape)}"
        yield shape, VALID, rank


def _call(op, *tensors, **attributes):
    wrapper = bare().inq_conv if op == CONV else bare().inq_conv_backprop_input
    return wrapper(*tensors, **attributes)


def _forward_operands(inputs, codes, top_exponent):
    return (
        tf.zeros(inputs),
        tf.zeros(codes, tf.uint8),
        tf.zeros(top_exponent, tf.int32),
    )


def _backward_operands(sizes, codes, top_exponent, grad):
    _, *others = _forward_operands((), codes, top_exponent)
    return tf.constant(sizes, tf.int32), *others, tf.zeros(grad)


def _bad():
    """Yields op, its operands' shapes, attributes and message."""
    for *shapes, attributes, text in _bad_forward():
        yield CONV, shapes, attributes, text
        # How many sizes there are is seen before they are: another test has that.
        # Beside other sizes, which come later, the grad would be what does not fit.
        if not text.startswith("input must have rank") and attributes != SAME:
            yield IN_INPUT, (*shapes, GRAD), attributes, text
    for grad, attributes, text in _bad_backward():
        yield IN_INPUT, (INPUT, CODES, TOP, grad), attributes, text


@every_way
@pytest.mark.parametrize("case", _bad(), ids=lambda case: str(case).replace(" ", ""))
def test_bad_operands(case, assert_refused, device):
    op, shapes, attributes, text = case
    compute = functools.partial(_call, op, **attributes)
    make = _forward_operands if op == CONV else _backward_operands
    assert_refused(compute, make(*shapes), f"{op}: {text}")


def _good(op):
    if op == CONV:
        return _forward_operands(INPUT, CODES, TOP)
    return _backward_operands(INPUT, CODES, TOP, GRAD)


every_op = pytest.mark.parametrize("op", [CONV, IN_INPUT])


@every_op
@at_once_or_by_shape
def test_kernels_that_32_bits_do_not_count(op, assert_refused, device):
    """Without input channels they take no memory."""
    kernel, image = (2**31, 2, 0, 8), resized(INPUT, 3, 0)
    forward = op == CONV
    make = _forward_operands if forward else _backward_operands
    operands = make(image, kernel, TOP, *([] if forward else [GRAD]))
    text = "codes dim 0 (kernel_height) must be at most 2147483647, got "
    compute = functools.partial(_call, op, padding="VALID")
    assert_refused(compute, operands, f"{op}: {text}{shape_text(kernel)}")


@every_op
@pytest.mark.parametrize("name", ["strides", "dilations"])
@pytest.mark.parametrize("pair", BAD_PAIRS, ids=str)
@at_once_or_by_shape
def test_bad_steps(op, name, pair, assert_refused, device):
    message = f"{op}: {name} must be two positive integers, got {shape_text(pair)}"
    compute = functools.partial(_call, op, padding="VALID", **{name: pair})
    assert_refused(compute, _good(op), message)


@every_op
@pytest.mark.parametrize("bits", [1, 0, -3, 9, 2**31 - 1])
@at_once_or_by_shape
def test_bad_bits(op, bits, assert_refused, device):
    message = f"{op}: bits must be from 2 to 8, got {bits}"
    compute = functools.partial(_call, op, padding="VALID", bits=bits)
    assert_refused(compute, _good(op), message)


@every_op
@both_ways
@pytest.mark.parametrize(
    "attributes, text",
    [
        ({"padding": "FULL"}, '"FULL" is not in|.FULL. not in: "VALID", "SAME"'),
        ({"strides": [2**31, 1]}, "strides has value 2147483648 out of range"),
        ({"bits": 2**32 + 5}, "bits has value 4294967301 out of range"),
    ],
    ids=str,
)
def test_bad_attributes(op, attributes, text, way, device):
    def compute():
        return _call(op, *_good(op), **attributes)

    assert re.search(text, refusal(compute, way))


every_number_of_bits = pytest.mark.parametrize("bits", range(2, 9))


def _codes(bits, *bad):
    """Returns codes of a book, and of `(place, code)` what is past it."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2 ** (bits - 1), CODES, np.uint8, endpoint=True)
    for place, code in bad:
        codes[place] = code
    return tf.constant(codes)


@every_number_of_bits
@pytest.mark.parametrize("batch", [2, 0])
def test_codes_past_the_book_are_refused_on_cpu(bits, batch):
    """The first is named, with its place; also where nothing is computed."""
    last = 2 ** (bits - 1)
    places = (((2, 1, 0, 3), 255), ((1, 0, 2, 7), last + 1), ((2, 1, 2, 7), 254))
    codes = _codes(bits, *places)
    text = f"codes[1,0,2,7] must be at most {last} (bits {bits}), got {last + 1}"
    sizes = tf.constant([batch, *INPUT[1:]])
    tensors = tf.zeros(sizes), tf.zeros((batch, *GRAD[1:]))
    attributes = {"bits": bits, **VALID}
    # XLA leaves out what has no results.
    assert_refused = by_kernel if batch else eagerly
    with tf.device("CPU"):
        assert_refused(
            lambda inputs: bare().inq_conv(inputs, codes, 0, **attributes),
            tensors[:1],
            f"{CONV}: {text}",
        )
        assert_refused(
            lambda grad: bare().inq_conv_backprop_input(
                sizes, codes, 0, grad, **attributes
            ),
            tensors[1:],
            f"{IN_INPUT}: {text}",
        )


@every_number_of_bits
def test_codes_past_the_book_are_zero_on_gpu_and_refused_on_cpu(bits, device):
    place, rng = (1, 0, 2, 7), np.random.default_rng(1)
    inputs, grad = (tf.constant(rng.uniform(-1, 1, s)) for s in (INPUT, GRAD))
    sizes, attributes = tf.shape(inputs), {"bits": bits, **VALID}

    def results(codes):
        return (
            call(bare().inq_conv, inputs, codes, 0, **attributes),
            call(bare().inq_conv_backprop_input, sizes, codes, 0, grad, **attributes),
        )

    for code in (2 ** (bits - 1) + 1, 255):
        codes = _codes(bits, (place, code))
        if "CPU" in device:
            with pytest.raises(tf.errors.InvalidArgumentError, match=f"got {code}"):
                results(codes)
            continue
        zero = results(_codes(bits, (place, 0)))
        for one, other in zip(results(codes), zero, strict=True):
            np.testing.assert_array_equal(one, other)


PAIR, POSITIVE = "must be one or two integers, got ", "must be an integer >= 1, got "
BITS = "must be an integer from 2 to 8, got "


@pytest.mark.parametrize(
    "argument, value, text",
    [
        ("bits", 1, BITS + "1"),
        ("bits", 9, BITS + "9"),
        ("bits", 5.0, BITS + "5.0"),
        ("bits", True, BITS + "True"),
        ("bits", None, BITS + "None"),
        ("strides", (1, -2), POSITIVE + "-2"),
        ("strides", [], PAIR + "[]"),
        ("dilations", (0, 1), POSITIVE + "0"),
        ("dilations", "2", POSITIVE + "'2'"),
        ("padding", "full", "must be 'VALID' or 'SAME', got 'full'"),
        ("padding", None, "must be 'VALID' or 'SAME', got None"),
    ],
)
def test_bad_arguments_are_named(argument, value, text):
    with pytest.raises(ValueError) as caught:
        tf_capsops.inq_conv2d(*_good(CONV), **{argument: value})
    assert str(caught.value) == f"inq_conv2d: {argument} {text}"


CODE, EXPONENT = "codes must be integers from 0 to 255", "top_exponent must be integers"


@pytest.mark.parametrize(
    "codes, top_exponent, text",
    [
        ([[[[3, 300]]]], 0, CODE + ", got [300]"),
        (np.array([[[[-1, 3]]]]), 0, CODE + ", got [-1]"),
        ([[[[1.0]]]], 0, CODE + ", got [1.0]"),
        (np.array([[[[True]]]]), 0, CODE + ", got [True]"),
        ([[[[1]]]], 2**31, f"{EXPONENT} from {-(2**31)} to {2**31 - 1}, got [{2**31}]"),
        ([[[[1]]]], np.float32(2), f"{EXPONENT} from {-(2**31)} to {2**31 - 1}, got "),
    ],
)
def test_numbers_are_not_wrapped_around(codes, top_exponent, text):
    """TensorFlow wraps numbers around, and makes a code 44 out of 300."""
    with pytest.raises(ValueError) as caught:
        tf_capsops.inq_conv2d(tf.zeros((1, 1, 1, 1)), codes, top_exponent)
    assert str(caught.value).startswith(f"inq_conv2d: {text}")
