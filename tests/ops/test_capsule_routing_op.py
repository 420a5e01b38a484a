# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleRouting's ops: shapes inferred, inputs refused, kernels registered."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf
from frames import both_ways
from refusals import at_once_or_by_shape, by_kernel, by_shape_function, every_way
from registrations import bare, refusal

import tf_capsops

ROUTING = "CapsuleRouting"
WITH_SUMS = "CapsuleRoutingWithSums"
GRADIENT = "CapsuleRoutingGrad"
COEFFICIENTS = "CapsuleRoutingCoefficients"
OPS = (ROUTING, WITH_SUMS, GRADIENT, COEFFICIENTS)
UNKNOWN = None  # as a shape: not even the rank is known

# Batch 2, 3 input capsules of 6, 4 output capsules of 5, 7 iterations.
GRAD, INPUT, WEIGHTS, LOGITS, SUMS = (
    (2, 4, 5),
    (2, 3, 6),
    (3, 4, 5, 6),
    (3, 4),
    (7, 2, 4, 5),
)
RANKS = {
    "grad": "grad must have rank 3 [batch, out_caps, out_dim], got ",
    "input": "input must have rank 3 [batch, in_caps, in_dim], got ",
    "weights": "weights must have rank 4 [in_caps, out_caps, out_dim, in_dim], got ",
    "logits": "logits must have rank 2 [in_caps, out_caps], got ",
    "sums": "sums must have rank 4 [iterations, batch, out_caps, out_dim], got ",
}

# Shapes of (input, weights, logits), and the text after the op's name.
BAD_OPERANDS = [
    ((2, 3), WEIGHTS, LOGITS, RANKS["input"] + "[2,3]"),
    ((), WEIGHTS, LOGITS, RANKS["input"] + "[]"),
    (INPUT, (3, 4, 5), LOGITS, RANKS["weights"] + "[3,4,5]"),
    (INPUT, WEIGHTS, (3, 4, 5), RANKS["logits"] + "[3,4,5]"),
    (INPUT, WEIGHTS, (), RANKS["logits"] + "[]"),
    (
        INPUT,
        (9, 4, 5, 6),
        LOGITS,
        "weights dim 0 (in_caps) must be 3, got [9,4,5,6]",
    ),
    (INPUT, (3, 4, 5, 9), LOGITS, "weights dim 3 (in_dim) must be 6, got [3,4,5,9]"),
    (INPUT, WEIGHTS, (9, 4), "logits dim 0 (in_caps) must be 3, got [9,4]"),
    (INPUT, WEIGHTS, (3, 9), "logits dim 1 (out_caps) must be 4, got [3,9]"),
    (
        (2, 1152, 8),
        (1152, 10, 16, 8),
        (1152, 9),
        "logits dim 1 (out_caps) must be 10, got [1152,9]",
    ),
    ((0, 3, 6), WEIGHTS, (3, 0), "logits dim 1 (out_caps) must be 4, got [3,0]"),
]
# Shapes of (input, weights, logits, sums), likewise.
BAD_SUMS = [
    (*shapes, SUMS, text)
    for *shapes, text in BAD_OPERANDS[:9]  # the others do not fit these sums
] + [
    (INPUT, WEIGHTS, LOGITS, (2, 4, 5), RANKS["sums"] + "[2,4,5]"),
    (
        INPUT,
        WEIGHTS,
        LOGITS,
        (7, 9, 4, 5),
        "sums dim 1 (batch) must be 2, got [7,9,4,5]",
    ),
    (
        INPUT,
        WEIGHTS,
        LOGITS,
        (7, 2, 9, 5),
        "sums dim 2 (out_caps) must be 4, got [7,2,9,5]",
    ),
    (
        INPUT,
        WEIGHTS,
        LOGITS,
        (7, 2, 4, 9),
        "sums dim 3 (out_dim) must be 5, got [7,2,4,9]",
    ),
]
# Shapes of (grad, input, weights, logits, sums), likewise.
BAD_GRADIENTS = [(GRAD, *one) for one in BAD_SUMS] + [
    ((2, 4), INPUT, WEIGHTS, LOGITS, SUMS, RANKS["grad"] + "[2,4]"),
    (
        (9, 4, 5),
        INPUT,
        WEIGHTS,
        LOGITS,
        SUMS,
        "input dim 0 (batch) must be 9, got [2,3,6]",
    ),
    (
        (2, 9, 5),
        INPUT,
        WEIGHTS,
        LOGITS,
        SUMS,
        "weights dim 1 (out_caps) must be 9, got [3,4,5,6]",
    ),
    (
        (2, 4, 9),
        INPUT,
        WEIGHTS,
        LOGITS,
        SUMS,
        "weights dim 2 (out_dim) must be 9, got [3,4,5,6]",
    ),
    (
        GRAD,
        INPUT,
        WEIGHTS,
        LOGITS,
        (0, 2, 4, 5),
        "sums dim 0 (iterations) must be at least 1, got [0,2,4,5]",
    ),
]
BAD = [
    *((ROUTING, *one) for one in BAD_OPERANDS),
    *((WITH_SUMS, *one) for one in BAD_OPERANDS),
    *((COEFFICIENTS, *one) for one in BAD_SUMS),
    *((GRADIENT, *one) for one in BAD_GRADIENTS),
]


