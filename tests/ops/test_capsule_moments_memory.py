# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleMoments never stores votes: the bound on memory, measured."""

import footprint
import pytest
import tensorflow as tf

import tf_capsops

_ALLOWED = 64e6  # bytes beside inputs, results and gradients


def training(normalize, batch, size):
    """One pass and its gradients."""
    out = (size - 3) // 2 + 1
    parents = [batch, out, out, 32]
    shapes = [batch, size, size, 32, 4, 4], [3, 3, 32, 32, 4, 4], [*parents, 4, 4]
    sources = poses, weights, precision = [tf.ones(shape) for shape in shapes]

    def train():
        with tf.GradientTape() as tape:
            tape.watch(sources)
            moments = tf_capsops.capsule_moments(
                *(poses, None, weights),
                **{"precision": precision, "order": 2},
                **{"strides": 2, "normalize": normalize},
            )
            loss = sum(tf.reduce_sum(each) for each in moments)
        return *moments, *tape.gradient(loss, sources)

    return train


@pytest.mark.parametrize("normalize", ["parents", "all", "none"])
def test_votes_are_never_stored(normalize, device):
    """They would take 680 MB."""
    sizes = (normalize, 1, 3), (normalize, 32, 14)
    peak, results = footprint.use(training, device, *sizes)
    assert results <= peak <= results + _ALLOWED
