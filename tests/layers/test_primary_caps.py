# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""PrimaryCaps: values, shapes, saving, mixed precision and errors."""

import keras
import layer_testing
import numpy as np
import pytest
import tensorflow as tf
import tolerances
from parameterized import parameterized
from reference import squash

from tf_capsops.layers import PrimaryCaps


class PrimaryCapsTest(layer_testing.TestCase):
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


def _of_keras_default(data_format, make):
    """Calls a function while a data format is the default of Keras."""
    before = keras.config.image_data_format()
    keras.config.set_image_data_format(data_format)
    try:
        return make()
    finally:
        keras.config.set_image_data_format(before)


@pytest.mark.parametrize("by_default", [False, True])
def test_channels_first_makes_the_same_capsules(device, by_default):
    images = tf.random.stateless_normal([2, 9, 7, 3], [1, 2])
    last = PrimaryCaps(4, 5, (3, 2), strides=(1, 2))
    expected = last(images)
    if by_default:
        first = _of_keras_default(
            "channels_first", lambda: PrimaryCaps(4, 5, (3, 2), strides=(1, 2))
        )
    else:
        first = PrimaryCaps(4, 5, (3, 2), strides=(1, 2), data_format="channels_first")
    moved = tf.transpose(images, [0, 3, 1, 2])
    assert first.compute_output_shape(moved.shape) == expected.shape
    first.build(moved.shape)
    first.set_weights(last.get_weights())
    np.testing.assert_array_equal(first(moved), expected)


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_positions_that_are_not_flattened(data_format, device):
    images = tf.random.stateless_normal([2, 9, 7, 3], [1, 2])
    arguments = {"strides": (1, 2), "data_format": data_format}
    flat = PrimaryCaps(4, 5, (3, 2), **arguments)
    grid = PrimaryCaps(4, 5, (3, 2), **arguments, flatten=False)
    if data_format == "channels_first":
        images = tf.transpose(images, [0, 3, 1, 2])
    expected = flat(images)
    any_size = [None if size > 3 else size for size in images.shape[1:]]
    inputs = keras.Input(any_size)
    model = keras.Model(inputs, grid(inputs))
    assert model.output_shape == (None, None, None, 4, 5)
    grid.set_weights(flat.get_weights())
    assert grid.compute_output_shape(images.shape) == (2, 7, 3, 4, 5)
    found = model(images)
    assert found.shape == (2, 7, 3, 4, 5)
    np.testing.assert_array_equal(tf.reshape(found, expected.shape), expected)
    assert model.predict(images[:, :, :6], verbose=0).ndim == 5
    assert not PrimaryCaps.from_config(grid.get_config()).flatten
    config = flat.get_config()
    del config["flatten"]  # as in files of earlier releases
    assert PrimaryCaps.from_config(config).flatten


def test_data_format_is_saved_and_was_channels_last_before():
    config = PrimaryCaps(4, 5, 3, data_format="channels_first").get_config()
    assert PrimaryCaps.from_config(config).data_format == "channels_first"
    del config["data_format"]
    revived = _of_keras_default(
        "channels_first", lambda: PrimaryCaps.from_config(config)
    )
    assert revived.data_format == "channels_last"


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
        *layer_testing.BAD_WINDOWS[:3],
        ({"data_format": "NHWC"}, "data_format must be 'channels_last' or .* 'NHWC'"),
    ],
)
def test_bad_arguments_are_named(changes, text):
    with pytest.raises(ValueError, match=text):
        PrimaryCaps(**{"channels": 2, "capsule_dim": 4, "kernel_size": 3, **changes})


@pytest.mark.parametrize(
    "data_format, shape, text",
    [
        (
            "channels_last",
            (None, 8, 8),
            r"must be \[batch, height, width, channels\], got shape",
        ),
        ("channels_last", (None, None, 8, 1), "only the batch size"),
        (
            "channels_last",
            (None, 8, 2, 1),
            r"width is smaller than kernel_size \(3, 3\)",
        ),
        ("channels_first", (8, 8), r"must be \[batch, channels, height, width\], got"),
        (
            "channels_first",
            (2, 1, 8, 2),
            r"width is smaller than kernel_size \(3, 3\), got shape \(2, 1, 8, 2\)",
        ),
    ],
)
def test_bad_shapes_are_named(data_format, shape, text):
    with pytest.raises(ValueError, match=text):
        PrimaryCaps(2, 4, 3, data_format=data_format).build(shape)


def test_channels_must_be_known():
    layer = PrimaryCaps(2, 4, 3, flatten=False)
    with pytest.raises(ValueError, match=r"channels\] with known channels, got shape"):
        layer.build((None, None, 8, None))
