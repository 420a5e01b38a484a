# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""RoutedNormal: the spread it promises, and what it is for."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops.layers import RoutedNormal


@pytest.mark.parametrize("shape", [(1152, 10, 16, 8), (64, 10, 16, 8), (32, 5, 4, 3)])
def test_sums_start_as_long_as_promised(shape):
    in_caps, out_caps, _, in_dim = shape
    random = np.random.default_rng(1)
    capsules = random.normal(size=[200, in_caps, in_dim])
    capsules /= np.linalg.norm(capsules, axis=-1, keepdims=True)
    weights = RoutedNormal(gain=2.0, seed=3)(shape)
    sums = np.einsum("bik,ijdk->bjd", capsules, weights) / out_caps
    # Five standard errors of a mean of as many squares as there are weights.
    squares = np.square(sums).sum(-1).mean()
    assert abs(squares / 2.0**2 - 1) < 5 * np.sqrt(2 / np.prod(shape[1:]))


def test_config_and_seed():
    initializer = RoutedNormal(gain=0.5, seed=4)
    config = keras.initializers.serialize(initializer)
    again = keras.initializers.deserialize(config)
    np.testing.assert_array_equal(initializer([2, 3, 4, 5]), again([2, 3, 4, 5]))
    unseeded = RoutedNormal()
    assert unseeded.get_config()["seed"] is None
    assert np.any(unseeded([2, 3, 4, 5]) != unseeded([2, 3, 4, 5]))
    assert initializer([2, 3, 4, 5], dtype="bfloat16").dtype == tf.bfloat16


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="gain must be positive, got 0"):
        RoutedNormal(gain=0)
    with pytest.raises(ValueError, match=r"must be \[in_caps, .*\], got \(2, 3\)"):
        RoutedNormal()([2, 3])


def test_a_seed_from_numpy_is_kept():
    assert RoutedNormal(seed=np.int64(3)).get_config()["seed"] == 3
