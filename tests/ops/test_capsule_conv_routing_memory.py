# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleConvRouting stores a part of its votes: the bound on memory, measured."""

import footprint
import pytest
import tensorflow as tf

import tf_capsops

_ALLOWED = 64 * 2**20  # bytes beside inputs, output and gradients

# Votes of 268 MB each: of images and volumes, also transposed, and of weights for each
# type.
_SIZES = {
    "image": ([2, 128, 128], [3, 3], {}),
    "volume": ([1, 32, 32, 32], [3, 3, 3], {}),
    "image_up": ([2, 64, 64], [4, 4], {"transposed": True, "strides": 2}),
    "volume_up": ([1, 16, 16, 16], [2, 2, 2], {"transposed": True, "strides": 2}),
    "types": ([2, 128, 128], [3, 3, 8], {}),
}


def training(images, kernel, attributes):
    shapes = [*images, 8, 4], [*kernel, 4, 8, 32], [8, 32], [8, 8]
    inputs = [tf.fill(shape, 0.01) for shape in shapes]

    def train():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = tf_capsops.capsule_conv_routing(
                *inputs, padding="SAME", iterations=2, **attributes
            )
        grad = tf.ones_like(output)
        return output, grad, *tape.gradient(output, inputs, grad)

    return train


@pytest.mark.parametrize("name", _SIZES)
def test_votes_are_not_stored(name, device):
    images, kernel, attributes = _SIZES[name]
    few = [1] + [2] * (len(images) - 1)
    peak, results = footprint.use(
        training, device, (few, kernel, attributes), _SIZES[name]
    )
    assert results <= peak <= results + _ALLOWED
