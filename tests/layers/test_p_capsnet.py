# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""models.p_capsnet: its layers, training, saving and errors."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tolerances
from reference import capsule_conv as reference

from tf_capsops import inq
from tf_capsops.cli.presets import PRESETS
from tf_capsops.layers import CapsuleConv2D
from tf_capsops.losses import MarginLoss
from tf_capsops.models import p_capsnet

_SMALL = {"filters": (4, 4), "kernel_sizes": (3, (3, 2)), "strides": (1, (2, 1))}
_IMAGES = np.random.default_rng(1).random([12, 8, 7, 2], np.float32)
_LABELS = np.arange(12) % 3


def _small(**changes):
    keras.utils.set_random_seed(1)
    return p_capsnet((8, 7, 2), 3, **{**_SMALL, **changes})


def test_defaults_have_few_parameters():
    model = p_capsnet((28, 28, 1), 10)
    shapes = {layer.name: layer.output.shape for layer in model.layers}
    assert shapes == {
        "pixels": (None, 28, 28, 1, 1, 1),
        "conv_1": (None, 12, 12, 8, 1, 16),
        "poses": (None, 12, 12, 8, 4, 4),
        "conv_2": (None, 5, 5, 16, 4, 4),
        "conv_3": (None, 3, 3, 16, 4, 4),
        "classes": (None, 1, 1, 10, 4, 4),
        "flat": (None, 10, 16),
        "class_capsules": (None, 10, 16),
        "lengths": (None, 10),
    }
    assert model.count_params() == 82336


@pytest.mark.parametrize("pose_shape", [(3, 3), (2, 3, 3), (1, 1), (2, 5)])
def test_has_capsule_convolutions_only(pose_shape):
    model = _small(pose_shape=pose_shape)
    with_weights = [layer for layer in model.layers if layer.weights]
    assert all(isinstance(layer, CapsuleConv2D) for layer in with_weights)
    assert [layer.pose_shape for layer in with_weights[1:]] == [pose_shape] * 2
    assert model(_IMAGES).shape == (12, 3)


def _published():
    """The network of the preset of Chen et al., of five layers."""
    return p_capsnet((28, 28, 1), 10, **PRESETS["p_capsnet"]["chen"].network)


def test_published_network_has_other_than_square_poses():
    model = _published()
    shapes = [layer.output.shape[1:] for layer in model.layers]
    assert shapes == [
        (28, 28, 1, 1, 1),
        *[(13, 13, 1, 1, 32)] * 2,
        *[(13, 13, 1, 4, 8)] * 3,
        *[(11, 11, 4, 4, 16)] * 2,
        *[(11, 11, 4, 8, 8)] * 2,
        (11, 11, 4, 4, 16),
        *[(5, 5, 8, 4, 8)] * 5,
        *[(3, 3, 4, 4, 16)] * 2,
        *[(3, 3, 4, 8, 8)] * 2,
        (3, 3, 4, 4, 16),
        *[(1, 1, 10, 4, 8)] * 2,
        *[(10, 32)] * 2,
        (10,),
    ]
    products = [1 * 1 * 32, 4 * 8 * 16, 4 * 8 * 16 * 8, 8 * 4 * 8 * 16, 4 * 10 * 16 * 8]
    assert model.count_params() == 3 * 3 * sum(products) == 124_704


def test_published_network_squashes_what_relu_leaves():
    """The layers of a whole network, one after the other, in NumPy."""
    keras.utils.set_random_seed(2)
    model = p_capsnet(
        *((6, 5, 1), 3, (2, 2), (3, 2), (1, 1)),
        pose_shape=((2, 2), (2, 4), (2, 3)),
        negative_slope=0.25,
        squash_size=2,
        use_bias=False,
    )
    capsules = _IMAGES[:2, :6, :5, :1, None, None].astype(np.float64)
    convolutions = [each for each in model.layers if each.weights]
    for layer, pose in zip(convolutions, ((2, 2), (2, 4), (2, 3)), strict=True):
        sums = reference.forward(capsules, np.float64(layer.kernel))
        sums = np.where(sums > 0, sums, 0.25 * sums)
        size = 6 if layer.name == "classes" else 2
        vectors = sums.reshape(*sums.shape[:4], -1, size)
        lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
        vectors = (1 - np.exp(-lengths)) * vectors / lengths
        capsules = vectors.reshape(*sums.shape[:4], *pose)
    expected = np.linalg.norm(vectors.reshape(2, 3, 6), axis=-1)
    np.testing.assert_allclose(model(_IMAGES[:2, :6, :5, :1]), expected, rtol=1e-5)


def test_published_network_learns(tmp_path):
    model = _small(
        pose_shape=((2, 4), (2, 6), (2, 4)),
        negative_slope=0.1,
        squash_size=4,
        use_bias=False,
    )
    model.compile(keras.optimizers.Adam(0.01), MarginLoss(), run_eagerly=True)
    losses = model.fit(_IMAGES, _LABELS, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0] / 2
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(_IMAGES), model(_IMAGES))


