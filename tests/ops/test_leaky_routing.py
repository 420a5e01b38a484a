# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleRouting with one parent more, whose share is dropped."""

import contextlib
import functools

import numpy as np
import pytest
import tensorflow as tf
from descriptions import assert_all_close, every_dtype, exact
from descriptions.capsule_routing import OP
from frames import call
from reference import capsule_conv_routing as reference

import tf_capsops


def _as_pixel(inputs, weights, logits):
    """Returns operands of the reference, types of capsules at a line of one pixel."""
    bias = np.zeros(weights.shape[1:3])
    return inputs[:, None], weights.transpose(0, 3, 1, 2)[None], bias, logits


@every_dtype
@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("name", ["ones", "primes", "in_caps_37"])
def test_values_and_gradients(name, iterations, dtype, device):
    tensors = OP.draw(OP.case(name), dtype)
    routing = functools.partial(
        tf_capsops.capsule_routing, iterations=iterations, leaky=True
    )
    ours = call(OP.results, routing, *tensors)
    grad, *operands = exact(tensors)
    given = {"iterations": iterations, "strides": [1], "leaky": True}
    pixel = _as_pixel(*operands)
    truth = [
        reference.forward(*pixel, **given),
        *reference.backward(grad[:, None], *pixel, **given),
    ]
    magnitude = [
        np.ones_like(truth[0]),
        *reference.backward_magnitude(grad[:, None], *pixel, **given),
    ]

    def as_routing(results):
        outputs, inputs, weights, _, logits = results
        return [outputs[:, 0], inputs[:, 0], weights[0].transpose(0, 2, 3, 1), logits]

    def plain():
        with tf_capsops.portable():
            return OP.results(routing, *tensors)

    assert_all_close(ours, plain, as_routing(truth), as_routing(magnitude))
    if dtype == tf.float64:
        for result, expected in zip(plain(), as_routing(truth), strict=True):
            np.testing.assert_allclose(result, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("portable", [False, True])
def test_what_does_not_fit(portable, device):
    way = tf_capsops.portable() if portable else contextlib.nullcontext()
    error = pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"CapsuleRouting: weights dim 0 \(in_caps\) must be 3",
    )
    with way, error:
        tf_capsops.capsule_routing(
            tf.ones([1, 3, 2]), tf.ones([4, 5, 6, 2]), leaky=True
        )
