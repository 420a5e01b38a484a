# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleMoments: shares, poses without numbers, and no second derivative."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from descriptions import every_dtype, exact
from descriptions.capsule_moments import (
    IMAGE,
    OP,
    PAIRS,
    PARENTS,
    SHAPES,
    arguments,
    draw,
    moments_and_gradients,
)
from frames import call
from reference import capsule_moments as reference
from tolerances import assert_close

import tf_capsops
from tf_capsops.arguments import window_attributes
from tf_capsops.ops import capsule_moments


@every_dtype
@pytest.mark.parametrize(
    "name",
    ["primes_parents", "primes_all", "strides_all", "dilations_none", "gaps_all"],
)
def test_shares(name, dtype, device):
    case = OP.case(name)
    _, poses, weights, *others = OP.draw(case, dtype)
    attributes = dict(case.attributes)
    given = attributes.pop("given")
    attributes.pop("order")
    wide = tf.float64 if dtype == tf.float64 else tf.float32
    named = dict(zip(given, others, strict=True))
    statistics = {n: tf.cast(t, wide) for n, t in named.items() if n != "activations"}
    operands = poses, named.get("activations"), weights
    look = functools.partial(tf_capsops.moment_shares, **attributes)
    ours = call(lambda *t: look(*t, **statistics), *operands)
    normalize = attributes.pop("normalize")
    window = window_attributes("test", **attributes)
    wider = [tf.cast(each, wide) for each in operands]
    plain = capsule_moments.plain_shares(
        *wider, **statistics, normalize=normalize, **window
    )
    named, attributes = arguments(given, exact(others), case.attributes)
    for unused in ("given", "order"):
        attributes.pop(unused)
    truth = reference.shares(*exact([poses, weights]), **named, **attributes)
    assert ours.dtype == wide
    assert_close(ours.numpy(), truth, plain.numpy(), 1 + np.abs(truth))


@pytest.mark.parametrize("normalize", capsule_moments.NORMALIZATIONS)
@pytest.mark.parametrize("axis", ["rows", "inner", "columns"])
def test_poses_without_numbers(axis, normalize, device):
    """Votes are zero or empty; mass and its gradients are what they are."""
    size = {"rows": 4, "inner": 5, "columns": 2, axis: 0}
    votes = (*PARENTS, size["rows"], size["columns"])
    shapes = SHAPES | {
        "poses": (*IMAGE, size["rows"], size["inner"]),
        "weights": (*PAIRS, size["inner"], size["columns"]),
        **dict.fromkeys(("linear", "precision", "center"), votes),
    }
    named = draw(tf.float64, shapes)
    ours = moments_and_gradients(named, normalize=normalize)
    with tf_capsops.portable():
        plain = moments_and_gradients(named, normalize=normalize)
    for one, other, like in zip(ours, plain, [None] * 3 + [*named.values()]):
        other = tf.zeros_like(like) if other is None else other
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["activations", "bias", "prior"])
def test_an_empty_vector_is_not_none(name):
    """The raw op takes one for what is absent."""
    given = {"activations": None, name: tf.zeros([0])}
    for function in (tf_capsops.capsule_moments, tf_capsops.moment_shares):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=f"{name} must have rank 4"
        ):
            function(
                tf.ones([1, 3, 3, 2, 4, 4]),
                weights=tf.ones([2, 2, 2, 5, 4, 4]),
                **given,
            )


def test_shares_take_the_arguments_of_moments():
    children = tf.ones([1, 3, 3, 2, 4, 4]), None, tf.ones([2, 2, 2, 5, 4, 4])
    shares = tf_capsops.moment_shares(*children, order=2)
    np.testing.assert_array_equal(shares, tf_capsops.moment_shares(*children))
    with pytest.raises(ValueError, match="moment_shares: order must be"):
        tf_capsops.moment_shares(*children, order=3)
