# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleConv's ops refuse shapes, attributes and arguments that do not fit."""

import functools
import re

import pytest
import tensorflow as tf
from frames import both_ways
from refusals import (
    BAD_PAIRS,
    at_once_or_by_shape,
    bad_gradients,
    bad_kernels,
    by_kernel,
    every_way,
    mismatch,
    resized,
    shape_text,
)
from registrations import bare, refusal

import tf_capsops

CONV = "CapsuleConv"
WITH_BIAS = "CapsuleConvBiasRelu"
IN_INPUT = "CapsuleConvBackpropInput"
IN_WEIGHTS = "CapsuleConvBackpropWeights"
SAME = {"padding": "SAME"}

# Two images of 5x6, 3 capsules of 4x7 to 8 of 4x9, a kernel of 3x2; of rank 3, 11 deep.
INPUT, WEIGHTS, GRAD = (2, 5, 6, 3, 4, 7), (3, 2, 3, 8, 7, 9), (2, 3, 5, 8, 4, 9)
DEEP_INPUT, DEEP_WEIGHTS, DEEP_GRAD = (
    (*shape[:4], 11, *shape[4:]) for shape in (INPUT, WEIGHTS, GRAD)
)
BIAS, DEEP_BIAS = GRAD[3:], DEEP_GRAD[3:]


def _rank(name, axes, depth_before):
    """Returns the messages for a wrong rank: of either two, of 6, of 7."""
    deep = axes.replace(depth_before, f"pose_depth, {depth_before}")
    start = f"{name} must have rank"
    return (
        f"{start} 6 [{axes}] or 7 [{deep}], got ",
        f"{start} 6 [{axes}], got ",
        f"{start} 7 [{deep}], got ",
    )


INPUT_AXES = "batch, in_height, in_width, in_channels, pose_rows, pose_inner"
WEIGHT_AXES = (
    "kernel_height, kernel_width, in_channels, out_channels, pose_inner, pose_columns"
)
GRAD_AXES = "batch, out_height, out_width, out_channels, pose_rows, pose_columns"
INPUT_RANK, _, _ = _rank("input", INPUT_AXES, "pose_rows")
WEIGHTS_RANK, WEIGHTS_RANK_6, WEIGHTS_RANK_7 = _rank(
    "weights", WEIGHT_AXES, "pose_inner"
)
_, GRAD_RANK_6, GRAD_RANK_7 = _rank("grad", GRAD_AXES, "pose_rows")


def _bad_forward():
    """Yields shapes of input and weights, attributes, and what the message says."""
    yield (2, 5, 6, 3, 4), WEIGHTS, {}, INPUT_RANK + "[2,5,6,3,4]"
    yield (), WEIGHTS, {}, INPUT_RANK + "[]"
    yield (*DEEP_INPUT, 1), WEIGHTS, {}, INPUT_RANK + shape_text((*DEEP_INPUT, 1))
    yield INPUT, (3, 2), {}, WEIGHTS_RANK_6 + "[3,2]"
    yield INPUT, DEEP_WEIGHTS, {}, WEIGHTS_RANK_6 + shape_text(DEEP_WEIGHTS)
    yield DEEP_INPUT, WEIGHTS, {}, WEIGHTS_RANK_7 + shape_text(WEIGHTS)
    for axis, name, size in ((2, "in_channels", 3), (4, "pose_inner", 7)):
        for wrong in (1, 0):
            shape = resized(WEIGHTS, axis, wrong)
            yield INPUT, shape, {}, mismatch("weights", axis, name, size, shape)
    shape = resized(DEEP_WEIGHTS, 4, 12)
    yield DEEP_INPUT, shape, {}, mismatch("weights", 4, "pose_depth", 11, shape)
    for shape, attributes, text in bad_kernels("weights", WEIGHTS):
        yield INPUT, shape, attributes, text
    shape = resized(WEIGHTS, 1, 7)
    text = "weights dim 1 (kernel_width) must be at most 6 (in_width 6, dilation 1, "
    yield (
        INPUT,
        shape,
        {"strides": [9, 9]},
        f"{text}padding VALID), got {shape_text(shape)}",
    )


