# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Losses and metrics of segmentation: the margin loss by pixel, weights, and Dice."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops.losses import MarginLoss, WeightedBinaryCrossentropy
from tf_capsops.metrics import Dice

_RANDOM = np.random.default_rng(3)


def _drawn(classes, shape=(3, 5, 7)):
    """Returns scores `[..., classes]`, and integer and one-hot masks."""
    scores = _RANDOM.random([*shape, classes])
    masks = _RANDOM.integers(0, max(classes, 2), [*shape, 1])
    one_hot = masks if classes == 1 else np.eye(classes)[masks[..., 0]]
    return scores, masks, one_hot.astype(float)


@pytest.mark.parametrize("classes", [1, 2, 5])
def test_margin_loss_of_pixels(classes, device):
    lengths, masks, one_hot = _drawn(classes)
    present, absent = np.maximum(0.9 - lengths, 0), np.maximum(lengths - 0.1, 0)
    expected = one_hot * present**2 + 0.5 * (1 - one_hot) * absent**2
    loss = MarginLoss(dtype="float64")
    for labels in (masks, one_hot):
        np.testing.assert_allclose(loss(labels, lengths), expected.sum(-1).mean())


@pytest.mark.parametrize("classes", [1, 2, 5])
@pytest.mark.parametrize("weight", [0.25, 1, 7])
def test_weighted_cross_entropy(classes, weight, device):
    scores, masks, one_hot = _drawn(classes)
    own = weight * one_hot * np.log(scores) + (1 - one_hot) * np.log(1 - scores)
    loss = WeightedBinaryCrossentropy(weight, reduction=None, dtype="float64")
    for labels in (masks, one_hot):
        np.testing.assert_allclose(loss(labels, scores), -own.mean(-1))
    if weight == 1:
        keras_own = keras.losses.BinaryCrossentropy(reduction=None, dtype="float64")
        np.testing.assert_allclose(loss(masks, scores), keras_own(one_hot, scores))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_scores_of_zero_and_one_have_finite_losses_and_gradients(dtype):
    scores = tf.constant([[0.0], [1.0], [0.0], [1.0]], dtype)
    labels = tf.constant([[0], [1], [1], [0]])
    loss = WeightedBinaryCrossentropy(2, reduction=None, dtype=dtype)
    with tf.GradientTape() as tape:
        tape.watch(scores)
        losses = loss(labels, scores)
    assert np.all(np.isfinite(tape.gradient(losses, scores)))
    far = -np.log(1e-7)
    np.testing.assert_allclose(losses, [0, 0, 2 * far, far], rtol=0.02, atol=1e-6)


@pytest.mark.parametrize("weight", [0, -1, float("nan"), "half"])
def test_bad_weights_are_named(weight):
    with pytest.raises(ValueError, match="positive_weight must be a positive number"):
        WeightedBinaryCrossentropy(weight)


def _dice(read, shown):
    """The definition, by class: NaN for a class that is neither read nor shown."""
    with np.errstate(invalid="ignore"):
        return 2 * (read * shown).sum(0) / (read + shown).sum(0)


def _read(scores):
    if scores.shape[-1] == 1:
        return (scores >= 0.5).astype(float).reshape(-1, 1)
    return np.eye(scores.shape[-1])[scores.argmax(-1)].reshape(-1, scores.shape[-1])


@pytest.mark.parametrize("classes", [1, 2, 5])
def test_dice_is_of_all_pixels_together(classes):
    parts = [_drawn(classes, (2, 3, 5, 7)) for _ in range(2)]
    read = np.concatenate([_read(scores) for scores, _, _ in parts])
    shown = np.concatenate([each.reshape(-1, classes) for _, _, each in parts])
    for class_id in (None, *range(classes)):
        metric = Dice(classes, class_id)
        for scores, masks, one_hot in parts:
            metric.update_state(masks if class_id else one_hot, scores)
        expected = _dice(read, shown)
        expected = expected.mean() if class_id is None else expected[class_id]
        np.testing.assert_allclose(metric.result(), expected, rtol=1e-6)
        metric.reset_state()
        assert float(metric.result()) == 0


def test_dice_follows_from_the_iou_of_keras():
    scores, masks, one_hot = _drawn(4)
    for class_id in range(4):
        ours = Dice(4, class_id)
        ours.update_state(masks, scores)
        theirs = keras.metrics.OneHotIoU(4, [class_id])
        theirs.update_state(one_hot, scores)
        iou = float(theirs.result())
        np.testing.assert_allclose(ours.result(), 2 * iou / (1 + iou), rtol=1e-6)


def test_classes_that_nobody_saw_do_not_count():
    scores = np.eye(3)[[[0, 0, 1, 1]]]
    mean, of_class = Dice(3), Dice(3, 2)
    for metric in (mean, of_class):
        metric.update_state([[[0], [0], [1], [0]]], scores)
    # Class 0: 2 * 2 / (2 + 3); class 1: 2 * 1 / (2 + 1).
    np.testing.assert_allclose(mean.result(), (4 / 5 + 2 / 3) / 2, rtol=1e-6)
    assert float(of_class.result()) == 0


@pytest.mark.parametrize("shape", [(3,), (3, 5, 7), (3, 5, 7, 1)])
def test_samples_and_pixels_have_weights(shape):
    scores, masks, one_hot = _drawn(2)
    weights = _RANDOM.integers(0, 3, shape).astype(float)
    metric = Dice(2, 1)
    metric.update_state(masks, scores, weights)
    whole = weights.reshape(*shape, *[1] * (4 - len(shape)))
    whole = np.broadcast_to(whole, [3, 5, 7, 1]).reshape(-1, 1)
    repeated = whole[:, 0].astype(int)
    expected = _dice(
        np.repeat(_read(scores), repeated, 0),
        np.repeat(one_hot.reshape(-1, 2), repeated, 0),
    )
    np.testing.assert_allclose(metric.result(), expected[1], rtol=1e-6)


@pytest.mark.parametrize("class_id", [-1, 3, 1.5])
def test_a_class_that_is_not_there_is_named(class_id):
    with pytest.raises(ValueError, match="class_id must be an integer from 0 to 2"):
        Dice(3, class_id)


def test_scores_of_other_classes_are_named():
    with pytest.raises(ValueError, match="scores of 3 classes, got shape"):
        Dice(3).update_state(np.zeros([1, 4, 1]), np.zeros([1, 4, 2]))


def test_trained_and_saved_with_a_model(tmp_path):
    model = keras.Sequential(
        [keras.Input([4, 4, 1]), keras.layers.Conv2D(2, 1, activation="sigmoid")]
    )
    metrics = [Dice(2), Dice(2, 1, name="object")]
    loss = WeightedBinaryCrossentropy(3)
    model.compile("sgd", loss, metrics=metrics, jit_compile=True)
    images = _RANDOM.random([6, 4, 4, 1]).astype(np.float32)
    masks = (images > 0.5).astype(np.int32)
    history = model.fit(images, masks, batch_size=4, epochs=2, verbose=0).history
    assert {"loss", "dice", "object"} <= history.keys()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.loss.get_config() == model.loss.get_config()
    found = loaded.evaluate(images, masks, verbose=0, return_dict=True)
    assert found == model.evaluate(images, masks, verbose=0, return_dict=True)
