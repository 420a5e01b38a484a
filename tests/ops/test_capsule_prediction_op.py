# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsulePrediction as an op: shapes inferred, and shapes refused."""

import functools

import pytest
import tensorflow as tf
from refusals import every_way
from registrations import bare

import tf_capsops

PREDICTION = "CapsulePrediction"
GRADIENT = "CapsulePredictionGrad"
UNKNOWN = None  # as a shape: not even the rank is known
RANKS = {
    "input": "input must have rank 3 [batch, in_caps, in_dim], got ",
    "weights": "weights must have rank 4 [in_caps, out_caps, out_dim, in_dim], got ",
    "grad": "grad must have rank 4 [batch, in_caps, out_caps, out_dim], got ",
}

# Shapes of (input, weights), and the text after "CapsulePrediction: ".
BAD_PREDICTIONS = [
    ((2, 3), (3, 4, 5, 6), RANKS["input"] + "[2,3]"),
    ((), (3, 4, 5, 6), RANKS["input"] + "[]"),
    ((2, 3, 6, 1), (3, 4, 5, 6), RANKS["input"] + "[2,3,6,1]"),
    ((2, 3, 6), (3, 4, 5), RANKS["weights"] + "[3,4,5]"),
    ((2, 3, 6), (), RANKS["weights"] + "[]"),
    (
        (2, 1152, 8),
        (4, 10, 16, 8),
        "weights dim 0 (in_caps) must be 1152, got [4,10,16,8]",
    ),
    ((2, 3, 6), (3, 4, 5, 7), "weights dim 3 (in_dim) must be 6, got [3,4,5,7]"),
    ((0, 3, 6), (2, 4, 5, 6), "weights dim 0 (in_caps) must be 3, got [2,4,5,6]"),
    ((2, 3, 0), (3, 4, 5, 6), "weights dim 3 (in_dim) must be 0, got [3,4,5,6]"),
]
# Shapes of (grad, input, weights), and the text after "CapsulePredictionGrad: ".
BAD_GRADIENTS = [
    ((2, 3, 4), (2, 3, 6), (3, 4, 5, 6), RANKS["grad"] + "[2,3,4]"),
    ((2, 3, 4, 5), (2, 3), (3, 4, 5, 6), RANKS["input"] + "[2,3]"),
    ((2, 3, 4, 5), (2, 3, 6), (3, 4, 5), RANKS["weights"] + "[3,4,5]"),
    (
        (2, 3, 4, 5),
        (7, 3, 6),
        (3, 4, 5, 6),
        "input dim 0 (batch) must be 2, got [7,3,6]",
    ),
    (
        (2, 3, 4, 5),
        (2, 7, 6),
        (3, 4, 5, 6),
        "input dim 1 (in_caps) must be 3, got [2,7,6]",
    ),
    (
        (2, 3, 4, 5),
        (2, 3, 6),
        (7, 4, 5, 6),
        "weights dim 0 (in_caps) must be 3, got [7,4,5,6]",
    ),
    (
        (2, 3, 4, 5),
        (2, 3, 6),
        (3, 7, 5, 6),
        "weights dim 1 (out_caps) must be 4, got [3,7,5,6]",
    ),
    (
        (2, 3, 4, 5),
        (2, 3, 6),
        (3, 4, 7, 6),
        "weights dim 2 (out_dim) must be 5, got [3,4,7,6]",
    ),
    (
        (2, 3, 4, 5),
        (2, 3, 6),
        (3, 4, 5, 7),
        "weights dim 3 (in_dim) must be 6, got [3,4,5,7]",
    ),
]
BAD = [(PREDICTION, *one) for one in BAD_PREDICTIONS] + [
    (GRADIENT, *one) for one in BAD_GRADIENTS
]


def _call(op, *tensors):
    if op == PREDICTION:
        return tf_capsops.capsule_prediction(*tensors)
    return bare().capsule_prediction_grad(*tensors)


@every_way
@pytest.mark.parametrize(
    "case", BAD, ids=lambda case: "-".join(map(str, case[:-1])).replace(" ", "")
)
def test_bad_shapes(case, assert_refused, device):
    op, *shapes, text = case
    compute, tensors = functools.partial(_call, op), [tf.zeros(s) for s in shapes]
    assert_refused(compute, tensors, f"{op}: {text}")


