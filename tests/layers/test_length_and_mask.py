# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Length and Mask."""

import finite_differences
import keras
import layer_testing
import numpy as np
import pytest
import tensorflow as tf
import tolerances

from tf_capsops.layers import Length, Mask
from tf_capsops.losses import MarginLoss


class LayersTest(layer_testing.TestCase):
    def test_length(self):
        self.run_layer_test(
            Length, {}, input_shape=(2, 3, 4), expected_output_shape=(2, 3)
        )

    def test_mask_by_the_longest(self):
        self.run_layer_test(
            Mask, {}, input_shape=(2, 3, 4), expected_output_shape=(2, 12)
        )

    def test_mask_by_label(self):
        self.run_layer_test(
            Mask,
            {},
            input_shape=[(2, 3, 4), (2, 3)],
            expected_output_shape=(2, 12),
        )


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_lengths(device, dtype):
    capsules = np.random.default_rng(1).normal(size=[3, 4, 5])
    capsules = tf.constant(capsules, dtype)
    truth = np.linalg.norm(np.asarray(capsules).astype(np.float64), axis=-1)
    result = Length(dtype=dtype)(capsules)
    tolerances.assert_close(result, truth, tf.norm(capsules, axis=-1))


def test_length_gradient_and_zero(device):
    layer = Length(dtype="float64")
    finite_differences.assert_gradients_agree(
        layer, [np.random.default_rng(2).normal(size=[2, 3, 4])]
    )
    zeros = tf.zeros([2, 3])
    with tf.GradientTape() as tape:
        tape.watch(zeros)
        lengths = Length()(zeros)
    np.testing.assert_array_equal(lengths, [0, 0])
    np.testing.assert_array_equal(tape.gradient(lengths, zeros), np.zeros([2, 3]))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_length_of_nan_is_nan(device, dtype):
    capsules = tf.constant([[np.nan, 1.0], [0.0, 0.0], [3.0, 4.0]], dtype)
    with tf.GradientTape() as tape:
        tape.watch(capsules)
        lengths = Length(dtype=dtype)(capsules)
    gradient = np.asarray(tape.gradient(lengths, capsules)).astype(np.float64)
    lengths = np.asarray(lengths).astype(np.float64)
    np.testing.assert_array_equal(lengths, [np.nan, 0, 5])
    assert np.isnan(gradient[0]).all()
    assert np.isfinite(gradient[1:]).all()


def test_length_of_integers_is_refused():
    with pytest.raises(
        ValueError, match="Length: capsules must be floating-point, got"
    ):
        Length()(tf.constant([[3, 4]]))


def test_training_ends_where_capsules_are_nan():
    model = keras.Sequential([keras.Input([3, 2]), Length()])
    model.compile("sgd", MarginLoss())
    images, labels = np.full([4, 3, 2], np.nan), np.arange(4) % 3
    history = model.fit(
        images,
        labels,
        epochs=3,
        verbose=0,
        callbacks=[keras.callbacks.TerminateOnNaN()],
    )
    assert len(history.epoch) == 1


def test_mask_keeps_the_longest(device):
    capsules = np.array([[[1.0, 2], [-3, 0]], [[0, 1], [0, 0.5]]], np.float32)
    expected = [[0, 0, -3, 0], [0, 1, 0, 0]]
    np.testing.assert_array_equal(Mask()(capsules), expected)


def test_mask_finds_the_longest_where_half_precision_overflows(device):
    capsules = tf.constant([[[300.0, 0], [400, 0]]], tf.float16)
    result = Mask(dtype="float16")(capsules)
    np.testing.assert_array_equal(result, [[0, 0, 400, 0]])


def test_mask_keeps_the_label(device):
    capsules = np.array([[[1.0, 2], [-3, 0]]], np.float32)
    for one_hot in (np.array([[1, 0]]), np.array([[1.0, 0.0]], np.float32)):
        result = Mask()([capsules, one_hot])
        np.testing.assert_array_equal(result, [[1, 2, 0, 0]])


def test_unknown_batch():
    capsules, one_hot = keras.Input([3, 4]), keras.Input([3])
    assert Length()(capsules).shape == (None, 3)
    assert Mask()(capsules).shape == (None, 12)
    assert Mask()([capsules, one_hot]).shape == (None, 12)


@pytest.mark.parametrize(
    "shapes, text",
    [
        ([2, 3], r"must be \[batch, caps, dim\], got shape \(2, 3\)"),
        ([[2, 3, 4], [2, 4]], r"one_hot must be \[batch, 3\], got shape \(2, 4\)"),
        ([[2, 3, 4], [1, 3]], r"one_hot must be \[batch, 3\], got shape \(1, 3\)"),
        ([[2, 3, 4], [2, 3], [2, 3]], r"\[capsules, one_hot\], got 3 tensors"),
    ],
)
def test_bad_shapes_are_named(shapes, text):
    nested = isinstance(shapes[0], list)
    inputs = [tf.ones(s) for s in shapes] if nested else tf.ones(shapes)
    built = Mask()
    built(tf.ones([2, 3, 4]))
    for layer in (Mask(), built):
        with pytest.raises(ValueError, match=text):
            layer(inputs)


def test_labels_of_unknown_rank():
    layer = Mask()
    layer(tf.ones([2, 3, 4]))
    shapes = [tf.TensorSpec([None, 3, 4]), tf.TensorSpec(None)]
    call = tf.function(lambda *inputs: layer(inputs), input_signature=shapes)
    assert call(tf.ones([2, 3, 4]), tf.ones([2, 3])).shape == (2, 12)


def test_no_capsules():
    assert Mask()(tf.ones([2, 0, 4])).shape == (2, 0)
    with pytest.raises(ValueError, match="Length: vectors must have axis -1, got"):
        Length()(tf.constant(1.0))