def _call(op, *tensors, **attributes):
    if op == WITH_SUMS:
        attributes = {"U": tf.float32, **attributes}
    function = {
        ROUTING: bare().capsule_routing,
        WITH_SUMS: bare().capsule_routing_with_sums,
        GRADIENT: bare().capsule_routing_grad,
        COEFFICIENTS: bare().capsule_routing_coefficients,
    }[op]
    return function(*tensors, **attributes)


def _speaker(op):
    """The op as messages name it: users know the one that returns no sums."""
    return ROUTING if op == WITH_SUMS else op


def _good(op):
    """Returns shapes that fit."""
    before = [GRAD] if op == GRADIENT else []
    after = [SUMS] if op in (GRADIENT, COEFFICIENTS) else []
    return [*before, INPUT, WEIGHTS, LOGITS, *after]


@every_way
@pytest.mark.parametrize(
    "case", BAD, ids=lambda case: "-".join(map(str, case[:-1])).replace(" ", "")
)
def test_bad_shapes(case, assert_refused, device):
    op, *shapes, text = case
    compute, tensors = functools.partial(_call, op), [tf.zeros(s) for s in shapes]
    assert_refused(compute, tensors, f"{_speaker(op)}: {text}")


@pytest.mark.parametrize("function", ["capsule_routing", "routing_coefficients"])
@pytest.mark.parametrize("iterations", [1, 2])
@pytest.mark.parametrize(
    "shapes, text",
    [(shapes, text) for *shapes, text in BAD_OPERANDS]
    + [((shapes[0], shapes[1], None), text) for *shapes, text in BAD_OPERANDS[:3]],
    ids=str,
)
def test_functions_say_what_the_ops_say(function, iterations, shapes, text, device):
    """Also where logits, or sums of no iteration, are made of the wrong shapes."""
    tensors = [None if shape is None else tf.zeros(shape) for shape in shapes]
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(text)):
        getattr(tf_capsops, function)(*tensors, iterations=iterations)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "epsilon, text",
    [
        (0.0, "epsilon must be positive, got 0 in float32"),
        (1e-46, "epsilon must be positive, got 0 in float32"),
        (-1.0, "epsilon must be positive, got -1 in float32"),
        (np.nan, "epsilon must be positive, got nan in float32"),
        (np.inf, "epsilon must be finite, got inf in float32"),
    ],
)
@at_once_or_by_shape
def test_bad_epsilon(op, epsilon, text, assert_refused, device):
    compute = functools.partial(_call, op, epsilon=epsilon)
    tensors = [tf.zeros(shape) for shape in _good(op)]
    assert_refused(compute, tensors, f"{_speaker(op)}: {text}")


@pytest.mark.parametrize("op", OPS)
def test_subnormal_epsilon_is_refused_in_graphs_too(op):
    """Kernels run where such numbers count as zero, shape functions where not."""
    compute = functools.partial(_call, op, epsilon=2**-130)
    tensors = [tf.zeros(shape) for shape in _good(op)]
    text = (
        f"{_speaker(op)}: epsilon must be at least 2^-126, got 7.34684e-40 in float32"
    )
    by_shape_function(compute, tensors, text)


@pytest.mark.parametrize("op", [ROUTING, WITH_SUMS])
@both_ways
def test_no_iterations(op, way, device):
    def compute():
        return _call(op, *(tf.zeros(shape) for shape in _good(op)), iterations=0)

    text = "(?i)attr 'iterations' of .*0 (must be at|less than) .*minimum 1"
    assert re.search(text, refusal(compute, way))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "iterations, batch, out_caps, out_dim, text",
    [
        (2**31, 0, 4, 5, "{} must be at most 2147483647, got 2147483648"),
        (
            *(2**30, 0, 2**10, 2**9),
            "sums of iterations x batch x out_caps x out_dim must be at most 2^48, "
            "got 1073741824 x 0 x 1024 x 512",
        ),
    ],
)
def test_iterations_that_cannot_be_counted(
    op, iterations, batch, out_caps, out_dim, text, device
):
    """Where sums are empty, nothing else says that there are too many."""
    shapes = {
        "grad": (batch, out_caps, out_dim),
        "input": (batch, 0, 6),
        "weights": (0, out_caps, out_dim, 6),
        "logits": (0, out_caps),
        "sums": (iterations, batch, out_caps, out_dim),
    }
    names = ["input", "weights", "logits"]
    names = (
        ["grad"] * (op == GRADIENT)
        + names
        + ["sums"] * (op in (GRADIENT, COEFFICIENTS))
    )
    attributes = {} if "sums" in names else {"iterations": iterations}
    compute = functools.partial(_call, op, **attributes)
    tensors = [tf.zeros(shapes[name]) for name in names]
    name = "sums dim 0 (iterations)" if "sums" in names else "iterations"
    by_kernel(compute, tensors, f"{_speaker(op)}: {text.format(name)}")


