# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layers refuse inputs that are ragged, sparse or of integers, in plain words."""

import numpy as np
import pytest
import tensorflow as tf

from tf_capsops import layers
from tf_capsops.routing import Dynamic, SelfAttention

_TYPES = "one of the types float32, float64, float16, bfloat16"
# How to make each layer, what its call names the input, and a shape of the input.
_LAYERS = {
    "PrimaryCaps": (lambda: layers.PrimaryCaps(2, 4, 2), "images", (1, 4, 4, 2)),
    "DigitCaps": (lambda: layers.DigitCaps(4, 5), "capsules", (1, 2, 3)),
    "CapsuleConv2D": (
        lambda: layers.CapsuleConv2D(3, (4, 4), 2),
        "capsules",
        (1, 3, 3, 2, 4, 4),
    ),
    "SlimCaps2D": (lambda: layers.SlimCaps2D(3, 4, 2), "capsules", (1, 3, 3, 2, 4)),
    "HighOrderConv2D": (lambda: layers.HighOrderConv2D(3), "inputs", (1, 4, 4, 2)),
    "HighOrderConv1D": (lambda: layers.HighOrderConv1D(3), "inputs", (1, 4, 2)),
    "FakeQuant": (lambda: layers.FakeQuant(), "inputs", (1, 4)),
    "InqConv2D": (lambda: layers.InqConv2D(3, 2), "images", (1, 4, 4, 2)),
    "InqDense": (lambda: layers.InqDense(3), "inputs", (1, 4)),
    "InqDepthwiseConv2D": (
        lambda: layers.InqDepthwiseConv2D(2),
        "images",
        (1, 4, 4, 2),
    ),
}


@pytest.mark.parametrize("name", _LAYERS)
def test_ragged_sparse_and_integer_inputs_are_named(name):
    make, argument, shape = _LAYERS[name]
    layer = make()
    layer(tf.ones(shape))
    for wrong, text in (
        (tf.ones(shape, tf.int32), f"must have {_TYPES}, got int32"),
        (tf.ones(shape, tf.uint8), f"must have {_TYPES}, got uint8"),
        (
            tf.RaggedTensor.from_tensor(tf.ones(shape)),
            "must be a dense tensor, got a Rag",
        ),
        (tf.sparse.from_dense(tf.ones(shape)), "must be a dense tensor, got a Sparse"),
    ):
        with pytest.raises(ValueError, match=f"{name}: {argument} {text}"):
            layer(wrong)


def test_the_guide_is_named():
    images = tf.ones([1, 4, 4, 2])
    layer = layers.HighOrderConv2D(3)
    layer(images)
    for wrong, text in (
        (tf.cast(images, tf.int32), f"guide must have {_TYPES}, got int32"),
        (
            tf.RaggedTensor.from_tensor(images),
            "guide must be a dense tensor, got a Rag",
        ),
    ):
        with pytest.raises(ValueError, match=f"HighOrderConv2D: {text}"):
            layer(images, guide=wrong)


def test_a_later_guide_of_another_size_is_named():
    images = tf.ones([1, 4, 4, 2])
    layer = layers.HighOrderConv2D(3)
    layer(images, guide=images)
    text = r"guide must have the batch, height and width of the input, got shapes \(1,"
    with pytest.raises(ValueError, match=text):
        layer(images, guide=tf.ones([1, 3, 4, 2]))


def test_mask_names_what_is_not_dense():
    capsules, one_hot = tf.ones([1, 2, 3]), tf.constant([[1.0, 0.0]])
    ragged = tf.RaggedTensor.from_tensor
    for inputs, name in (
        (ragged(capsules), "capsules"),
        ([ragged(capsules), one_hot], "capsules"),
        ([capsules, ragged(one_hot)], "one_hot"),
    ):
        with pytest.raises(ValueError, match=f"Mask: {name} must be a dense tensor"):
            layers.Mask()(inputs)


@pytest.mark.parametrize(
    "make, shape, expected",
    [
        (lambda: layers.Conv2D(8, 3, use_bias=False), (9, 8, 3), (7, 6, 8)),
        (lambda: layers.Conv2D(6, 3, strides=2, groups=3), (9, 8, 3), (4, 3, 6)),
        (lambda: layers.Conv3D(4, 3), (9, 8, 5, 3), (7, 6, 3, 4)),
        (lambda: layers.PrimaryCaps(2, 4, 3), (9, 8, 3), (84, 4)),
        (lambda: layers.PoseCaps(2, kernel_size=3), (9, 8, 3), (7, 6, 2, 4, 4)),
        (lambda: layers.InqConv1D(4, 3), (9, 3), (7, 4)),
        (lambda: layers.InqConv1D(4, 3, padding="causal"), (9, 3), (9, 4)),
        (lambda: layers.InqConv3D(4, 3), (9, 8, 5, 3), (7, 6, 3, 4)),
        (
            lambda: layers.InqDepthwiseConv2D(3, depth_multiplier=2),
            (9, 8, 3),
            (7, 6, 6),
        ),
    ],
)
def test_empty_batches(make, shape, expected, device):
    """In eager calls: TensorFlow's convolution on a CPU returns another size."""
    layer, images = make(), tf.ones([0, *shape])
    with tf.GradientTape() as tape:
        tape.watch(images)
        first, *_ = tf.nest.flatten(layer(images))
    assert first.shape == (0, *expected)
    sources = [images, layer.trainable_weights[0].value]
    for source, gradient in zip(sources, tape.gradient(first, sources), strict=True):
        np.testing.assert_array_equal(gradient, tf.zeros(source.shape))


@pytest.mark.parametrize("rule", [Dynamic, SelfAttention])
def test_functions_of_empty_batches(rule, device):
    """TensorFlow's graph optimizer divides by the sizes of some products."""
    layer = layers.ConvCaps2D(3, 2, pose_shape=(2, 2), routing=rule())
    poses, activations = tf.zeros([0, 3, 3, 2, 2, 2]), tf.zeros([0, 3, 3, 2])

    @tf.function
    def gradients():
        with tf.GradientTape() as tape:
            loss = sum(map(tf.nn.l2_loss, layer([poses, activations])))
        return tape.gradient(loss, layer.trainable_weights[0].value)

    layer([poses, activations])
    assert not np.any(gradients())


@pytest.mark.parametrize(
    "make",
    [
        lambda: layers.PrimaryCaps(2, 4, 3, flatten=False),
        lambda: layers.PoseCaps(2, kernel_size=3),
    ],
)
def test_later_images_may_be_too_small(make):
    layer = make()
    layer(tf.ones([2, 7, 7, 8]))
    with pytest.raises(ValueError, match="input's height is smaller than kernel_size"):
        layer(tf.ones([2, 2, 2, 8]))
