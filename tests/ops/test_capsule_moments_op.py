# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleMoments' ops: inputs and attributes refused, in words."""

import functools

import pytest
import tensorflow as tf
from descriptions.capsule_moments import IMAGE, PARENTS, SHAPES, draw
from refusals import at_once_or_by_shape, every_way
from registrations import bare, refusal


def _bad():
    parents = "[batch, out_height, out_width, out_channels"
    yield (
        "poses",
        (2, 5, 6),
        (
            "poses must have rank 6 [batch, in_height, in_width, in_channels, "
            "pose_rows, pose_inner], got [2,5,6]"
        ),
    )
    yield (
        "weights",
        (2, 3, 4, 7, 5, 2),
        ("weights dim 2 (in_channels) must be 3, got [2,3,4,7,5,2]"),
    )
    yield (
        "weights",
        (2, 3, 3, 7, 4, 2),
        ("weights dim 4 (pose_inner) must be 5, got [2,3,3,7,4,2]"),
    )
    yield (
        "weights",
        (6, 3, 3, 7, 5, 2),
        (
            "weights dim 0 (kernel_height) must be at most 5 (in_height 5, dilation 1, "
            "padding VALID), got [6,3,3,7,5,2]"
        ),
    )
    yield (
        "activations",
        (2, 5, 6, 1),
        ("activations dim 3 (in_channels) must be 3, got [2,5,6,1]"),
    )
    yield (
        "activations",
        (1,),
        (
            "activations must have rank 4 [batch, in_height, in_width, in_channels], "
            "got [1]"
        ),
    )
    yield "bias", (2, 4, 4, 1), "bias dim 3 (out_channels) must be 7, got [2,4,4,1]"
    yield "bias", (2, 5, 4, 7), "bias dim 1 (out_height) must be 4, got [2,5,4,7]"
    for name in ("linear", "precision", "center"):
        yield (
            name,
            PARENTS,
            (
                f"{name} must have rank 6 {parents}, pose_rows, pose_columns], "
                "got [2,4,4,7]"
            ),
        )
        yield (
            name,
            (2, 4, 4, 7, 4, 3),
            (f"{name} dim 5 (pose_columns) must be 2, got [2,4,4,7,4,3]"),
        )
    yield "prior", (2, 3, 1, 7), "prior dim 2 (in_channels) must be 3, got [2,3,1,7]"


@every_way
@pytest.mark.parametrize("op", ["CapsuleMoments", "CapsuleMomentShares"])
@pytest.mark.parametrize("name, shape, text", _bad())
def test_shapes_that_do_not_fit(name, shape, text, op, assert_refused, device):
    named = {n: tf.zeros(s) for n, s in (SHAPES | {name: shape}).items()}
    compute = {
        "CapsuleMoments": bare().capsule_moments,
        "CapsuleMomentShares": bare().capsule_moment_shares,
    }[op]
    assert_refused(compute, list(named.values()), f"{op}: {text}")


def _bad_gradients():
    votes = (*PARENTS, 4, 2)
    good = {"grad_mass": PARENTS, "grad_first": votes, "grad_second": (0,)}
    good |= SHAPES | {"mass": PARENTS, "first": votes}
    rank = "[batch, out_height, out_width, out_channels]"
    yield good | {"grad_mass": (2,)}, f"grad_mass must have rank 4 {rank}, got [2]"
    yield (
        good | {"mass": (2, 4, 4, 1)},
        ("mass dim 3 (out_channels) must be 7, got [2,4,4,1]"),
    )
    yield (
        good | {"grad_second": votes},
        ("grad_second must have the shape [0] where order is 1, got [2,4,4,7,4,2]"),
    )
    yield (
        good | {"grad_first": (*PARENTS, 4, 1)},
        ("grad_first dim 5 (pose_columns) must be 2, got [2,4,4,7,4,1]"),
    )
    yield (
        good | {"first": (0,)},
        (
            "first must have rank 6 [batch, out_height, out_width, out_channels, "
            "pose_rows, pose_columns], got [0]"
        ),
    )
    yield (
        good | {"poses": (*IMAGE, 4, 6)},
        ("weights dim 4 (pose_inner) must be 6, got [2,3,3,7,5,2]"),
    )


@every_way
@pytest.mark.parametrize("shapes, text", _bad_gradients())
def test_gradients_that_do_not_fit(shapes, text, assert_refused, device):
    tensors = [tf.zeros(shape) for shape in shapes.values()]
    compute = functools.partial(bare().capsule_moments_grad, order=1)
    assert_refused(compute, tensors, f"CapsuleMomentsGrad: {text}")


@at_once_or_by_shape
def test_orders_that_are_none(assert_refused, device):
    tensors = [tf.zeros(shape) for shape in SHAPES.values()]
    compute = functools.partial(bare().capsule_moments, order=3)
    text = "CapsuleMoments: order must be 0, 1 or 2, got 3"
    assert_refused(compute, tensors, text)


def test_statistics_are_wide():
    """The error names the attribute that is their type."""
    named = draw(tf.float64)
    narrow = ("poses", "activations", "weights")
    named |= {n: tf.cast(named[n], tf.float16) for n in narrow}
    text = refusal(lambda: bare().capsule_moments(**named), tf.function)
    assert "S (the type of sums) must be float where T is half, got double" in text
