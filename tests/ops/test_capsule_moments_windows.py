# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Moments of votes in windows over lines and volumes."""

import contextlib
import re

import finite_differences
import numpy as np
import pytest
import tensorflow as tf
from descriptions import every_dtype, exact
from frames import call
from reference import windows as reference

import tf_capsops

_MOMENTS = {
    # image, kernel, strides, padding, normalize
    "line_parents": ((7,), (3,), (2,), "SAME", "parents"),
    "line_all": ((6,), (3,), (1,), "VALID", "all"),
    "volume_parents": ((4, 3, 4), (3, 2, 2), (1, 1, 2), "SAME", "parents"),
    "volume_valid": ((5, 3, 3), (2, 2, 3), (2, 1, 1), "VALID", "parents"),
    "volume_all": ((4, 3, 3), (3, 2, 2), (1, 1, 2), "SAME", "all"),
    "volume_all_gaps": ((7, 2, 2), (2, 2, 1), (3, 1, 1), "VALID", "all"),
    "volume_all_strided": ((5, 2, 2), (4, 1, 2), (2, 1, 1), "SAME", "all"),
    "volume_none": ((3, 3, 2), (2, 3, 1), (2, 2, 1), "SAME", "none"),
}


def _moments_drawn(image, kernel, strides, padding, dtype):
    random = np.random.default_rng(4)
    axes = len(image)
    out, _ = reference.sizes(image, kernel, strides, padding, [1] * axes)
    wide = "float64" if dtype == tf.float64 else "float32"
    parents = (2, *out, 3)
    shapes = {"bias": parents, "prior": (*kernel, 2, 3)}
    shapes |= dict.fromkeys(("linear", "precision", "center"), (*parents, 2, 2))
    statistics = {
        name: tf.constant(random.uniform(0, 1, shape), wide)
        for name, shape in shapes.items()
    }
    poses = tf.constant(random.uniform(-1, 1, (2, *image, 2, 2, 3)), dtype)
    activations = tf.constant(random.uniform(0, 1, (2, *image, 2)), dtype)
    weights = tf.constant(random.uniform(-1, 1, (*kernel, 2, 3, 3, 2)), dtype)
    return (poses, activations, weights), statistics


@every_dtype
@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("name", _MOMENTS)
@pytest.mark.parametrize("activations", [False, True])
def test_moments(name, activations, portable, dtype, device):
    *window, normalize = _MOMENTS[name]
    children, statistics = _moments_drawn(*window, dtype)
    if not activations:
        children = children[0], tf.ones_like(children[1]), children[2]
    _, _, strides, padding = window
    given = {"strides": strides, "padding": padding, "normalize": normalize}
    named = dict(zip(statistics, exact(statistics.values()), strict=True))
    truth, of_shares = reference.moments(*exact(children), named, **given)

    def compute(*tensors):
        named = dict(zip(statistics, tensors[3:], strict=True))
        poses, active, weights = tensors[:3]
        operands = poses, active if activations else None, weights
        found = tf_capsops.capsule_moments(*operands, order=2, **named, **given)
        shares = tf_capsops.moment_shares(*operands, **named, **given)
        return [*found, shares]

    operands = *children, *statistics.values()
    if portable:
        with tf_capsops.portable():
            results = call(compute, *operands)
    else:
        results = call(compute, *operands)
    # Children are widened: float32 sums of a few dozen terms of about one.
    close = 1e-12 if dtype == tf.float64 else 3e-5
    for result, expected in zip(results, [*truth, of_shares], strict=True):
        assert result.dtype == next(iter(statistics.values())).dtype
        np.testing.assert_allclose(result, expected, rtol=close, atol=close)


@pytest.mark.parametrize("name", _MOMENTS)
@pytest.mark.parametrize("activations", [False, True])
def test_gradients_of_moments(name, activations, device):
    *window, normalize = _MOMENTS[name]
    (poses, active, weights), statistics = _moments_drawn(*window, tf.float64)
    _, _, strides, padding = window
    given = {"strides": strides, "padding": padding, "normalize": normalize}

    @tf.function(autograph=False)  # calls of the graph take less time
    def compute(poses, weights, *others):
        others = dict(zip(["activations", *statistics], others, strict=True))
        active = others.pop("activations")
        found = tf_capsops.capsule_moments(
            poses, active if activations else None, weights, order=2, **others, **given
        )
        return tf.concat([tf.reshape(each, [-1]) for each in found], 0)

    operands = poses, weights, active, *statistics.values()
    finite_differences.assert_gradients_agree(compute, operands)


