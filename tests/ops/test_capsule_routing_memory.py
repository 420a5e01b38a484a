# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleRouting never stores its predictions: the bound on memory, measured."""

import footprint
import pytest
import tensorflow as tf
from registrations import bare

import tf_capsops

# Bytes beside inputs, output and gradients, by order of the derivatives. Inputs in
# blocks are copies.
_ALLOWED = {1: 64e6, 2: 256e6}
# Predictions of 604 MB: samples and input capsules, by order.
_SIZES = {1: (64, 4608), 2: (256, 1152)}


def training(op, dtype, order, batch, in_caps):
    route = {"public": tf_capsops, "bare": bare()}[op].capsule_routing
    weights = [in_caps, 32, 16, 8]
    shapes = [batch, in_caps, 8], weights, weights[:2]
    # Filled in place: what a computation gave back, this process might still hold.
    grad = tf.ones([batch, 32, 16], dtype)
    inputs = [tf.ones(shape, dtype) for shape in shapes]

    def train():
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(inputs)
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                output = route(*inputs)
            results = output, *tape.gradient(output, inputs, grad)
        del tape
        return results if order == 1 else outer.gradient(results[1:], inputs, inputs)

    return train


@pytest.mark.parametrize(
    "op, dtype, order",
    [
        ("public", "float32", 1),
        ("bare", "bfloat16", 1),
        pytest.param("public", "float32", 2, marks=pytest.mark.slow),
    ],
)
def test_predictions_are_never_stored(op, dtype, order, device):
    given = op, dtype, order
    sizes = (*given, 2, 3), (*given, *_SIZES[order])
    peak, results = footprint.use(training, device, *sizes)
    assert results <= peak <= results + _ALLOWED[order]
