# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rules where public code is known to fail: nothing is NaN, and nothing is clipped."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops.layers import ClassCaps, ConvCaps2D
from tf_capsops.losses import MarginLoss
from tf_capsops.routing import EM, VB, Dynamic, InvertedAttention, SelfAttention

_RULES = {
    "dynamic": Dynamic(iterations=10),
    "em": EM(iterations=10),
    "em_parents": EM(iterations=10, normalize="parents", final_lambda=1.0),
    "vb": VB(iterations=10),
    "inverted_attention": InvertedAttention(iterations=10),
    "self_attention": SelfAttention(),
}
_KINDS = (
    "without_activation",
    "either_active_or_not",
    "alike",
    "far_away",
    "large",
    "zero",
)


def _extreme(kind):
    """Returns poses and activations of two images of 4 x 4 capsules of two types."""
    random = np.random.default_rng(7)
    poses = random.normal(size=(2, 4, 4, 2, 4, 4))
    activations = random.uniform(size=(2, 4, 4, 2))
    if kind == "without_activation":
        activations[:] = 0
    elif kind == "either_active_or_not":
        activations = np.round(activations)
    elif kind == "alike":
        poses[:] = poses[0, 0, 0, 0]
    elif kind == "far_away":
        poses += 1000
    elif kind == "large":
        poses *= 1000
    elif kind == "zero":
        poses[:] = 0
    return poses, activations


def _problems():
    """Yields rules, kinds and types.

    Two thirds of those in bfloat16, which has float32's range, are slow.
    """
    for place, rule in enumerate(_RULES):
        for number, kind in enumerate(_KINDS):
            yield rule, kind, "float32"
            yield rule, kind, "mixed_float16"
            marks = pytest.mark.slow if (place + number) % 3 else ()
            yield pytest.param(rule, kind, "mixed_bfloat16", marks=marks)


@pytest.mark.ci
@pytest.mark.parametrize("rule, kind, dtype", _problems())
def test_ten_iterations_stay_finite(rule, kind, dtype, device):
    """With the same weights for all parents, so that votes agree where poses do."""
    poses, activations = map(tf.constant, _extreme(kind))
    layer = ConvCaps2D(3, 3, routing=_RULES[rule], dtype=dtype)
    layer.build([poses.shape, activations.shape])
    layer.kernel.assign(np.broadcast_to(np.eye(4), layer.kernel.shape))
    inputs = [tf.cast(each, layer.compute_dtype) for each in (poses, activations)]
    watched = [each.value for each in layer.trainable_weights]
    # The loss of a mixed type is not scaled here: its gradients stay in range.
    with tf.GradientTape() as tape:
        outputs, active = layer(inputs, training=True)
        loss = tf.reduce_mean(tf.cast(outputs, tf.float32) / 1000)
        loss += tf.reduce_mean(tf.cast(active, tf.float32))
    assert np.all(np.isfinite(tf.cast(outputs, tf.float32)))
    assert np.all((active >= 0) & (active <= 1 + 1e-6))
    found = tape.gradient(
        loss, watched, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    for gradient in found:
        assert np.all(np.isfinite(gradient))


def test_variance_survives_a_large_mean(device):
    """Votes of deviation 1 about 1000: sums of squares about zero would lose it."""
    poses, activations = _extreme("far_away")
    layer = ConvCaps2D(3, 3, routing=EM(final_lambda=1.0, epsilon=1e-4))
    layer.build([poses.shape, activations.shape])
    layer.kernel.assign(np.broadcast_to(np.eye(4), layer.kernel.shape))
    config = layer.get_config()
    exact = ConvCaps2D.from_config({**config, "dtype": "float64"})
    exact.build([poses.shape, activations.shape])
    exact.set_weights(layer.get_weights())
    _, active = layer([poses.astype(np.float32), activations.astype(np.float32)])
    _, truth = exact([poses.astype(np.float32).astype(float), activations])
    np.testing.assert_allclose(active, truth, rtol=1e-3)


def test_equal_children_are_divided_equally(device):
    """Where parents do not differ, no iteration makes them differ."""
    poses, activations = _extreme("alike")
    layer = ConvCaps2D(3, 3, routing=EM())
    layer.build([poses.shape, activations.shape])
    layer.kernel.assign(np.broadcast_to(np.eye(4), layer.kernel.shape))
    outputs, _ = layer([poses.astype(np.float32), activations.astype(np.float32)])
    expected = np.broadcast_to(poses[0, 0, 0, 0], outputs.shape)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)


def test_without_mass_a_mean_is_zero(device):
    poses, activations = _extreme("without_activation")
    layer = ConvCaps2D(3, 3, routing=EM())
    outputs, _ = layer([poses.astype(np.float32), activations.astype(np.float32)])
    np.testing.assert_array_equal(outputs, np.zeros(outputs.shape))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("rule", _RULES)
def test_a_thousand_steps_of_training_stay_finite(rule, dtype, device):
    """At a rate that is too high on purpose, for poses that are noise."""
    keras.utils.set_random_seed(3)
    image = (4, 4, 4)
    poses = keras.Input((*image, 4, 4))
    activations = keras.Input(image)
    routing = {"routing": _RULES[rule], "dtype": dtype}
    hidden = ConvCaps2D(4, 3, **routing)([poses, activations])
    class_poses, scores = ClassCaps(3, **routing)(hidden)
    if rule == "inverted_attention":
        flat = keras.layers.Reshape((3, 16))(class_poses)
        scores = keras.layers.Flatten()(keras.layers.Dense(1)(flat))
    model = keras.Model([poses, activations], scores)
    optimizer = keras.optimizers.Adam(0.03)
    if dtype == "mixed_float16":
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
    model.compile(optimizer, MarginLoss())
    random = np.random.default_rng(8)
    inputs = [random.normal(size=(64, *image, 4, 4)), random.uniform(size=(64, *image))]
    labels = random.integers(3, size=64)
    history = model.fit(inputs, labels, batch_size=16, epochs=250, verbose=0)
    assert np.all(np.isfinite(history.history["loss"]))
    assert all(np.all(np.isfinite(each)) for each in model.get_weights())
