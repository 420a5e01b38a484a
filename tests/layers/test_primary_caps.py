# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""PrimaryCaps: values, shapes, saving, mixed precision and errors."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tolerances
from keras.src import testing
from parameterized import parameterized
from reference import squash

from tf_capsops.layers import PrimaryCaps


class PrimaryCapsTest(testing.TestCase):
    @parameterized.expand(
        [
            ("valid", 3, 1, "valid", (2, 75, 4)),
            ("same_strided", (3, 2), (2, 3), "same", (2, 36, 4)),
            ("strided", 3, 2, "valid", (2, 27, 4)),
        ]
    )
    def test_layer(self, _, kernel_size, strides, padding, expected):
        self.run_layer_test(
            PrimaryCaps,
            {
                "channels": 3,
                "capsule_dim": 4,
                "kernel_size": kernel_size,
                "strides": strides,
                "padding": padding,
                "kernel_initializer": "he_normal",
                "kernel_regularizer": "l2",
                "bias_constraint": "non_neg",
            },
            input_shape=(2, 7, 7, 2),
            expected_output_shape=expected,
            expected_num_trainable_weights=2,
            expected_num_losses=1,
        )


def test_is_a_convolution_read_as_squashed_capsules(device):
    images = tf.random.stateless_normal([2, 6, 6, 3], [1, 2])
    layer = PrimaryCaps(4, 5, 3, strides=2)
    result = layer(images)
    features = tf.nn.conv2d(images, layer.conv.kernel, 2, "VALID") + layer.conv.bias
    features = np.asarray(features).reshape(2, 2 * 2 * 4, 5)
    squared = tf.reduce_sum(features**2, -1, keepdims=True)
    plain = features * squared / (1 + squared) / tf.sqrt(squared + 1e-7)
    tolerances.assert_close(result, squash.forward(features), plain)


def test_unknown_batch_and_compilation(device):
    inputs = keras.Input([6, 6, 1])
    outputs = PrimaryCaps(2, 4, 3)(inputs)
    assert outputs.shape == (None, 32, 4)
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse", jit_compile=True)
    assert model.jit_compile
    assert model.predict(np.ones([5, 6, 6, 1]), verbose=0).shape == (5, 32, 4)


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"channels": 0}, "channels must be an integer >= 1, got 0"),
        ({"capsule_dim": 2.5}, "capsule_dim must be an integer >= 1, got 2.5"),
        ({"kernel_size": (3, 3, 3)}, "kernel_size must be one or two integers, got"),
        ({"strides": -1}, "strides must be an integer >= 1, got -1"),
        ({"padding": "full"}, "padding must be 'valid' or 'same', got 'full'"),
    ],
)
def test_bad_arguments_are_named(changes, text):
    with pytest.raises(ValueError, match=text):
        PrimaryCaps(**{"channels": 2, "capsule_dim": 4, "kernel_size": 3, **changes})


@pytest.mark.parametrize(
    "shape, text",
    [
        ((None, 8, 8), r"must be \[batch, height, width, channels\], got shape"),
        ((None, None, 8, 1), "only the batch size"),
        ((None, 8, 2, 1), r"width is smaller than kernel_size \(3, 3\)"),
    ],
)
def test_bad_shapes_are_named(shape, text):
    with pytest.raises(ValueError, match=text):
        PrimaryCaps(2, 4, 3).build(shape)
