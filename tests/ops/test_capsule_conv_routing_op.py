# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleConvRouting's ops: shapes inferred, inputs and attributes refused."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from refusals import (
    at_once_or_by_shape,
    by_kernel,
    by_shape_function,
    every_way,
    mismatch,
    resized,
    shape_text,
)
from registrations import bare

FORWARD, GRADIENT = "CapsuleConvRouting", "CapsuleConvRoutingGrad"
UNKNOWN = None  # as a shape: not even the rank is known

# Two images of 5x6 with 3 types of 4 numbers, a kernel of 3x2, and 7 parents of 8.
INPUT, WEIGHTS, OWN_WEIGHTS = (2, 5, 6, 3, 4), (3, 2, 4, 7, 8), (3, 2, 3, 4, 7, 8)
BIAS, LOGITS, GRAD = (7, 8), (3, 7), (2, 3, 5, 7, 8)
GOOD = (INPUT, WEIGHTS, BIAS, LOGITS)
RANKS = {
    "input": "input must have rank 5 [batch, in_height, in_width, types, in_dim], got ",
    "weights": "weights must have rank 5 [kernel_height, kernel_width, in_dim, "
    "parents, out_dim] or 6 [kernel_height, kernel_width, types, in_dim, parents, "
    "out_dim], got ",
    "bias": "bias must have rank 2 [parents, out_dim], got ",
    "logits": "logits must have rank 2 [types, parents], got ",
    "grad": "grad must have rank 5 [batch, out_height, out_width, parents, out_dim], "
    "got ",
}


def _bad():
    """Yields four shapes, attributes, and the text after the op's name."""
    names = "input", "weights", "bias", "logits"
    for place, name in enumerate(names):
        for shape in ((), (2, 5, 6), (1,) * 7):
            shapes = (*GOOD[:place], shape, *GOOD[place + 1 :])
            yield *shapes, {}, RANKS[name] + shape_text(shape)
    for axis, name in ((2, "in_dim"), (3, "parents"), (4, "out_dim")):
        shape = resized(WEIGHTS, axis, 9)
        if name == "in_dim":
            yield INPUT, shape, BIAS, LOGITS, {}, mismatch("weights", 2, name, 4, shape)
        else:
            text = mismatch("bias", axis - 3, name, 9, BIAS)
            yield INPUT, shape, BIAS, LOGITS, {}, text
    shape = resized(OWN_WEIGHTS, 2, 9)
    yield INPUT, shape, BIAS, LOGITS, {}, mismatch("weights", 2, "types", 3, shape)
    shape = resized(LOGITS, 0, 9)
    yield INPUT, WEIGHTS, BIAS, shape, {}, mismatch("logits", 0, "types", 3, shape)
    shape = resized(LOGITS, 1, 0)
    yield INPUT, WEIGHTS, BIAS, shape, {}, mismatch("logits", 1, "parents", 7, shape)
    for transposed in (False, True):
        shape = resized(WEIGHTS, 1, 0)
        text = (
            f"weights dim 1 (kernel_width) must be at least 1, got {shape_text(shape)}"
        )
        yield INPUT, shape, BIAS, LOGITS, {"transposed": transposed}, text
    shape = resized(WEIGHTS, 0, 6)
    text = "weights dim 0 (kernel_height) must be at most 5 (in_height 5, dilation 1, "
    text += f"padding VALID), got {shape_text(shape)}"
    yield INPUT, shape, BIAS, LOGITS, {}, text


@every_way
@pytest.mark.parametrize(
    "case", _bad(), ids=lambda case: str(case[:-1]).replace(" ", "")
)
def test_bad_shapes(case, assert_refused, device):
    *shapes, attributes, text = case
    tensors = [tf.zeros(shape) for shape in shapes]
    compute = functools.partial(_call, FORWARD, **attributes)
    assert_refused(compute, tensors, f"{FORWARD}: {text}")
    compute = functools.partial(_call, GRADIENT, **attributes)
    # The gradient's own shape is looked at last.
    assert_refused(compute, [tf.zeros(GRAD), *tensors], f"{GRADIENT}: {text}")


