# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleConvRouting's raw ops: windows of every kind, in one slab and in many."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
from frames import call
from reference import capsule_conv_routing as reference
from registrations import bare

from tf_capsops import kernels

_ONE_SLAB = [
    # image, kernel, strides, dilations
    ((4,), (3,), (2,), (1,)),
    ((9,), (3,), (1,), (2,)),
    ((4, 5), (3, 2), (2, 1), (1, 1)),
    ((6, 5), (2, 2), (1, 1), (2, 3)),
    ((4, 5, 3), (3, 2, 2), (2, 1, 2), (1, 1, 1)),
    ((5, 4, 5), (2, 1, 3), (1, 3, 1), (3, 1, 2)),
    ((3, 2, 4), (1, 2, 1), (3, 1, 2), (1, 1, 1)),
    ((3, 4), (1, 2), (5, 4), (1, 1)),
]
_EACH_KIND = [*itertools.product((False, True), ("VALID", "SAME"))]


def _draw(image, kernel, sizes, per_type, batch=2):
    types, in_dim, parents, out_dim = sizes
    matrices = (types,) * per_type + (in_dim, parents, out_dim)
    rng = np.random.default_rng(0)
    return [
        rng.uniform(-1, 1, shape)
        for shape in (
            (batch, *image, types, in_dim),
            (*kernel, *matrices),
            (parents, out_dim),
            (types, parents),
        )
    ]


def _results(grad, *inputs, **attributes):
    output = bare().capsule_conv_routing(*inputs, **attributes)
    return [output, *bare().capsule_conv_routing_grad(grad, *inputs, **attributes)]


def _assert_like_reference(inputs, **attributes):
    """Returns the kernels that ran."""
    truth = reference.forward(*inputs, **attributes)
    grad = np.random.default_rng(1).uniform(-1, 1, truth.shape)
    truths = truth, *reference.backward(grad, *inputs, **attributes)
    with kernels.recorded() as calls:
        results = call(_results, *map(tf.constant, (grad, *inputs)), **attributes)
    for result, expected in zip(results, truths, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)
    return calls


@pytest.mark.parametrize("transposed, padding", _EACH_KIND)
@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("per_type", [False, True])
@pytest.mark.parametrize("image, kernel, strides, dilations", _ONE_SLAB, ids=str)
def test_windows(
    image, kernel, strides, dilations, per_type, leaky, transposed, padding, device
):
    dilations = (1,) * len(image) if transposed else dilations
    _assert_like_reference(
        _draw(image, kernel, (2, 3, 3, 4), per_type),
        iterations=3,
        strides=strides,
        dilations=dilations,
        padding=padding,
        transposed=transposed,
        leaky=leaky,
    )


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("iterations", [1, 2, 5])
@pytest.mark.parametrize(
    "sizes",
    [(1, 1, 1, 1), (3, 4, 1, 8), (7, 5, 13, 17), (33, 2, 5, 3), (2, 8, 3, 130)],
    ids=str,
)
def test_sizes(sizes, iterations, transposed, device):
    _assert_like_reference(
        _draw((3, 5), (2, 3), sizes, per_type=False, batch=3),
        iterations=iterations,
        epsilon=reference.EPSILON,
        strides=(1, 1),
        dilations=(1, 1),
        padding="SAME",
        transposed=transposed,
    )


@pytest.mark.parametrize("transposed, padding", _EACH_KIND)
@pytest.mark.parametrize(
    "sizes, batch",
    [
        ((0, 3, 3, 4), 2),
        ((2, 0, 3, 4), 2),
        ((2, 3, 0, 4), 2),
        ((2, 3, 3, 0), 2),
        ((2, 3, 3, 4), 0),
    ],
)
@pytest.mark.parametrize("image", [(4,), (3, 4, 5), (3, 0)], ids=str)
def test_empty_sizes(image, sizes, batch, transposed, padding, device):
    """Without votes the parents are those of the bias alone."""
    axes = len(image)
    _assert_like_reference(
        _draw(image, (2,) * axes, sizes, per_type=True, batch=batch),
        iterations=2,
        strides=(1,) * axes,
        dilations=(1,) * axes,
        padding=padding,
        transposed=transposed,
    )


# Votes of a row: 2.5 MB, more than a slab of a CPU, or 20 MB, more than one of a GPU.
_BANDS = [
    ((9, 40), (3, 2), (1, 1), (6, 4, 40, 33)),
    ((9, 40), (3, 2), (2, 2), (6, 3, 40, 33)),
    ((7, 40), (2, 1), (3, 1), (6, 4, 40, 33)),
    ((3, 5, 20), (2, 3, 2), (1, 1, 1), (6, 3, 40, 33)),
    ((3, 5, 20), (3, 2, 1), (2, 2, 1), (6, 4, 40, 33)),
    ((4, 40), (3, 1), (1, 1), (16, 1, 64, 64)),
    ((3, 4, 20), (2, 2, 1), (2, 1, 1), (16, 1, 64, 64)),
]


@pytest.mark.parametrize("transposed, padding", _EACH_KIND)
@pytest.mark.parametrize("image, kernel, strides, sizes", _BANDS, ids=str)
def test_bands_of_rows(image, kernel, strides, sizes, transposed, padding, device):
    calls = _assert_like_reference(
        _draw(image, kernel, sizes, per_type=transposed, batch=1),
        iterations=2,
        strides=strides,
        dilations=(1,) * len(image),
        padding=padding,
        transposed=transposed,
    )
    assert all(workspace < 64 << 20 for _, _, workspace in calls)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_votes_are_rounded_but_routed_in_float32(dtype, device):
    """One type, one parent and a bias of zero leave squash of a vote."""
    inputs = tf.constant(np.linspace(-1, 1, 12).reshape(1, 12, 1, 1), dtype)
    weights = tf.ones([1, 1, 1, 1], dtype)
    zeros = tf.zeros([1, 1], dtype)
    attributes = {"strides": [1], "dilations": [1], "padding": "VALID"}
    output = call(
        functools.partial(bare().capsule_conv_routing, iterations=1, **attributes),
        *(inputs, weights, zeros, zeros),
    )
    exact = reference.squash.forward(inputs.numpy().astype(np.float64))
    np.testing.assert_array_equal(output, exact.astype(dtype.as_numpy_dtype))