def test_statistics_must_fit_the_windows(device):
    poses, weights = tf.ones([1, 5, 3, 3, 1, 2, 2]), tf.ones([2, 2, 2, 1, 4, 2, 2])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"dim 1 \(out_depth\) must be 4"
    ):
        tf_capsops.capsule_moments(poses, None, weights, bias=tf.ones([1, 3, 2, 2, 4]))


@pytest.mark.parametrize("normalize", ["parents", "all"])
@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize(
    "poses, weights, bias, text",
    [
        (
            (1, 5, 3, 3, 1, 2, 2),
            (2, 2, 2, 1, 4, 2, 2),
            (1, 3, 2, 2, 4),
            "bias dim 1 (out_depth) must be] [4] [got] [1 3 2 2 4]",
        ),
        (
            (1, 5, 3, 3, 1, 2, 2),
            (2, 2, 2, 1, 4, 2, 2),
            (2, 4, 2, 2, 4),
            "bias dim 0 (batch) must be] [1] [got] [2 4 2 2 4]",
        ),
        (
            (1, 5, 3, 2, 1, 2, 2),
            (2, 2, 3, 1, 4, 2, 2),
            (1, 4, 2, 1, 4),
            "weights dim 2 (kernel_width) must be at most in_width, got 3",
        ),
        (
            (1, 5, 2, 2, 2),
            (2, 2, 3, 2, 2),
            (1, 5, 3),
            "bias dim 1 (out_width) must be] [4] [got] [1 5 3]",
        ),
    ],
)
def test_statistics_must_fit_the_windows_at_run_time(
    poses, weights, bias, text, portable, normalize, device
):
    @tf.function(autograph=False)
    def compute(poses, bias):
        with tf_capsops.portable() if portable else contextlib.nullcontext():
            return tf_capsops.capsule_moments(
                poses, None, tf.ones(weights), bias=bias, normalize=normalize
            )

    unknown = [tf.TensorSpec([None] * len(shape)) for shape in (poses, bias)]
    traced = compute.get_concrete_function(*unknown)
    text = re.escape(f"capsule_moments: {text}")
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        traced(tf.ones(poses), tf.ones(bias))


@pytest.mark.ci
@pytest.mark.parametrize("name", _MOMENTS)
def test_moments_of_unknown_sizes(name, device):
    *window, normalize = _MOMENTS[name]
    (poses, active, weights), _ = _moments_drawn(*window, tf.float64)
    _, _, strides, padding = window
    given = {"strides": strides, "padding": padding, "normalize": normalize}
    expected = tf_capsops.capsule_moments(poses, active, weights, **given)
    axes = len(strides)
    unknown = [weights.shape[0], *[None] * (axes - 1), *weights.shape[axes:]]

    @tf.function(autograph=False)
    def compute(*children):
        poses, active, weights = (
            tf.raw_ops.PlaceholderWithDefault(input=each, shape=tf.TensorShape(shape))
            for each, shape in zip(children, (None, None, unknown), strict=True)
        )
        return tf_capsops.capsule_moments(poses, active, weights, **given)

    for own, other in zip(compute(poses, active, weights), expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=0, atol=1e-14)


def test_operands_that_are_missing(device):
    line = tf.ones([1, 5, 1, 2, 2])
    weights = tf.ones([3, 1, 4, 2, 2])
    for operands in ((None, None, weights), (line, None, None)):
        with pytest.raises(ValueError, match=r"capsule_moments: (poses|weights)"):
            tf_capsops.capsule_moments(*operands)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"rank 3 \[batch, in_width"
    ):
        tf_capsops.capsule_moments(line, tf.ones([0]), weights)


def test_strides_that_are_far_beyond_the_volume(device):
    """Only phases that taps have are computed."""
    poses, weights = tf.ones([1, 3, 2, 2, 1, 2, 2]), tf.ones([2, 2, 2, 1, 4, 2, 2])
    (mass,) = tf_capsops.capsule_moments(
        poses, None, weights, strides=2**31 - 1, normalize="all", order=0
    )
    np.testing.assert_allclose(mass, np.full([1, 1, 1, 1, 4], 2.0), rtol=1e-6)
