# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""HighOrderConv's ops refuse shapes, attributes and arguments that do not fit."""

import functools
import re

import pytest
import tensorflow as tf
from frames import both_ways
from refusals import BAD_PAIRS, at_once_or_by_shape, every_way, resized, shape_text
from registrations import bare, refusal

import tf_capsops

CONV, GRADIENT = "HighOrderConv", "HighOrderConvGrad"
DEPTH = "groups * kernel_height * kernel_width"

# Two images of 8x9 with 6 channels in 2 groups, a kernel of 5x3; in each format.
FORMATS = {
    "NHWC": ((2, 8, 9, 6), (2, 8, 9, 30), ("batch", "height", "width", "channels")),
    "NCHW": ((2, 6, 8, 9), (2, 30, 8, 9), ("batch", "channels", "height", "width")),
}
ATTRIBUTES = {"kernel_size": [5, 3], "groups": 2}


def _bad_images(name, image, axes):
    """Yields shapes that do not fit the attributes, and what the message says."""
    rank = f"{name} must have rank 4 [{', '.join(axes)}], got "
    for shape in ((), image[:3], (*image, 1)):
        yield shape, rank + shape_text(shape)
    axis = axes.index("channels")
    start = f"{name} dim {axis} (channels) must be a multiple of 2 (groups), got "
    for channels in (1, 5):
        shape = resized(image, axis, channels)
        yield shape, start + shape_text(shape)


def _bad_filters(filters, axes):
    axes = [DEPTH if name == "channels" else name for name in axes]
    rank = f"filters must have rank 4 [{', '.join(axes)}], got "
    for shape in ((), filters[:3], (*filters, 1)):
        yield shape, rank + shape_text(shape)
    for axis, name in enumerate(axes):
        for wrong in (0, 1, 15):
            shape = resized(filters, axis, wrong)
            must = f"filters dim {axis} ({name}) must be {filters[axis]}, got "
            yield shape, must + shape_text(shape)


def _bad():
    """Yields op, shapes of operands, format and message."""
    for data_format, (image, filters, axes) in FORMATS.items():
        for shape, text in _bad_images("input", image, axes):
            yield CONV, (shape, filters), data_format, text
        for shape, text in _bad_images("grad", image, axes):
            yield GRADIENT, (shape, image, filters), data_format, text
        rank = f"input must have rank 4 [{', '.join(axes)}], got "
        for shape in ((), image[:3], (*image, 1)):
            operands = image, shape, filters
            yield GRADIENT, operands, data_format, rank + shape_text(shape)
        for axis, name in enumerate(axes):
            for wrong in (0, 4):
                shape = resized(image, axis, wrong)
                must = f"input dim {axis} ({name}) must be {image[axis]}, got "
                yield (
                    GRADIENT,
                    (image, shape, filters),
                    data_format,
                    must + shape_text(shape),
                )
        for shape, text in _bad_filters(filters, axes):
            yield CONV, (image, shape), data_format, text
            yield GRADIENT, (image, image, shape), data_format, text


def _call(op, *tensors, **attributes):
    function = {CONV: bare().high_order_conv, GRADIENT: bare().high_order_conv_grad}[op]
    return function(*tensors, **{**ATTRIBUTES, **attributes})


@every_way
@pytest.mark.parametrize("case", _bad(), ids=lambda case: str(case).replace(" ", ""))
def test_bad_operands(case, assert_refused, device):
    op, shapes, data_format, text = case
    compute = functools.partial(_call, op, data_format=data_format)
    assert_refused(compute, [tf.zeros(shape) for shape in shapes], f"{op}: {text}")


@every_way
def test_the_message_of_the_contract(assert_refused, device):
    assert_refused(
        lambda *tensors: tf_capsops.high_order_conv2d(*tensors, 5),
        [tf.zeros((2, 8, 8, 3)), tf.zeros((2, 8, 8, 9))],
        "HighOrderConv: filters dim 3 (groups * kernel_height * kernel_width) must be "
        "25, got [2,8,8,9]",
    )


every_op = pytest.mark.parametrize("op", [CONV, GRADIENT])


def _good(op):
    image, filters, _ = FORMATS["NHWC"]
    shapes = (image, filters) if op == CONV else (image, image, filters)
    return [tf.zeros(shape) for shape in shapes]


