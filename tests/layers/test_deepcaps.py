# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""models.deepcaps: its size, its routing over all pixels, its decoder, and files."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops import inq
from tf_capsops.losses import MarginLoss
from tf_capsops.models import deepcaps
from tf_capsops.models.deepcaps import GlobalSlimCaps2D

_SHAPE = (13, 9, 2)
_IMAGES = np.random.default_rng(4).random([6, *_SHAPE], np.float32)
_LABELS = np.arange(6) % 3


def _small(**options):
    keras.utils.set_random_seed(1)
    return deepcaps(_SHAPE, 3, size="small", **options)


@pytest.mark.parametrize(
    "shape, parameters, children",
    [((28, 28, 1), 8_500_625, 640), ((64, 64, 3), 13_427_283, 2560)],
)
def test_the_sizes_of_the_authors_code(shape, parameters, children):
    model = deepcaps(shape, 10)
    logits, biases = children * 10, 10 * 32
    assert model.count_params() - logits + biases == parameters
    assert model.encoder.get_layer("children").output.shape == (None, children, 8)
    assert model.decoder.output_shape == (None, *shape)
    seed = model.decoder.get_layer("seed").units
    assert seed == {28: 7 * 7 * 16, 64: 8 * 8 * 16}[shape[0]]


@pytest.mark.parametrize("size, cells", [("paper", 4), ("small", 3)])
def test_capsules_of_all_cells_begin_with_some_length(size, cells):
    keras.utils.set_random_seed(1)
    encoder = deepcaps((28, 28, 1), 3, size=size).encoder
    images = np.random.default_rng(4).random([4, 28, 28, 1], np.float32)
    outputs = [encoder.get_layer(f"cell_{i + 1}_second").output for i in range(cells)]
    seen = keras.Model(encoder.input, outputs)(images, training=True)
    lengths = [float(tf.reduce_mean(tf.norm(each, axis=-1))) for each in seen]
    assert min(lengths) > 0.1 and max(lengths) < 0.9, lengths


def _routed(votes, bias, iterations):
    """The definition, on votes `[B, I, P, J, D]` in float64; returns `[B, P, J, D]`."""
    logits = np.zeros(votes.shape[:-1])
    for _ in range(iterations):
        powers = np.exp(logits - logits.max(axis=(2, 3), keepdims=True))
        shares = powers / powers.sum(axis=(2, 3), keepdims=True)
        sums = (shares[..., None] * votes).sum(axis=1) + bias
        squared = (sums**2).sum(axis=(1, 3), keepdims=True)
        outputs = sums * squared / (1 + squared) / np.sqrt(squared)
        logits = logits + (outputs[:, None] * votes).sum(axis=-1)
    return outputs