def _bad_backward():
    """Yields shapes of input, weights and grad, attributes, what the message says."""
    for shape, attributes, text in bad_gradients(GRAD):
        yield INPUT, WEIGHTS, shape, attributes, text
    for axis, name in ((4, "pose_rows"), (5, "pose_columns")):
        shape = resized(GRAD, axis, 1)
        text = mismatch("grad", axis, name, GRAD[axis], shape)
        yield INPUT, WEIGHTS, shape, {}, text
    shape = resized(DEEP_GRAD, 4, 1)
    text = mismatch("grad", 4, "pose_depth", 11, shape)
    yield DEEP_INPUT, DEEP_WEIGHTS, shape, {}, text
    yield INPUT, WEIGHTS, DEEP_GRAD, {}, GRAD_RANK_6 + shape_text(DEEP_GRAD)
    yield DEEP_INPUT, DEEP_WEIGHTS, GRAD, {}, GRAD_RANK_7 + shape_text(GRAD)


def _call(op, *tensors, **attributes):
    function = {
        CONV: bare().capsule_conv,
        WITH_BIAS: bare().capsule_conv_bias_relu,
        IN_INPUT: bare().capsule_conv_backprop_input,
        IN_WEIGHTS: bare().capsule_conv_backprop_weights,
    }[op]
    return function(*tensors, **attributes)


def _bad():
    """Yields op, operands, attributes and message; a list stands for sizes."""
    for inputs, weights, attributes, text in _bad_forward():
        yield CONV, (inputs, weights), attributes, text
        bias = DEEP_BIAS if len(inputs) == 7 else BIAS
        yield WITH_BIAS, (inputs, weights, bias), attributes, text
    shape = resized(DEEP_BIAS, 1, 12)
    text = mismatch("bias", 1, "pose_depth", 11, shape)
    yield WITH_BIAS, (DEEP_INPUT, DEEP_WEIGHTS, shape), {}, text
    forward = (
        (inputs, weights, DEEP_GRAD if len(inputs) == 7 else GRAD, attributes, text)
        for inputs, weights, attributes, text in _bad_forward()
        # Without sizes, which come later, the grad would be what does not fit.
        if attributes != SAME and "(pose_depth) must" not in text
    )
    for inputs, weights, grad, attributes, text in (*_bad_backward(), *forward):
        # How many sizes there are is seen before they are: another test has that.
        if not text.startswith("input must have rank"):
            yield IN_INPUT, ([*inputs], weights, grad), attributes, text
        if not text.startswith("weights must have rank"):
            named = re.sub("^weights", "weight_sizes", text)
            yield IN_WEIGHTS, (inputs, [*weights], grad), attributes, named


def _tensor(operand):
    return tf.constant(operand) if isinstance(operand, list) else tf.zeros(operand)


@every_way
@pytest.mark.parametrize("case", _bad(), ids=lambda case: str(case).replace(" ", ""))
def test_bad_operands(case, assert_refused, device):
    op, operands, attributes, text = case
    compute = functools.partial(_call, op, **attributes)
    assert_refused(compute, [*map(_tensor, operands)], f"{op}: {text}")


GOOD = {
    CONV: (INPUT, WEIGHTS),
    WITH_BIAS: (INPUT, WEIGHTS, BIAS),
    IN_INPUT: ([*INPUT], WEIGHTS, GRAD),
    IN_WEIGHTS: (INPUT, [*WEIGHTS], GRAD),
}
every_op = pytest.mark.parametrize("op", GOOD)


def test_gradients_of_weights_of_another_depth(device):
    """A shape function that does not know sizes yet finds another mistake."""
    shape = resized(DEEP_WEIGHTS, 4, 12)
    for op, name, operands in (
        (IN_INPUT, "weights", ([*DEEP_INPUT], shape, DEEP_GRAD)),
        (IN_WEIGHTS, "weight_sizes", (DEEP_INPUT, [*shape], DEEP_GRAD)),
    ):
        message = f"{op}: {mismatch(name, 4, 'pose_depth', 11, shape)}"
        compute = functools.partial(_call, op)
        by_kernel(compute, [*map(_tensor, operands)], message)