@every_op
@at_once_or_by_shape
@pytest.mark.parametrize(
    "attributes, text",
    [
        *(
            (
                {"kernel_size": pair},
                "kernel_size must be two odd positive integers, got "
                + shape_text(pair),
            )
            for pair in (
                *([], [5], [5, 3, 1], [0, 3], [5, 0], [-5, 3], [5, -3], [4, 3]),
                *([5, 2], [2**31 - 2, 1]),
            )
        ),
        *(
            (
                {"dilations": pair},
                f"dilations must be two positive integers, got {shape_text(pair)}",
            )
            for pair in BAD_PAIRS
        ),
        ({"groups": 0}, "groups must be a positive integer, got 0"),
        ({"groups": -2}, "groups must be a positive integer, got -2"),
        (
            {"kernel_size": [2**31 - 1, 2**31 - 1], "groups": 4},
            f"{DEPTH} must be less than 2^63, got 4 * 2147483647 * 2147483647",
        ),
        (
            {"kernel_size": [2**31 - 1, 2**31 - 1]},
            f"filters dim 3 ({DEPTH}) must be 9223372028264841218, got [2,8,9,30]",
        ),
    ],
    ids=str,
)
def test_bad_attributes(op, attributes, text, assert_refused, device):
    compute = functools.partial(_call, op, **attributes)
    assert_refused(compute, _good(op), f"{op}: {text}")


@every_op
@both_ways
@pytest.mark.parametrize(
    "attributes, text",
    [
        ({"data_format": "nhwc"}, '"nhwc" is not in|.nhwc. not in: "NHWC", "NCHW"'),
        ({"data_format": "CHWN"}, '"CHWN" is not in|.CHWN. not in: "NHWC", "NCHW"'),
        ({"kernel_size": [2**31 + 1, 1]}, "kernel_size has value 2147483649 out of"),
        ({"dilations": [1, 2**40]}, "dilations has value 1099511627776 out of range"),
        ({"groups": 2**31}, "groups has value 2147483648 out of range"),
    ],
    ids=str,
)
def test_attributes_that_tensorflow_refuses(op, attributes, text, way, device):
    def compute():
        return _call(op, *_good(op), **attributes)

    assert re.search(text, refusal(compute, way))


_WITHOUT_GROUPS = (2, 3, 4, 2), (2, 3, 4, 9)


def test_attributes_have_defaults(device):
    operands = [tf.random.uniform(shape) for shape in _WITHOUT_GROUPS]
    output = bare().high_order_conv(*operands, kernel_size=[3, 3])
    given = {"groups": 1, "dilations": [1, 1], "data_format": "NHWC"}
    for same in (
        bare().high_order_conv(*operands, kernel_size=[3, 3], **given),
        tf_capsops.high_order_conv2d(*operands, 3),
    ):
        assert tf.reduce_all(output == same)


def test_the_size_of_the_kernel_has_no_default():
    operands = [tf.zeros(shape) for shape in _WITHOUT_GROUPS]
    with pytest.raises(TypeError, match="kernel_size"):
        bare().high_order_conv(*operands)
    with pytest.raises(TypeError, match="kernel_size"):
        tf_capsops.high_order_conv2d(*operands)


INTEGERS = "must be one or two integers, got "
POSITIVE = "must be an integer >= 1, got "


@pytest.mark.parametrize(
    "argument, value, text",
    [
        ("kernel_size", 2, "must be odd, got 2"),
        ("kernel_size", (3, 4), "must be odd, got (3, 4)"),
        ("kernel_size", 0, POSITIVE + "0"),
        ("kernel_size", (1, -3), POSITIVE + "-3"),
        ("kernel_size", (3, 3, 3), INTEGERS + "(3, 3, 3)"),
        ("kernel_size", [], INTEGERS + "[]"),
        ("kernel_size", 3.0, POSITIVE + "3.0"),
        ("kernel_size", None, POSITIVE + "None"),
        ("groups", 0, POSITIVE + "0"),
        ("groups", -1, POSITIVE + "-1"),
        ("groups", (2, 2), POSITIVE + "(2, 2)"),
        ("groups", True, POSITIVE + "True"),
        ("dilations", (0, 1), POSITIVE + "0"),
        ("dilations", (1,), INTEGERS + "(1,)"),
        ("dilations", "2", POSITIVE + "'2'"),
        (
            "data_format",
            "channels_last",
            "must be 'NHWC' or 'NCHW', got 'channels_last'",
        ),
        ("data_format", "nchw", "must be 'NHWC' or 'NCHW', got 'nchw'"),
        ("data_format", None, "must be 'NHWC' or 'NCHW', got None"),
    ],
)
def test_bad_arguments_are_named(argument, value, text):
    arguments = {"kernel_size": (5, 3), "groups": 2, argument: value}
    with pytest.raises(ValueError) as caught:
        tf_capsops.high_order_conv2d(*_good(CONV), **arguments)
    assert str(caught.value) == f"high_order_conv2d: {argument} {text}"
