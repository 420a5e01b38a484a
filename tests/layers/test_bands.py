# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training of networks of single pixels band by band."""

import fresh
import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops import layers
from tf_capsops.models import bands, segcaps, ucaps3d

_RANDOM = np.random.default_rng(3)
# Prints the bytes that XLA takes for the gradient of a network of single pixels.
_MEASURE = """
import os, pathlib, re, sys
os.environ["XLA_FLAGS"] = "--xla_dump_to=dump --xla_dump_hlo_as_text"
import keras
import tensorflow as tf
from tf_capsops.models import bands

network = keras.Sequential(
    [
        keras.Input((64, 64, 8)),
        keras.layers.Conv2D(64, 1, activation="relu"),
        keras.layers.Conv2D(128, 1, activation="relu"),
        keras.layers.Conv2D(1, 1, activation="sigmoid"),
    ]
)
image = tf.zeros([1, 64, 64, 8])

@tf.function(jit_compile=True)
def gradients(image):
    with tf.GradientTape() as tape:
        drawn = bands.train(network, image, int(sys.argv[1]))
        loss = tf.reduce_sum(tf.square(drawn))
    return tape.gradient(loss, network.trainable_variables)

gradients.experimental_get_compiler_ir(image)(stage="optimized_hlo")
report, = pathlib.Path("dump").glob("*gradients*buffer-assignment.txt")
print(re.search(r"Total bytes used: (\\d+)", report.read_text())[1])
"""


def _network(*layers, shape=(6, 5, 4)):
    return keras.Sequential([keras.Input(shape), *layers])


def _pixelwise(**options):
    return keras.layers.Conv2D(3, 1, **options)


@pytest.mark.parametrize("build", [segcaps, ucaps3d])
@pytest.mark.parametrize(
    "policy, tolerance, frozen",
    [
        ("float32", 1e-5, False),
        ("float32", 1e-5, True),
        ("mixed_bfloat16", 0.1, False),
        ("mixed_float16", 0.02, False),
    ],
)
def test_gradients_are_those_of_all_pixels_at_once(
    build, policy, tolerance, frozen, monkeypatch, device
):
    shape = (16, 8, 1) if build is segcaps else (16, 8, 8, 1)
    keras.utils.set_random_seed(1)
    model = build(shape, 3, size="small", dtype=policy)
    model.decoder.get_layer("draw_1").trainable = not frozen
    inputs = {
        "images": _RANDOM.random([2, *shape], np.float32),
        "masks": _RANDOM.integers(0, 3, [2, *shape[:-1], 1]),
    }

    def compute():
        with tf.GradientTape() as tape:
            scores = model(inputs, training=True)
            # Scaled, for gradients of float16 would underflow.
            loss = 4096 * (model.losses[0] + tf.reduce_mean(scores))
        return loss, *tape.gradient(loss, model.trainable_variables)

    def computed():
        # Only one network runs in graphs, which take seconds to make.
        in_graphs = build is segcaps and policy == "float32"
        return tf.function(compute)() if in_graphs else compute()

    (whole, *expected), calls = computed(), []
    monkeypatch.setattr(bands, "_PIXELS", 30)
    train = bands.train
    monkeypatch.setattr(
        bands, "train", lambda *arguments: calls.append(arguments) or train(*arguments)
    )
    loss, *grads = computed()
    assert calls[0][2] == (5 if build is segcaps else 16)
    np.testing.assert_allclose(loss, whole, rtol=tolerance / 10)
    for found, right in zip(grads, expected, strict=True):
        # The gradient of a single number, a slope, adds up terms that cancel. In
        # bfloat16 little more than their rounding errors is left.
        if policy == "mixed_bfloat16" and np.size(right) == 1:
            continue
        scale = np.abs(right).max()
        np.testing.assert_allclose(found, right, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("jit", [False, True])
def test_empty_batches_have_gradients_of_zero(jit):
    network = _network(layers.Conv2D(3, 1), layers.Conv2D(2, 1))

    @tf.function(jit_compile=jit)
    def gradients(images):
        with tf.GradientTape() as tape:
            tape.watch(images)
            loss = tf.reduce_sum(tf.square(bands.train(network, images, 3)))
        return tape.gradient(loss, [images, network.trainable_variables[0].value])

    images, kernel = gradients(tf.zeros([0, 6, 5, 4]))
    assert images.shape == (0, 6, 5, 4)
    assert not np.any(kernel)


def test_bands_are_computed_one_after_another(tmp_path):
    """Other versions of XLA may find out that they need not be."""
    for number in "18":
        (tmp_path / number).mkdir()
    once, banded = (
        int(fresh.run(_MEASURE, str(number), cwd=tmp_path / str(number)).split()[-1])
        for number in (1, 8)
    )
    assert banded < 0.4 * once


@pytest.mark.parametrize(
    "network, rows",
    [
        (_network(_pixelwise()), 6),
        (_network(_pixelwise(), _pixelwise(padding="same", use_bias=False)), 6),
        (_network(keras.layers.Conv3D(3, 1), shape=(2, 6, 5, 4)), 2),
        (_network(keras.layers.Conv2D(3, 3, padding="same")), 1),
        (_network(_pixelwise(strides=2)), 1),
        (_network(_pixelwise(activity_regularizer="l2")), 1),
        (_network(keras.layers.BatchNormalization()), 1),
        (_network(_pixelwise(), shape=(6, None, 4)), 1),
    ],
)
def test_bands_are_for_pixels_that_do_not_depend_on_others(network, rows, monkeypatch):
    images = keras.KerasTensor(network.input_shape)
    images = tf.TensorSpec(images.shape)
    assert bands.count(network, images) == 1
    monkeypatch.setattr(bands, "_PIXELS", 1)
    assert bands.count(network, images) == rows
