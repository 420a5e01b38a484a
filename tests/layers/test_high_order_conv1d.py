# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""HighOrderConv1D against loops, and as a Keras layer."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tolerances

from tf_capsops.layers import HighOrderConv1D, HighOrderConv2D


def _layer(steps=9, channels=6, **arguments):
    """Returns a layer with random weights, and a batch of two sequences."""
    rng = np.random.default_rng(3)
    layer = HighOrderConv1D(dtype="float64", **arguments)
    sequences = rng.normal(size=(2, steps, channels))
    layer.build(sequences.shape)
    layer.set_weights([rng.normal(size=weight.shape) for weight in layer.weights])
    return layer, sequences


def _by_loops(layer, sequences, last_tap):
    """Filters each step by itself; `last_tap` is how far it is from that step."""
    taps, groups = layer.kernel_size[1], layer.groups
    numbers = sequences @ layer.kernel.numpy()[0, 0]
    if layer.use_bias:
        numbers += layer.bias.numpy()
    filters = np.exp(numbers.reshape(*sequences.shape[:2], groups, taps))
    filters /= filters.sum(axis=-1, keepdims=True)
    size = sequences.shape[2] // groups
    expected = np.zeros_like(sequences)
    for step in range(sequences.shape[1]):
        for tap in range(taps):
            read = step + last_tap - (taps - 1 - tap) * layer.dilation_rate[1]
            if 0 <= read < sequences.shape[1]:
                weights = np.repeat(filters[:, step, :, tap], size, axis=-1)
                expected[:, step] += weights * sequences[:, read]
    return expected


@pytest.mark.parametrize("padding", ["causal", "same"])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"kernel_size": 5, "groups": 3, "use_bias": True},
        {"kernel_size": 3, "groups": 2, "dilation_rate": 4},
        {"kernel_size": 21},
        {"kernel_size": 3, "groups": 6},
    ],
    ids=str,
)
def test_filters_every_step(device, arguments, padding):
    layer, sequences = _layer(padding=padding, **arguments)
    reach = (layer.kernel_size[1] - 1) * layer.dilation_rate[1]
    expected = _by_loops(layer, sequences, 0 if padding == "causal" else reach // 2)
    allowed = 32 * tolerances.ulp(np.float64) * np.abs(expected).max()
    np.testing.assert_allclose(layer(sequences), expected, rtol=0, atol=allowed)


def test_nothing_depends_on_later_steps(device):
    layer, sequences = _layer(kernel_size=5, groups=2)
    changed = sequences.copy()
    changed[:, 6:] += 1
    before, after = layer(sequences).numpy(), layer(changed).numpy()
    np.testing.assert_array_equal(before[:, :6], after[:, :6])
    assert np.all(before[:, 6] != after[:, 6])


def test_same_is_that_of_images_of_one_row(device):
    layer, sequences = _layer(kernel_size=3, padding="same")
    images = HighOrderConv2D(
        (1, 3), filter_activation="softmax", generator_kernel_size=1, use_bias=False
    )
    images.build((2, 1, 9, 6))
    images.set_weights(layer.get_weights())
    expected = images(sequences[:, np.newaxis].astype(np.float32))[:, 0]
    np.testing.assert_allclose(layer(sequences), expected, atol=1e-5)


def test_masked_steps_count_as_zeros(device):
    layer, sequences = _layer(kernel_size=3, padding="same")
    mask = np.arange(9) < [[5], [9]]
    expected = layer(sequences * mask[..., np.newaxis])
    np.testing.assert_array_equal(layer(sequences, mask=mask), expected)
    words = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(5, 6, mask_zero=True)(words)
    outputs = HighOrderConv1D(3)(embedded)
    assert outputs._keras_mask is not None
    assert outputs.shape == (None, None, 6)


def test_saved_with_unknown_steps(tmp_path):
    sequences = keras.Input((None, 4))
    layer = HighOrderConv1D(5, 2, dilation_rate=2, filter_activation=None)
    model = keras.Model(sequences, layer(sequences))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.layers[-1].get_config() == layer.get_config()
    for steps in (0, 1, 7):
        inputs = np.random.default_rng(0).normal(size=(3, steps, 4)).astype(np.float32)
        output = loaded(inputs)
        assert output.shape == inputs.shape == layer.compute_output_shape(inputs.shape)
        np.testing.assert_array_equal(output, model(inputs))


def test_gradients_reach_input_kernel_and_bias(device):
    layer, sequences = _layer(use_bias=True)
    inputs = tf.constant(sequences)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        loss = tf.reduce_sum(layer(inputs) ** 2)
    gradients = tape.gradient(loss, [inputs, *layer.trainable_variables])
    assert [g.shape for g in gradients] == [(2, 9, 6), (1, 1, 6, 3), (3,)]
    assert all(np.abs(gradient).max() > 0 for gradient in gradients)


@pytest.mark.parametrize(
    "arguments, shape, text",
    [
        ({"kernel_size": 4}, None, r"kernel_size must be odd, got \(1, 4\)"),
        ({"kernel_size": (1, 3)}, None, "kernel_size must be an integer >= 1, got"),
        ({"padding": "valid"}, None, "padding must be 'causal' or 'same', got 'valid'"),
        ({"groups": 0}, None, "groups must be an integer >= 1, got 0"),
        ({"dilation_rate": 0}, None, "dilation_rate must be an integer >= 1, got 0"),
        ({"groups": 4}, (1, 2, 6), "groups must divide the channels of the input, "),
        ({}, (1, 2, 3, 4), r"the input must be \[batch, steps, channels\] with known"),
    ],
)
def test_bad_arguments_are_named(arguments, shape, text):
    with pytest.raises(ValueError, match=f"HighOrderConv1D: {text}"):
        HighOrderConv1D(**arguments)(np.zeros(shape or (1, 2, 3), np.float32))