def _call(op, *tensors, **attributes):
    function = {
        FORWARD: bare().capsule_conv_routing,
        GRADIENT: bare().capsule_conv_routing_grad,
    }[op]
    defaults = {
        "strides": [1, 1],
        "dilations": [1, 1],
        "padding": "VALID",
        "iterations": 2,
    }
    return function(*tensors, **defaults | attributes)


@every_way
@pytest.mark.parametrize(
    "shape, attributes, text",
    [
        (GRAD[:-1], {}, RANKS["grad"] + shape_text(GRAD[:-1])),
        *(
            (resized(GRAD, axis, 9), {}, mismatch("grad", axis, name, size, shape))
            for axis, name, size in (
                *((0, "batch", 2), (1, "out_height", 3), (2, "out_width", 5)),
                *((3, "parents", 7), (4, "out_dim", 8)),
            )
            for shape in [resized(GRAD, axis, 9)]
        ),
        (GRAD, {"padding": "SAME"}, mismatch("grad", 1, "out_height", 5, GRAD)),
        (GRAD, {"strides": [2, 1]}, mismatch("grad", 1, "out_height", 2, GRAD)),
        (GRAD, {"transposed": True}, mismatch("grad", 1, "out_height", 7, GRAD)),
        (
            GRAD,
            {"transposed": True, "padding": "SAME", "strides": [3, 2]},
            mismatch("grad", 1, "out_height", 15, GRAD),
        ),
    ],
)
def test_bad_gradients(shape, attributes, text, assert_refused, device):
    tensors = [tf.zeros(each) for each in (shape, *GOOD)]
    compute = functools.partial(_call, GRADIENT, **attributes)
    assert_refused(compute, tensors, f"{GRADIENT}: {text}")


AXES = "strides must be one, two or three positive integers, got "


@at_once_or_by_shape
@pytest.mark.parametrize("op", [FORWARD, GRADIENT])
@pytest.mark.parametrize(
    "attributes, text",
    [
        ({"strides": []}, f"{AXES}[]"),
        ({"strides": [1] * 4}, f"{AXES}[1,1,1,1]"),
        ({"strides": [1, 0]}, "strides must be two positive integers, got [1,0]"),
        ({"strides": [-1, 1]}, "strides must be two positive integers, got [-1,1]"),
        ({"dilations": [1]}, "dilations must be two positive integers, got [1]"),
        ({"dilations": [0, 1]}, "dilations must be two positive integers, got [0,1]"),
        (
            {"dilations": [2, 1], "transposed": True},
            "dilations must be 1 where transposed, got [2,1]",
        ),
        ({"epsilon": 0.0}, "epsilon must be positive, got 0 in float32"),
        ({"epsilon": np.nan}, "epsilon must be positive, got nan in float32"),
        ({"epsilon": np.inf}, "epsilon must be finite, got inf in float32"),
        (
            {"iterations": 2**31},
            "iterations must be at most 2147483647, got 2147483648",
        ),
    ],
    ids=str,
)
def test_bad_attributes(op, attributes, text, assert_refused, device):
    tensors = [tf.zeros(shape) for shape in ((GRAD,) * (op == GRADIENT) + GOOD)]
    compute = functools.partial(_call, op, **attributes)
    assert_refused(compute, tensors, f"{op}: {text}")


@pytest.mark.parametrize("op", [FORWARD, GRADIENT])
def test_subnormal_epsilon_is_refused_in_graphs_too(op):
    """Kernels run where such numbers count as zero, shape functions where not."""
    tensors = [tf.zeros(shape) for shape in ((GRAD,) * (op == GRADIENT) + GOOD)]
    text = f"{op}: epsilon must be at least 2^-126, got 7.34684e-40 in float32"
    by_shape_function(functools.partial(_call, op, epsilon=2**-130), tensors, text)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("op", [FORWARD, GRADIENT])