@pytest.mark.parametrize(
    "shapes, text",
    [
        (([2, None], UNKNOWN), RANKS["input"] + "[2,?]"),
        (([None] * 3, [3, None, 5]), RANKS["weights"] + "[3,?,5]"),
        (
            ([None, 9, None], [3, None, None, None]),
            "weights dim 0 (in_caps) must be 9, got [3,?,?,?]",
        ),
        (
            ([None, None, 6], [None, None, None, 7]),
            "weights dim 3 (in_dim) must be 6, got [?,?,?,7]",
        ),
    ],
)
def test_partial_shapes_that_cannot_fit(shapes, text):
    with tf.Graph().as_default():
        tensors = [tf.compat.v1.placeholder(tf.float32, s) for s in shapes]
        with pytest.raises(ValueError) as caught:
            tf_capsops.capsule_prediction(*tensors)
    assert str(caught.value).startswith(f"{PREDICTION}: {text} for '{{{{node ")


@pytest.mark.parametrize(
    "op, shapes, inferred",
    [
        (PREDICTION, ([2, 3, 6], [3, 4, 5, 6]), ([2, 3, 4, 5],)),
        (PREDICTION, ([None, 3, 6], [3, 4, 5, 6]), ([None, 3, 4, 5],)),
        (PREDICTION, ([None] * 3, [3, 4, 5, 6]), ([None, 3, 4, 5],)),
        (PREDICTION, (UNKNOWN, [3, 4, 5, 6]), ([None, 3, 4, 5],)),
        (PREDICTION, ([2, 3, 6], [None] * 4), ([2, 3, None, None],)),
        (PREDICTION, ([2, 3, 6], UNKNOWN), ([2, 3, None, None],)),
        (PREDICTION, ([2, None, 6], [3, None, 5, None]), ([2, 3, None, 5],)),
        (PREDICTION, ([2, 3, None], [None, 4, None, 6]), ([2, 3, 4, None],)),
        (PREDICTION, ([None] * 3, [None] * 4), ([None] * 4,)),
        (PREDICTION, (UNKNOWN, UNKNOWN), ([None] * 4,)),
        (PREDICTION, ([0, 3, 0], UNKNOWN), ([0, 3, None, None],)),
        (
            GRADIENT,
            ([2, 3, 4, 5], [2, 3, 6], [3, 4, 5, 6]),
            ([2, 3, 6], [3, 4, 5, 6]),
        ),
        (
            GRADIENT,
            ([2, 3, 4, 5], UNKNOWN, UNKNOWN),
            ([2, 3, None], [3, 4, 5, None]),
        ),
        (
            GRADIENT,
            (UNKNOWN, [2, 3, 6], UNKNOWN),
            ([2, 3, 6], [3, None, None, 6]),
        ),
        (
            GRADIENT,
            (UNKNOWN, UNKNOWN, [3, 4, 5, 6]),
            ([None, 3, 6], [3, 4, 5, 6]),
        ),
        (
            GRADIENT,
            ([None, None, 4, None], [2, None, None], [3, None, 5, 6]),
            ([2, 3, 6], [3, 4, 5, 6]),
        ),
        (
            GRADIENT,
            ([2, 3, None, 5], [None, None, 6], [None, 4, None, None]),
            ([2, 3, 6], [3, 4, 5, 6]),
        ),
        (GRADIENT, (UNKNOWN,) * 3, ([None] * 3, [None] * 4)),
    ],
)
def test_inferred_shapes(op, shapes, inferred):
    with tf.Graph().as_default():
        outputs = _call(op, *(tf.compat.v1.placeholder(tf.float32, s) for s in shapes))
    outputs = [outputs] if op == PREDICTION else outputs
    assert [output.shape.as_list() for output in outputs] == list(inferred)


def test_gradients_have_their_inputs_static_shapes():
    """Through the registered gradient, however little of the shapes is known."""
    with tf.Graph().as_default():
        inputs = tf.compat.v1.placeholder(tf.float32, [None, 3, None])
        weights = tf.compat.v1.placeholder(tf.float32, [None, 4, 5, 6])
        output = tf_capsops.capsule_prediction(inputs, weights)
        gradients = tf.gradients(output, [inputs, weights])
    shapes = [gradient.shape.as_list() for gradient in gradients]
    assert shapes == [[None, 3, 6], [3, 4, 5, 6]]
