# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""models.capsnet of images that show several classes, and the metric of such models."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops import data, losses, metrics
from tf_capsops.models import capsnet

_SMALL = {
    "filters": 8,
    "kernel_size": 3,
    "primary_channels": 2,
    "primary_dim": 4,
    "primary_kernel_size": 3,
    "capsule_dim": 6,
    "decoder_units": (12,),
}
_RANDOM = np.random.default_rng(1)
_DIGITS = _RANDOM.random([12, 2, 8, 8, 1], np.float32)
_IMAGES = _DIGITS.sum(axis=1) / 2
_CLASSES = np.sort(np.stack([_RANDOM.permutation(4)[:2] for _ in range(12)]), axis=1)
_SHOWN = np.eye(4, dtype=np.float32)[_CLASSES].sum(axis=1)
_TARGETS = {"lengths": _SHOWN, "reconstruction": _DIGITS}


def _small(**changes):
    keras.utils.set_random_seed(1)
    return capsnet((8, 8, 1), 4, **{**_SMALL, "objects": 2, **changes})


def test_each_object_is_decoded_from_its_own_capsule(device):
    model = _small()
    capsules = model.encode(_IMAGES)
    outputs = model({"images": _IMAGES, "labels": _SHOWN})
    assert outputs["reconstruction"].shape == (12, 2, 8, 8, 1)
    for place in range(2):
        alone = model.decode(capsules, np.eye(4)[_CLASSES[:, place]])
        np.testing.assert_allclose(
            outputs["reconstruction"][:, place], alone, rtol=1e-5
        )
    longest = np.sort(np.argsort(-np.linalg.norm(capsules, axis=-1))[:, :2])
    predicted = model.predict(_IMAGES, verbose=0)["reconstruction"]
    for place in range(2):
        alone = model.decode(capsules, np.eye(4)[longest[:, place]])
        np.testing.assert_allclose(predicted[:, place], alone, rtol=1e-5)


def test_loss_is_margin_plus_weighted_reconstructions_of_both():
    model = _small(reconstruction_weight=0.01)
    model.compile(run_eagerly=True)
    result = model.evaluate(
        _IMAGES, _TARGETS, batch_size=12, return_dict=True, verbose=0
    )
    outputs = model({"images": _IMAGES, "labels": _SHOWN})
    margin = losses.MarginLoss()(_SHOWN, outputs["lengths"])
    squares = np.square(outputs["reconstruction"] - _DIGITS)
    squares = squares.sum(axis=(1, 2, 3, 4)).mean()
    np.testing.assert_allclose(result["loss"], margin + 0.01 * squares, rtol=1e-5)
    highest = np.sort(np.argsort(-outputs["lengths"].numpy())[:, :2])
    share = np.all(highest == _CLASSES, axis=1).mean()
    assert result["lengths_accuracy"] == pytest.approx(share)


def test_xla_decodes_the_same(device):
    model = _small()
    compiled = tf.function(model, jit_compile=True)
    for inputs in (_IMAGES, {"images": _IMAGES, "labels": _SHOWN}):
        expected, outputs = model(inputs), compiled(inputs)
        for name in ("lengths", "reconstruction"):
            np.testing.assert_allclose(outputs[name], expected[name], rtol=1e-4)


def test_fit_learns_and_files_keep_everything(tmp_path):
    model = _small()
    model.compile(keras.optimizers.Adam(0.01))
    losses_ = model.fit(_IMAGES, _TARGETS, epochs=12, verbose=0).history["loss"]
    assert losses_[-1] < 0.7 * losses_[0]
    path = tmp_path / "pairs.keras"
    model.save(path)
    again = keras.saving.load_model(path)
    assert again.objects == 2
    model.run_eagerly = again.run_eagerly = True  # nothing else is traced
    expected, outputs = model.predict(_IMAGES, verbose=0), again.predict(_IMAGES)
    for name in ("lengths", "reconstruction"):
        np.testing.assert_array_equal(outputs[name], expected[name])
    model, again = (
        each.evaluate(_IMAGES, _TARGETS, return_dict=True, verbose=0)
        for each in (model, again)
    )
    assert again == model and "lengths_accuracy" in again


def test_fit_takes_what_the_data_set_gives():
    pairs = data.MultiMnist(data.load("digits"))
    model = capsnet(pairs.image_shape, 10, objects=2, **_SMALL)
    model.compile(run_eagerly=True)
    batches = pairs.train.batches(16).take(2)
    assert model.fit(batches, shuffle=False, verbose=0).history["loss"][0] > 0


def test_one_object_takes_another_image_as_its_reconstruction():
    model = _small(objects=1)
    model.compile(run_eagerly=True)
    labels, others = _CLASSES[:, 0], np.ones_like(_IMAGES)
    targets = {"lengths": labels, "reconstruction": others}
    result = model.evaluate(_IMAGES, targets, return_dict=True, verbose=0)
    drawn = model({"images": _IMAGES, "labels": labels})["reconstruction"]
    squares = np.square(drawn - others).sum(axis=(1, 2, 3)).mean()
    assert result["reconstruction_loss"] == pytest.approx(squares, rel=1e-5)


def test_mistakes_are_explained():
    with pytest.raises(ValueError, match="objects must be at most num_classes 4, got"):
        _small(objects=5)
    with pytest.raises(ValueError, match="objects must be"):
        _small(objects=0)
    model = _small()
    model.compile(run_eagerly=True)
    with pytest.raises(
        ValueError, match="with 2 objects, fit and evaluate need a dict"
    ):
        model.fit(_IMAGES, _SHOWN, verbose=0)
    with pytest.raises(ValueError, match=r"must have .* got \['lengths'\]"):
        model.fit(_IMAGES, {"lengths": _SHOWN}, verbose=0)
    with pytest.raises(ValueError, match="this model decodes 2"):
        model.inference_model()


def test_exact_match_counts_samples_whose_classes_are_all_found():
    scores = [[0.9, 0.8, 0.1], [0.9, 0.8, 0.1], [0.2, 0.3, 0.4], [0.2, 0.3, 0.4]]
    shown = [[1, 1, 0], [1, 0, 1], [0, 1, 1], [0, 0, 1]]
    metric = metrics.ExactMatch(2)
    metric.update_state(shown, tf.constant(scores))
    assert float(metric.result()) == 0.5
    metric.reset_state()
    metric.update_state(shown, scores, sample_weight=[3, 1, 0, 0])
    assert float(metric.result()) == 0.75
    again = metrics.ExactMatch.from_config(metric.get_config())
    again.update_state(shown, scores)
    assert float(again.result()) == 0.5
    single = metrics.ExactMatch(1)
    single.update_state(np.eye(3)[[0, 1, 2, 1]], scores)
    assert float(single.result()) == 0.5


def test_exact_match_reads_labels_as_the_losses_do():
    scores = [[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.6, 0.3, 0.1]]
    labels = np.array([0, 1, 2])  # as many as classes, so that shapes say nothing
    smoothed = np.eye(3)[labels] * 0.9 + 0.1 / 3
    for each in (labels, labels[:, None], np.eye(3)[labels], smoothed):
        metric = metrics.ExactMatch(1)
        metric.update_state(each, scores)
        assert float(metric.result()) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="labels must be one-hot of shape"):
        metrics.ExactMatch(1).update_state(np.ones([1, 3]), scores)