@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("strides", [1, 2])
def test_routing_is_over_all_pixels(iterations, strides, device):
    layer = GlobalSlimCaps2D(
        3,
        2,
        (3, 1),
        strides=strides,
        padding="same",
        routing_iterations=iterations,
        bias_initializer="random_normal",
        dtype="float64",
    )
    capsules = np.random.default_rng(4).normal(size=[2, 5, 3, 4, 6])
    found = layer(capsules)
    size = [-(-5 // strides), -(-3 // strides)]
    assert found.shape == (2, *size, 3, 2)
    votes = [
        tf.nn.conv2d(
            capsules[:, :, :, child],
            tf.reshape(layer.kernel, [3, 1, 6, 6]),
            strides,
            "SAME",
        )
        for child in range(4)
    ]
    votes = np.reshape(np.stack(votes, axis=1), [2, 4, np.prod(size), 3, 2])
    expected = _routed(votes, layer.bias.numpy(), iterations)
    # Where votes cancel, the rounding of each of them remains.
    np.testing.assert_allclose(
        np.reshape(found, expected.shape), expected, 1e-5, atol=1e-8
    )


@pytest.mark.parametrize(
    "options, shape, text",
    [
        ({"leaky": True}, (2, 4, 4, 3, 8), "no leaky routing, got share_weights=True,"),
        ({"share_weights": False}, (2, 4, 4, 3, 8), "one kernel and no leaky routing"),
        ({}, (2, None, 4, 3, 8), "only the batch size of .* may be unknown"),
        ({}, (2, 4, 4, 3), "the input must be .batch, height, width, types, capsule"),
    ],
)
def test_other_routing_and_open_sizes_are_refused(options, shape, text):
    with pytest.raises(ValueError, match=text):
        GlobalSlimCaps2D(2, 3, 3, **options).build(shape)


def test_half_precision_routes_in_float32(device):
    capsules = np.random.default_rng(4).normal(size=[2, 4, 4, 3, 8]).astype(np.float32)
    keras.utils.set_random_seed(1)
    exact = GlobalSlimCaps2D(4, 8, 3, padding="same")(capsules)
    for policy, error in (("mixed_float16", 2e-3), ("mixed_bfloat16", 2e-2)):
        keras.utils.set_random_seed(1)
        half = GlobalSlimCaps2D(4, 8, 3, padding="same", dtype=policy)(capsules)
        assert half.dtype == policy.removeprefix("mixed_")
        np.testing.assert_allclose(tf.cast(half, "float32"), exact, atol=error)


def test_the_decoder_does_not_know_the_class():
    model = _small()
    capsules = model.encode(_IMAGES)
    of_first = model.decode(capsules, np.eye(3)[[0] * 6])
    turned = tf.roll(capsules, 1, axis=1)
    np.testing.assert_array_equal(model.decode(turned, np.eye(3)[[1] * 6]), of_first)
    assert np.any(model.decode(capsules, np.eye(3)[[1] * 6]) != of_first)


def test_learns_and_is_saved(tmp_path, device):
    model = _small()
    model.compile(keras.optimizers.Adam(0.005))
    history = model.fit(_IMAGES, _LABELS, epochs=8, verbose=0).history
    assert history["loss"][-1] < history["loss"][0] / 2
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    outputs, again = (each.predict(_IMAGES, verbose=0) for each in (model, loaded))
    assert outputs["lengths"].shape == (6, 3)
    for name, each in outputs.items():
        np.testing.assert_array_equal(again[name], each)
    expected = model.evaluate(_IMAGES, _LABELS, return_dict=True, verbose=0)
    assert loaded.evaluate(_IMAGES, _LABELS, return_dict=True, verbose=0) == expected


def test_the_loss_is_the_margin_and_two_fifths_of_the_mean_squared_error():
    model = _small()
    model.compile(run_eagerly=True)
    outputs = model({"images": _IMAGES, "labels": _LABELS})
    margin = MarginLoss()(_LABELS, outputs["lengths"])
    mean = np.square(outputs["reconstruction"] - _IMAGES).mean()
    found = model.evaluate(_IMAGES, _LABELS, return_dict=True, verbose=0)["loss"]
    np.testing.assert_allclose(found, margin + 0.4 * mean, rtol=1e-5)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy, tmp_path, device):
    model = _small(dtype=policy)
    model.compile(run_eagerly=True)
    assert np.isfinite(model.fit(_IMAGES, _LABELS, verbose=0).history["loss"])
    outputs = model(_IMAGES)
    assert {each.dtype for each in outputs.values()} == {tf.float32}
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(_IMAGES)["lengths"], outputs["lengths"])


@pytest.mark.slow
def test_xla_compiles_a_step(device):
    losses = []
    for options in ({"run_eagerly": True}, {"jit_compile": True}):
        model = _small()
        model.compile(**options)
        history = model.fit(_IMAGES, _LABELS, epochs=2, verbose=0).history
        losses.append(history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)


def test_a_functional_model_has_the_same_outputs(tmp_path):
    model = _small()
    functional = model.inference_model()
    outputs = model(_IMAGES)
    for name, each in functional(_IMAGES).items():
        np.testing.assert_allclose(each, outputs[name], atol=1e-6)
    assert functional.inference_model() is functional
    assert inq.report(model)


@pytest.mark.parametrize("shape", [(8, 8, 1), (1, 1, 1), (40, 24, 1), (100, 9, 3)])
def test_images_of_any_size(shape):
    outputs = deepcaps(shape, 2, size="small")(np.zeros([2, *shape], np.float32))
    assert outputs["reconstruction"].shape == (2, *shape)


@pytest.mark.parametrize(
    "arguments, text",
    [
        (((8, 8), 3), "deepcaps: input_shape must be (height, width, channels), got"),
        (((8, 8, 1), 0), "deepcaps: num_classes must be an integer >= 1, got 0"),
        (((8, 8, 1), 3, "R3"), "deepcaps: size must be 'paper' or 'small', got 'R3'"),
    ],
)
def test_errors_say_what_is_wrong(arguments, text):
    with pytest.raises(ValueError) as error:
        deepcaps(*arguments)
    assert text in str(error.value)


def test_errors_name_the_model():
    model = _small()
    model.compile(run_eagerly=True)
    for each in (model, model.inference_model()):
        with pytest.raises(ValueError, match="DeepCaps: images must be floating-point"):
            each(np.zeros([1, *_SHAPE], np.uint8))
    with pytest.raises(ValueError, match="DeepCaps: fit and evaluate need labels"):
        model.fit(_IMAGES, verbose=0)
