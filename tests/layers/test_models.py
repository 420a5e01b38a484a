# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""models.capsnet: training, saving, and its parts."""

import itertools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tolerances
from reference import capsule_routing, squash

from tf_capsops import losses
from tf_capsops.models import CapsNet, capsnet

_SMALL = {
    "filters": 8,
    "kernel_size": 3,
    "primary_channels": 2,
    "primary_dim": 4,
    "primary_kernel_size": 3,
    "capsule_dim": 6,
    "decoder_units": (12,),
}
_IMAGES = np.random.default_rng(1).random([12, 8, 8, 1], np.float32)
_LABELS = np.arange(12) % 3


def _small(**changes):
    keras.utils.set_random_seed(1)
    return capsnet((8, 8, 1), 3, **{**_SMALL, **changes})


def test_defaults_are_the_network_of_the_paper():
    model = capsnet((28, 28, 1), 10)
    encoder = {layer.name: layer.output.shape for layer in model.encoder.layers}
    assert encoder == {
        "conv": (None, 20, 20, 256),
        "primary_caps": (None, 1152, 8),
        "digit_caps": (None, 10, 16),
    }
    decoder = [layer.output.shape[1:] for layer in model.decoder.layers]
    assert decoder == [(512,), (1024,), (784,), (28, 28, 1)]
    # Section 4 gives 8.2 million with the decoder; 11520 are the initial logits.
    assert model.count_params() - 11520 == 8215568


def test_plain_fit_learns(device):
    model = _small()
    model.compile(keras.optimizers.Adam(0.01))
    history = model.fit(_IMAGES, _LABELS, epochs=15, verbose=0).history
    # An epoch is one batch, and what it gives is from before the step.
    assert history["loss"][-1] < history["loss"][0] / 2
    assert history["lengths_accuracy"][-1] > history["lengths_accuracy"][0]
    outputs = model.predict(_IMAGES, verbose=0)
    assert outputs["lengths"].shape == (12, 3)
    assert outputs["reconstruction"].shape == (12, 8, 8, 1)


def test_loss_is_margin_plus_weighted_reconstruction_of_the_label():
    model = _small(reconstruction_weight=0.01)
    model.compile(run_eagerly=True)
    result = model.evaluate(
        _IMAGES, _LABELS, batch_size=12, return_dict=True, verbose=0
    )
    capsules = model.encode(_IMAGES)
    margin = losses.MarginLoss()(_LABELS, np.linalg.norm(capsules, axis=-1))
    drawn = model.decode(capsules, np.eye(3, dtype=np.float32)[_LABELS])
    squares = np.square(drawn - _IMAGES).sum(axis=(1, 2, 3)).mean()
    np.testing.assert_allclose(result["lengths_loss"], margin, rtol=1e-5)
    np.testing.assert_allclose(result["reconstruction_loss"], squares, rtol=1e-5)
    np.testing.assert_allclose(result["loss"], margin + 0.01 * squares, rtol=1e-5)


def test_labels_may_be_one_hot_and_samples_weighted():
    model = _small()
    model.compile(optimizer="sgd", run_eagerly=True)
    integers = model.evaluate(_IMAGES, _LABELS, return_dict=True, verbose=0)
    one_hot = model.evaluate(_IMAGES, np.eye(3)[_LABELS], return_dict=True, verbose=0)
    assert one_hot == integers
    ignored = model.fit(_IMAGES, _LABELS, sample_weight=np.zeros(12), verbose=0)
    assert ignored.history["loss"] == [0.0]


def test_prediction_draws_the_longest_capsule_and_labels_choose_another():
    model = _small()
    capsules = model.encode(_IMAGES)
    outputs = model(_IMAGES)
    np.testing.assert_array_equal(outputs["reconstruction"], model.decode(capsules))
    chosen = model({"images": _IMAGES, "labels": _LABELS})["reconstruction"]
    one_hot = np.eye(3, dtype=np.float32)[_LABELS]
    np.testing.assert_array_equal(chosen, model.decode(capsules, one_hot))


# Neither images nor kernels nor strides are square, so that no axis can be taken for
# another.
_OBLONG = {
    "input_shape": (14, 9, 2),
    "kernel_size": (2, 3),
    "primary_channels": 5,
    "primary_kernel_size": (4, 3),
    "primary_strides": (3, 2),
}