def test_kernels_that_32_bits_do_not_count(op, transposed, device):
    grad = (2, 5, 6, 7, 8)
    shapes = (2, 5, 6, 3, 0), (2**31, 2, 0, 7, 8), BIAS, LOGITS
    tensors = [tf.zeros(shape) for shape in ((grad,) * (op == GRADIENT) + shapes)]
    compute = functools.partial(_call, op, padding="SAME", transposed=transposed)
    text = "weights dim 0 (kernel_height) must be at most 2147483647, got "
    by_kernel(compute, tensors, f"{op}: {text}[2147483648,2,0,7,8]")


def test_sizes_that_cannot_be_counted(device):
    text = (
        "votes of a pixel in all iterations, iterations x types x parents x out_dim, "
    )
    text += "must be at most 2^48, got 32768 x 16384 x 32 x 32768"
    shapes = (0, 1, 1, 2**14, 0), (1, 1, 0, 32, 2**15), (32, 2**15), (2**14, 32)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        _call(FORWARD, *(tf.zeros(shape) for shape in shapes), iterations=2**15)
    assert f"{FORWARD}: {text}" in str(caught.value)


def test_a_transposed_image_that_is_too_large(device):
    shapes = (0, 2**62, 1, 3, 4), (1, 1, 4, 7, 8), BIAS, LOGITS
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        _call(
            FORWARD,
            *(tf.zeros(shape) for shape in shapes),
            strides=[2, 1],
            transposed=True,
        )
    text = f"in_height x strides must be at most {2**61 - 1}, got {2**62} x 2"
    assert f"{FORWARD}: {text}" in str(caught.value)


@pytest.mark.parametrize(
    "op, shapes, attributes, inferred",
    [
        (FORWARD, GOOD, {}, ([*GRAD],)),
        (FORWARD, (INPUT, OWN_WEIGHTS, BIAS, LOGITS), {}, ([*GRAD],)),
        (FORWARD, (UNKNOWN,) * 4, {}, ([None] * 5,)),
        (FORWARD, (UNKNOWN, UNKNOWN, BIAS, UNKNOWN), {}, ([None, None, None, 7, 8],)),
        (
            FORWARD,
            ([2, 5, None, None, 4], UNKNOWN, UNKNOWN, LOGITS),
            {"padding": "SAME", "strides": [2, 3]},
            ([2, 3, None, 7, None],),
        ),
        (
            FORWARD,
            (INPUT, UNKNOWN, UNKNOWN, UNKNOWN),
            {"padding": "SAME", "strides": [2, 3], "transposed": True},
            ([2, 10, 18, None, None],),
        ),
        (
            FORWARD,
            (INPUT, UNKNOWN, UNKNOWN, UNKNOWN),
            {"transposed": True},
            ([2, None, None, None, None],),
        ),
        (
            FORWARD,
            ((2, 6, 3, 4), (2, 4, 7, 8), BIAS, LOGITS),
            {"strides": [1], "dilations": [1]},
            ([2, 5, 7, 8],),
        ),
        (
            FORWARD,
            ((2, 4, 5, 6, 3, 4), (2, 3, 2, 3, 4, 7, 8), BIAS, LOGITS),
            {"strides": [1, 1, 2], "dilations": [2, 1, 1]},
            ([2, 2, 3, 3, 7, 8],),
        ),
        (GRADIENT, (GRAD, *GOOD), {}, tuple(map(list, GOOD))),
        (
            GRADIENT,
            (GRAD, UNKNOWN, [None] * 6, UNKNOWN, UNKNOWN),
            {},
            ([2] + [None] * 4, [None] * 4 + [7, 8], [7, 8], [None, 7]),
        ),
        (
            GRADIENT,
            (UNKNOWN,) * 5,
            {},
            ([None] * 5, UNKNOWN, [None] * 2, [None] * 2),
        ),
    ],
)
def test_inferred_shapes(op, shapes, attributes, inferred):
    with tf.Graph().as_default():
        symbols = (tf.compat.v1.placeholder(tf.float32, shape) for shape in shapes)
        outputs = _call(op, *symbols, **attributes)
    outputs = outputs if isinstance(outputs, tuple) else [outputs]
    found = [o.shape.as_list() if o.shape.rank is not None else None for o in outputs]
    assert found == list(inferred)