@pytest.mark.parametrize("pose_shape", [(4, 4), (2, 3, 3)])
def test_plain_fit_learns(device, pose_shape):
    model = _small(pose_shape=pose_shape)
    adam = keras.optimizers.Adam(0.01)
    model.compile(adam, MarginLoss(), metrics=["accuracy"])
    history = model.fit(_IMAGES, _LABELS, epochs=20, verbose=0).history
    # An epoch is one batch, and what it gives is from before the step.
    assert history["loss"][-1] < history["loss"][0] / 2
    assert history["accuracy"][-1] > history["accuracy"][0]


def test_lengths_are_those_of_the_class_capsules(device):
    model = _small()
    inner = model.get_layer("class_capsules").output
    capsules = keras.Model(model.inputs[0], inner)(_IMAGES)
    lengths = np.linalg.norm(capsules, axis=-1)
    allowed = 8 * tolerances.ulp(np.float32)
    np.testing.assert_allclose(model(_IMAGES), lengths, rtol=0, atol=allowed)
    assert lengths.max() < 1


def test_images_that_are_not_scaled_are_refused(tmp_path):
    model = _small()
    model.compile("adam", MarginLoss(), run_eagerly=True)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    images = np.ones(_IMAGES.shape, np.uint8)
    message = "p_capsnet: images must be floating-point numbers from 0 to 1, got uint8"
    for each in (model, loaded):
        for use in (
            each,
            each.predict,
            lambda images, each=each: each.fit(images, _LABELS, verbose=0),
        ):
            with pytest.raises(ValueError, match=message):
                use(images)


def test_saved_and_loaded(tmp_path):
    model = _small()
    model.compile("adam", MarginLoss(), metrics=["accuracy"], run_eagerly=True)
    model.fit(_IMAGES, _LABELS, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(_IMAGES), model(_IMAGES))
    expected = model.evaluate(_IMAGES, _LABELS, return_dict=True, verbose=0)
    assert loaded.evaluate(_IMAGES, _LABELS, return_dict=True, verbose=0) == expected


def test_saved_model_takes_any_batch(tmp_path):
    model = _small()
    model.export(tmp_path / "saved", verbose=False)
    saved = tf.saved_model.load(tmp_path / "saved")
    # The graph may fuse what is run one by one here: the last bits may differ.
    allowed = 8 * tolerances.ulp(np.float32)
    for batch in (1, 5):
        served, expected = saved.serve(_IMAGES[:batch]), model(_IMAGES[:batch])
        np.testing.assert_allclose(served, expected, rtol=0, atol=allowed)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(device, policy):
    model = _small(dtype=policy)
    model.compile("adam", MarginLoss(), metrics=["accuracy"], run_eagerly=True)
    history = model.fit(_IMAGES, _LABELS, epochs=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert model.get_layer("classes").output.dtype == policy.removeprefix("mixed_")
    assert model(_IMAGES).dtype == tf.float32


@pytest.mark.parametrize("policy", [None, "mixed_float16"])
def test_keras_scales_the_loss_of_float16(tmp_path, policy):
    model = _small(dtype=policy)
    model.compile("adam", MarginLoss(), run_eagerly=True)
    model.fit(_IMAGES, _LABELS, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    with pytest.warns(UserWarning, match="convert: "):
        converted = inq.convert(model)
    for each in (model, loaded, converted):
        scaled = isinstance(each.optimizer, keras.optimizers.LossScaleOptimizer)
        assert scaled == bool(policy)
    for ours, saved in zip(loaded.optimizer.variables, model.optimizer.variables):
        np.testing.assert_array_equal(ours, saved)


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"input_shape": (8, 8)}, r"input_shape must be 3 integers, got \(8, 8\)"),
        ({"input_shape": (8, 8, 0)}, "input_shape must be an integer >= 1, got 0"),
        ({"input_shape": (3, 8, 1)}, r"height is smaller than kernel_size \(3, 2\)"),
        ({"num_classes": 0}, "num_classes must be an integer >= 1, got 0"),
        ({"filters": (4, 0)}, "filters must be an integer >= 1, got 0"),
        ({"filters": (4,)}, r"one entry a layer, got \(4,\), \(3, \(3, 2\)\) and"),
        ({"filters": (), "kernel_sizes": (), "strides": ()}, "one entry a layer, got"),
        ({"filters": 4}, r"one entry a layer, got 4, \(3, \(3, 2\)\) and"),
        ({"pose_shape": 4}, "pose_shape must be 2 or 3 integers, got 4"),
        ({"pose_shape": ((4, 4), 4, 4)}, "each pose_shape must be 2 or 3 integers"),
        ({"pose_shape": ((4, 4), (4, 4))}, "one for the classes, 3 here, got 2: "),
        ({"pose_shape": ((4, 8), (4, 4), (2, 8))}, "others must be the same in all of"),
        ({"negative_slope": -0.1}, "negative_slope must be a number from 0 to 1, got"),
        ({"negative_slope": "0.1"}, "negative_slope must be a number from 0 to 1, got"),
        ({"squash_size": 0}, "squash_size must be an integer >= 1, got 0"),
        ({"squash_size": 3}, r"divide the 16 elements of a pose of \(4, 4\), got 3"),
    ],
)
def test_bad_arguments_are_named(arguments, text):
    with pytest.raises(ValueError, match=text):
        p_capsnet(**{"input_shape": (8, 7, 2), "num_classes": 3, **_SMALL, **arguments})