@pytest.mark.parametrize("dtype", ["uint8", "int64", "bool"])
def test_images_that_are_not_scaled_are_refused(dtype):
    model = _small()
    model.compile(run_eagerly=True)
    images = np.ones(_IMAGES.shape, dtype)
    message = (
        f"CapsNet: images must be floating-point numbers from 0 to 1, got {dtype}: "
        "divide integers from 0 to 255 by 255"
    )
    for use in (
        model,
        model.predict,
        model.encode,
        model.routing_coefficients,
        lambda images: model.fit(images, _LABELS, verbose=0),
        lambda images: model.evaluate(images, _LABELS, verbose=0),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            use(images)


@pytest.mark.parametrize("batch", [8, 12])
def test_images_without_channels_are_refused(batch):
    """A batch as large as the images once broadcast, and trained on nonsense."""
    model = _small()
    model.compile(run_eagerly=True)
    images, labels = np.zeros([batch, 8, 8]), np.arange(batch) % 3
    message = r"CapsNet: images must be \[batch, 8, 8, 1\], got shape \(.*, 8, 8\)"
    for use in (
        model,
        model.predict,
        model.encode,
        model.routing_coefficients,
        lambda images: model.fit(images, labels, batch_size=batch, verbose=0),
        lambda images: model.evaluate(images, labels, batch_size=batch, verbose=0),
    ):
        with pytest.raises(ValueError, match=message):
            use(images)


def test_images_have_their_channels_last_whatever_keras_is_told():
    images = np.random.default_rng(0).uniform(size=(2, 8, 8, 1)).astype(np.float32)
    expected, _ = _small().predict(images, verbose=0)
    keras.config.set_image_data_format("channels_first")
    try:
        lengths, _ = _small().predict(images, verbose=0)
    finally:
        keras.config.set_image_data_format("channels_last")
    np.testing.assert_array_equal(lengths, expected)


def test_labels_that_are_no_class_are_refused():
    model = _small()
    model.compile()
    for use, eagerly in ((model.fit, True), (model.evaluate, False)):
        model.run_eagerly = eagerly
        with pytest.raises(tf.errors.InvalidArgumentError, match="from 0 to 2, got"):
            use(_IMAGES, _LABELS + 1, verbose=0)


def test_routing_coefficients_lie_where_their_capsules_do(device):
    keras.utils.set_random_seed(2)
    network = {"num_classes": 3, **_SMALL, **_OBLONG}
    model = capsnet(**network, routing_iterations=4, dtype="float64")
    conv, primary, digit = model.encoder.layers
    random = np.random.default_rng(3)
    kernel, logits = (random.normal(size=weight.shape) for weight in digit.weights)
    digit.set_weights([kernel, logits])
    images = random.random([6, 14, 9, 2])
    ours = model.routing_coefficients(images)
    features = primary.conv(conv(images))
    assert features.shape == (6, 4, 3, 5 * 4)
    capsules = squash.forward(np.reshape(features, [6, 4, 3, 5, 4]))
    truth = capsule_routing.coefficients(
        capsules.reshape(6, -1, 4), kernel, logits, iterations=4
    ).reshape(6, 4, 3, 5, 3)
    assert np.ptp(truth, axis=0).max() > 0.1  # routing has done something
    assert ours.dtype == tf.float64
    np.testing.assert_allclose(ours, truth, rtol=1e-6)


@pytest.mark.parametrize("changes", [_OBLONG, {"input_shape": (5, 7, 1)}, {}])
def test_primary_centers_are_the_middles_of_what_capsules_see(changes):
    model = capsnet(**{"input_shape": (8, 8, 1), "num_classes": 3, **_SMALL, **changes})
    conv, primary, _ = model.encoder.layers
    for layer in (conv, primary.conv):
        layer.set_weights([np.ones(weight.shape) for weight in layer.weights])
    images = tf.ones([1, *model.image_shape])
    rows, columns = model.primary_centers
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(images)
        features = primary.conv(conv(images))
        each = [
            features[0, y, x, 0] for y in range(len(rows)) for x in range(len(columns))
        ]
    assert features.shape[1:3] == (len(rows), len(columns))
    for feature, center in zip(each, itertools.product(rows, columns), strict=True):
        seen = np.argwhere(np.asarray(tape.gradient(feature, images))[0, ..., 0])
        np.testing.assert_array_equal((seen.min(axis=0) + seen.max(axis=0)) / 2, center)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_routing_coefficients_share_each_capsule_out(device, policy):
    coefficients = _small(dtype=policy).routing_coefficients(_IMAGES)
    assert coefficients.shape == (12, 2, 2, 2, 3)
    assert np.min(coefficients) >= 0
    allowed = 3 * tolerances.ulp(np.asarray(coefficients).dtype)
    totals = np.asarray(coefficients, np.float64).sum(axis=-1)
    np.testing.assert_allclose(totals, 1, rtol=0, atol=allowed)


def test_saved_and_loaded_with_decoder_and_compilation(tmp_path):
    model = _small()
    model.compile(
        keras.optimizers.Adam(0.01),
        loss=losses.MarginLoss(m_plus=0.8),
        metrics=["accuracy", keras.metrics.TopKCategoricalAccuracy(2)],
        run_eagerly=True,
    )
    model.fit(_IMAGES, _LABELS, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(loaded, CapsNet)
    assert loaded.get_config() == model.get_config()
    for name, values in model.predict(_IMAGES, verbose=0).items():
        np.testing.assert_array_equal(loaded.predict(_IMAGES, verbose=0)[name], values)
    expected = model.evaluate(_IMAGES, _LABELS, return_dict=True, verbose=0)
    assert loaded.evaluate(_IMAGES, _LABELS, return_dict=True, verbose=0) == expected
    assert loaded.decode(loaded.encode(_IMAGES)).shape == (12, 8, 8, 1)
    # The optimizer goes on where it was.
    assert loaded.optimizer.iterations == model.optimizer.iterations
    ours = model.fit(_IMAGES, _LABELS, shuffle=False, verbose=0).history
    theirs = loaded.fit(_IMAGES, _LABELS, shuffle=False, verbose=0).history
    np.testing.assert_allclose(theirs["loss"], ours["loss"], rtol=1e-6)


def test_saved_uncompiled(tmp_path):
    model = _small()
    model.save(tmp_path / "model.keras")
    assert not keras.saving.load_model(tmp_path / "model.keras").compiled


def test_saved_model(tmp_path):
    model = _small()
    model.export(tmp_path / "saved", verbose=False)
    saved = tf.saved_model.load(tmp_path / "saved")
    served = saved.serve(_IMAGES[:5])
    expected = model(_IMAGES[:5])
    for name in ("lengths", "reconstruction"):
        # The graph may fuse what is run one by one here: the last bits may differ.
        allowed = 8 * tolerances.ulp(np.float32)
        np.testing.assert_allclose(served[name], expected[name], rtol=0, atol=allowed)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(device, policy):
    model = _small(dtype=policy)
    model.compile(run_eagerly=True)
    history = model.fit(_IMAGES, _LABELS, epochs=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert model.encode(_IMAGES).dtype == policy.removeprefix("mixed_")
    outputs = model(_IMAGES)
    assert outputs["lengths"].dtype == outputs["reconstruction"].dtype == tf.float32


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"input_shape": (8, 8)}, r"\(height, width, channels\), got \(8, 8\)"),
        ({"input_shape": (8, 8, 0)}, "input_shape must be an integer >= 1, got 0"),
        ({"kernel_size": (3, 9)}, r"must be at least kernel_size \(3, 9\), got \(8, 8"),
        ({"num_classes": 0}, "num_classes must be an integer >= 1, got 0"),
        ({"reconstruction_weight": -1}, "reconstruction_weight must not be negative"),
        (
            {"routing_iterations": 0},
            "routing_iterations must be an integer from 1 to 2147483647, got 0",
        ),
    ],
)
def test_bad_arguments_are_named(arguments, text):
    with pytest.raises(ValueError, match=text):
        capsnet(**{"input_shape": (8, 8, 1), "num_classes": 3, **_SMALL, **arguments})


def test_labels_are_needed():
    model = _small()
    model.compile(run_eagerly=True)
    with pytest.raises(ValueError, match="need labels beside the images"):
        model.fit(_IMAGES, verbose=0)
