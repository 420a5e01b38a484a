# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layers that route by a rule, with inputs, for tests."""

import keras
import numpy as np
import pytest

from tf_capsops.layers import ClassCaps, ConvCaps2D, DenseCaps

_IMAGE = (3, 6, 5, 2)
_SMALL = {"pose_shape": (2, 3)}

# A layer, and the shapes of poses, activations, parents' poses and their activations.
LAYERS = {
    "conv": (
        lambda **options: ConvCaps2D(4, (3, 2), (2, 1), **_SMALL, **options),
        [(*_IMAGE, 2, 4), _IMAGE, (3, 2, 4, 4, 2, 3), (3, 2, 4, 4)],
    ),
    "conv_same": (
        lambda **options: ConvCaps2D(
            *(3, 2), padding="same", dilation_rate=2, **_SMALL, **options
        ),
        [(*_IMAGE, 2, 4), _IMAGE, (3, 6, 5, 3, 2, 3), (3, 6, 5, 3)],
    ),
    "class": (
        lambda **options: ClassCaps(5, **_SMALL, **options),
        [(*_IMAGE, 2, 4), _IMAGE, (3, 5, 2, 3), (3, 5)],
    ),
    "class_without_coordinates": (
        lambda **options: ClassCaps(5, coordinates=False, pose_shape=(1, 3), **options),
        [(*_IMAGE, 1, 4), _IMAGE, (3, 5, 1, 3), (3, 5)],
    ),
    "dense": (
        lambda **options: DenseCaps(4, **_SMALL, **options),
        [(3, 6, 2, 4), (3, 6), (3, 4, 2, 3), (3, 4)],
    ),
}
every_layer = pytest.mark.parametrize("name", LAYERS)


def drawn(name, **options):
    """Returns a layer, its inputs and the shapes of its outputs."""
    make, (poses, activations, *outputs) = LAYERS[name]
    keras.utils.set_random_seed(4)
    random = np.random.default_rng(5)
    inputs = random.normal(size=poses), random.uniform(size=activations)
    return make(**options), [each.astype(np.float32) for each in inputs], outputs


def assert_equal(results, expected, tolerance=0.0):
    for result, truth in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, truth, rtol=0, atol=tolerance)