ITERATIONS = "must be an integer from 1 to 2147483647, got "
EPSILON = "must be a float32 from 1.1754944e-38 to 3.4028235e+38, got "


@pytest.mark.parametrize("function", ["capsule_routing", "routing_coefficients"])
@pytest.mark.parametrize(
    "argument, value, text",
    [
        ("iterations", 0, f"{ITERATIONS}0"),
        ("iterations", -2, f"{ITERATIONS}-2"),
        ("iterations", 2.0, f"{ITERATIONS}2.0"),
        ("iterations", True, f"{ITERATIONS}True"),
        ("iterations", "3", f"{ITERATIONS}'3'"),
        ("iterations", 2**31, f"{ITERATIONS}{2**31}"),
        ("iterations", 2**63, f"{ITERATIONS}{2**63}"),
        ("epsilon", 0, "must be a positive number, got 0"),
        ("epsilon", -1e-7, "must be a positive number, got -1e-07"),
        ("epsilon", float("nan"), "must be a positive number, got nan"),
        ("epsilon", float("inf"), "must be a positive number, got inf"),
        ("epsilon", "small", "must be a positive number, got 'small'"),
        ("epsilon", 1e-46, f"{EPSILON}1e-46"),
        ("epsilon", 1e39, f"{EPSILON}1e+39"),
    ],
)
def test_bad_arguments_are_named(function, argument, value, text):
    with pytest.raises(ValueError) as caught:
        getattr(tf_capsops, function)(
            tf.zeros(INPUT), tf.zeros(WEIGHTS), **{argument: value}
        )
    assert str(caught.value) == f"{function}: {argument} {text}"


@pytest.mark.parametrize(
    "op, shapes, inferred",
    [
        (ROUTING, (INPUT, WEIGHTS, LOGITS), ([2, 4, 5],)),
        (ROUTING, (UNKNOWN,) * 3, ([None] * 3,)),
        (ROUTING, (UNKNOWN, UNKNOWN, LOGITS), ([None, 4, None],)),
        (ROUTING, ([2, None, None], UNKNOWN, [None, 4]), ([2, 4, None],)),
        (ROUTING, ([None] * 3, [None, None, 5, None], UNKNOWN), ([None, None, 5],)),
        (ROUTING, ([0, 3, 0], UNKNOWN, UNKNOWN), ([0, None, None],)),
        (WITH_SUMS, (INPUT, WEIGHTS, LOGITS), ([2, 4, 5], [3, 2, 4, 5])),
        (WITH_SUMS, (UNKNOWN,) * 3, ([None] * 3, [3, None, None, None])),
        (
            WITH_SUMS,
            ([2, None, None], UNKNOWN, [None, 4]),
            ([2, 4, None], [3, 2, 4, None]),
        ),
        (
            GRADIENT,
            (GRAD, INPUT, WEIGHTS, LOGITS, SUMS),
            ([2, 3, 6], [3, 4, 5, 6], [3, 4]),
        ),
        (
            GRADIENT,
            (GRAD, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
            ([2, None, None], [None, 4, 5, None], [None, 4]),
        ),
        (
            GRADIENT,
            (UNKNOWN, [None, None, 6], UNKNOWN, [3, None], SUMS),
            ([2, 3, 6], [3, 4, 5, 6], [3, 4]),
        ),
        (GRADIENT, (UNKNOWN,) * 5, ([None] * 3, [None] * 4, [None] * 2)),
        (COEFFICIENTS, (INPUT, WEIGHTS, LOGITS, SUMS), ([2, 3, 4],)),
        (COEFFICIENTS, (INPUT, UNKNOWN, UNKNOWN, SUMS), ([2, 3, 4],)),
        (COEFFICIENTS, (UNKNOWN, UNKNOWN, LOGITS, UNKNOWN), ([None, 3, 4],)),
        (COEFFICIENTS, (UNKNOWN,) * 4, ([None] * 3,)),
        (COEFFICIENTS, (UNKNOWN, UNKNOWN, UNKNOWN, (0, 2, 4, 5)), ([2, None, 4],)),
    ],
)
def test_inferred_shapes(op, shapes, inferred):
    with tf.Graph().as_default():
        outputs = _call(op, *(tf.compat.v1.placeholder(tf.float32, s) for s in shapes))
    outputs = outputs if isinstance(outputs, tuple) else [outputs]
    assert [output.shape.as_list() for output in outputs] == list(inferred)


def test_functions_have_static_shapes():
    with tf.Graph().as_default():
        inputs = tf.compat.v1.placeholder(tf.float32, [None, 3, None])
        weights = tf.compat.v1.placeholder(tf.float32, [None, 4, 5, 6])
        output = tf_capsops.capsule_routing(inputs, weights)
        gradients = tf.gradients(output, [inputs, weights])
        looks = [
            tf_capsops.routing_coefficients(inputs, weights, iterations=iterations)
            for iterations in (1, 2)
        ]
    shapes = [tensor.shape.as_list() for tensor in (output, *gradients, *looks)]
    assert shapes == [
        [None, 4, 5],
        [None, 3, 6],
        [3, 4, 5, 6],
        [None, 3, 4],
        [None, 3, 4],
    ]