@pytest.mark.parametrize("op", [CONV, WITH_BIAS, IN_INPUT])
@at_once_or_by_shape
def test_kernels_that_32_bits_do_not_count(op, assert_refused, device):
    """Without input channels they take no memory."""
    kernel = (2**31, 2, 0, 8, 7, 9)
    operands = list(GOOD[op])
    operands[:2] = type(operands[0])(resized(INPUT, 3, 0)), kernel
    text = "weights dim 0 (kernel_height) must be at most 2147483647, got "
    message = f"{op}: {text}{shape_text(kernel)}"
    compute = functools.partial(_call, op)
    assert_refused(compute, [*map(_tensor, operands)], message)


@every_op
@pytest.mark.parametrize("name", ["strides", "dilations"])
@pytest.mark.parametrize("pair", BAD_PAIRS, ids=str)
@at_once_or_by_shape
def test_bad_steps(op, name, pair, assert_refused, device):
    message = f"{op}: {name} must be two positive integers, got {shape_text(pair)}"
    compute = functools.partial(_call, op, **{name: pair})
    assert_refused(compute, [*map(_tensor, GOOD[op])], message)


@every_op
@both_ways
@pytest.mark.parametrize(
    "attributes, text",
    [
        ({"padding": "FULL"}, '"FULL" is not in|.FULL. not in: "VALID", "SAME"'),
        ({"padding": "same"}, '"same" is not in|.same. not in: "VALID", "SAME"'),
        ({"strides": [2**31, 1]}, "strides has value 2147483648 out of range"),
        ({"dilations": [1, 2**40]}, "dilations has value 1099511627776 out of range"),
    ],
    ids=str,
)
def test_bad_attributes(op, attributes, text, way, device):
    def compute():
        return _call(op, *map(_tensor, GOOD[op]), **attributes)

    assert re.search(text, refusal(compute, way))


def test_attributes_have_defaults(device):
    ops = bare()
    operands = [tf.random.uniform(shape) for shape in (INPUT, WEIGHTS)]
    output = ops.capsule_conv(*operands)
    assert output.shape == GRAD
    for same in (
        ops.capsule_conv(*operands, strides=[1, 1], padding="VALID", dilations=[1, 1]),
        tf_capsops.capsule_conv2d(*operands),
    ):
        assert tf.reduce_all(output == same)


INTEGERS = "must be one or two integers, got "
POSITIVE = "must be an integer >= 1, got "


@pytest.mark.parametrize(
    "argument, value, text",
    [
        ("strides", 0, POSITIVE + "0"),
        ("strides", (1, -2), POSITIVE + "-2"),
        ("strides", (1, 2, 3), INTEGERS + "(1, 2, 3)"),
        ("strides", [], INTEGERS + "[]"),
        ("strides", 2.0, POSITIVE + "2.0"),
        ("strides", None, POSITIVE + "None"),
        ("dilations", (0, 1), POSITIVE + "0"),
        ("dilations", (1,), INTEGERS + "(1,)"),
        ("dilations", True, POSITIVE + "True"),
        ("dilations", "2", POSITIVE + "'2'"),
        ("padding", "full", "must be 'VALID' or 'SAME', got 'full'"),
        ("padding", 0, "must be 'VALID' or 'SAME', got 0"),
        ("padding", None, "must be 'VALID' or 'SAME', got None"),
        (
            "padding",
            ((0, 0), (1, 1)),
            "must be 'VALID' or 'SAME', got ((0, 0), (1, 1))",
        ),
    ],
)
def test_bad_arguments_are_named(argument, value, text):
    with pytest.raises(ValueError) as caught:
        tf_capsops.capsule_conv2d(
            tf.zeros(INPUT), tf.zeros(WEIGHTS), **{argument: value}
        )
    assert str(caught.value) == f"capsule_conv2d: {argument} {text}"
