# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""MarginLoss, SpreadLoss and ReconstructionLoss."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_capsops.layers import Length
from tf_capsops.losses import MarginLoss, ReconstructionLoss, SpreadLoss

_LENGTHS = np.array([[0.95, 0.05, 0.3], [0.2, 0.7, 0.1]])
_LABELS = np.array([0, 1])
# By hand: 0.5 * 0.2^2 in the first row; 0.2^2 + 0.5 * 0.1^2 in the second.
_EXPECTED = [0.02, 0.045]


@pytest.mark.parametrize(
    "labels",
    [np.eye(3)[_LABELS], _LABELS, _LABELS[:, None], np.eye(3, dtype=int)[_LABELS]],
)
def test_margin_loss(device, labels):
    loss = MarginLoss(reduction=None, dtype="float64")(labels, _LENGTHS)
    np.testing.assert_allclose(loss, _EXPECTED)
    mean = MarginLoss(dtype="float64")(labels, _LENGTHS)
    np.testing.assert_allclose(mean, np.mean(_EXPECTED))


def test_margin_loss_arguments(device):
    loss = MarginLoss(m_plus=0.5, m_minus=0.25, down_weight=2.0, dtype="float64")
    # 2 * 0.05^2 in the first row, nothing in the second.
    np.testing.assert_allclose(loss(_LABELS, _LENGTHS), 2 * 0.05**2 / 2)


def test_one_class_is_read_as_one_hot():
    lengths = np.array([[0.5], [0.5]])
    loss = MarginLoss(reduction=None, dtype="float64")(np.array([[1], [0]]), lengths)
    np.testing.assert_allclose(loss, [0.4**2, 0.5 * 0.4**2])


def test_sample_weights():
    loss = MarginLoss(reduction="sum", dtype="float64")
    weighted = loss(_LABELS, _LENGTHS, sample_weight=np.array([1.0, 10.0]))
    np.testing.assert_allclose(weighted, _EXPECTED[0] + 10 * _EXPECTED[1])


def test_reconstruction_loss(device):
    images = np.zeros([2, 2, 2, 1])
    result = np.stack([np.full([2, 2, 1], 0.5), np.full([2, 2, 1], 2.0)])
    loss = ReconstructionLoss(reduction=None, dtype="float64")(images, result)
    np.testing.assert_array_equal(loss, [1.0, 16.0])


@pytest.mark.parametrize(
    "loss", [MarginLoss(0.8, 0.2, 0.3), ReconstructionLoss(reduction="sum")]
)
def test_saved_with_a_model(tmp_path, loss):
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])
    model.compile("sgd", loss)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.loss.get_config() == loss.get_config()


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"m_plus": 1.5}, "m_minus < m_plus <= 1, got m_minus=0.1, m_plus=1.5"),
        ({"m_minus": 0.95}, "m_minus < m_plus <= 1, got m_minus=0.95, m_plus=0.9"),
        ({"down_weight": -1}, "down_weight must not be negative, got -1"),
        ({"down_weight": None}, "down_weight must not be negative, got None"),
        ({"down_weight": np.nan}, "down_weight must not be negative, got nan"),
        ({"m_plus": "a"}, "m_plus must be a number, got 'a'"),
    ],
)
def test_bad_arguments_are_named(arguments, text):
    with pytest.raises(ValueError, match=text):
        MarginLoss(**arguments)


def test_bad_labels_are_named():
    with pytest.raises(ValueError, match=r"one-hot of shape \(2, 3\) or integers of"):
        MarginLoss()(tf.ones([2, 4]), _LENGTHS)


_WAYS = {
    "eager": lambda function: function,
    "graph": lambda function: tf.function(function, autograph=False),
}


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("label", [-1, 3, 255, 0.5])
def test_labels_that_are_no_class_are_named(label, column, way, device):
    loss = _WAYS[way](MarginLoss(dtype="float64"))
    labels = np.reshape([1, label], [2, 1] if column else [2])
    text = rf"labels of 3 classes must be integers from 0 to 2, got\] \[{label}\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        loss(labels, _LENGTHS)


def _length_model(**arguments):
    model = keras.Sequential([keras.Input([3, 2]), Length()])
    model.compile("sgd", MarginLoss(), **arguments)
    return model


def test_training_names_a_label_that_is_no_class():
    with pytest.raises(tf.errors.InvalidArgumentError, match="from 0 to 2, got"):
        _length_model(jit_compile=False).fit(
            np.ones([4, 3, 2]), np.arange(4), verbose=0
        )


def test_labels_that_are_no_class_make_nan_where_xla_compiles():
    model = _length_model(jit_compile=True)
    capsules = np.ones([4, 3, 2])
    good = model.evaluate(capsules, np.arange(4) % 3, verbose=0)
    bad = model.evaluate(capsules, np.arange(4), verbose=0)
    assert np.isfinite(good)
    assert np.isnan(bad)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_labels_of_several_ranks(jit_compile, device):
    """TensorFlow traces a function that meets several ranks for an unknown one."""
    loss = tf.function(
        MarginLoss(dtype="float64"),
        input_signature=[tf.TensorSpec(None), tf.TensorSpec([None, 3], tf.float64)],
        jit_compile=jit_compile,
    )
    integers = tf.constant([1.0, 2.0])
    expected = MarginLoss(dtype="float64")(integers, _LENGTHS)
    for labels in (integers, integers[:, tf.newaxis], tf.one_hot([1, 2], 3)):
        np.testing.assert_allclose(loss(labels, _LENGTHS), expected)
    smooth = tf.constant([[0.1, 0.8, 0.1], [0.0, 0.3, 0.7]])
    np.testing.assert_allclose(
        loss(smooth, _LENGTHS), MarginLoss(dtype="float64")(smooth, _LENGTHS)
    )
    for wrong in (tf.ones([3]), tf.eye(3), tf.ones([1, 2]), tf.one_hot([0], 3)):
        if jit_compile:  # XLA leaves out assertions
            assert np.isnan(loss(wrong, _LENGTHS))
        else:
            with pytest.raises(tf.errors.InvalidArgumentError, match="one entry for e"):
                loss(wrong, _LENGTHS)


def test_integer_labels_of_every_position():
    lengths = np.stack([_LENGTHS, _LENGTHS[::-1]])
    labels = np.stack([_LABELS, _LABELS[::-1]])[..., None]
    loss = MarginLoss(reduction=None, dtype="float64")(labels, lengths)
    np.testing.assert_allclose(loss, [_EXPECTED, _EXPECTED[::-1]])


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("labels", [np.eye(10)[:4], np.arange(4), np.ones([4, 1])])
def test_capsules_whose_lengths_were_forgotten(labels, way):
    loss = _WAYS[way](MarginLoss())
    text = (
        r"shape \(4, 10, 16\) or .*\(4, 10, 1\), got .*; capsules need a Length layer"
    )
    with pytest.raises(ValueError, match=text):
        loss(labels, np.zeros([4, 10, 16]))


@pytest.mark.parametrize("labels", [np.eye(3)[:1], np.ones([1]), np.ones([1, 1])])
def test_labels_of_another_batch_are_not_broadcast(labels):
    with pytest.raises(ValueError, match=r"of shape \(2,\), got shape \(1"):
        MarginLoss()(labels, _LENGTHS)


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("shape", [(4, 4, 4), (1, 4, 4, 1), (4, 4, 4, 3), ()])
def test_reconstructions_of_another_shape_are_not_broadcast(shape, way):
    loss = _WAYS[way](ReconstructionLoss())
    text = "ReconstructionLoss: y_true and y_pred must be of one shape, got .* and "
    with pytest.raises(ValueError, match=text):
        loss(np.zeros(shape), np.zeros([4, 4, 4, 1]))


def test_batches_that_a_graph_does_not_know_are_compared_when_it_runs():
    @tf.function(input_signature=[tf.TensorSpec([None, 4, 4, 1])] * 2)
    def loss(images, result):
        return ReconstructionLoss()(images, result)

    result = tf.ones([4, 4, 4, 1])
    assert loss(tf.zeros([4, 4, 4, 1]), result) == 16
    text = "ReconstructionLoss: y_true and y_pred must be of one shape"
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        loss(tf.zeros([1, 4, 4, 1]), result)


# Classes 0 and 1 are there. By hand, with a margin of 0.5: each of them with class 2 is
# 0.4^2 and 0.6^2, and with class 3 0.1^2 and 0.3^2.
_SEVERAL = np.array([[0.5, 0.3, 0.4, 0.1]])


@pytest.mark.parametrize("way", _WAYS)
def test_spread_loss_adds_up_over_several_true_classes(way, device):
    loss = _WAYS[way](SpreadLoss(1, start=0.5, end=0.5, dtype="float64"))
    several = loss(np.array([[1, 1, 0, 0]]), _SEVERAL)
    np.testing.assert_allclose(several, 0.16 + 0.01 + 0.36 + 0.09)


def test_spread_loss_of_activations_that_are_far_from_right():
    """True activations are not added up: 0.9 + 0 would be ahead of both others."""
    loss = SpreadLoss(1, start=0.5, end=0.5, dtype="float64")
    found = loss(np.array([[1, 1, 0, 0]]), np.array([[0.9, 0.0, 0.1, 0.1]]))
    np.testing.assert_allclose(found, 2 * 0.6**2)


def test_spread_loss_of_labels_that_are_smoothed_or_missing():
    def expected(labels):  # the definition, one pair after the other
        return sum(
            labels[t] * (1 - labels[i]) * max(0, 0.5 - (_SEVERAL[0][t] - a)) ** 2
            for t in range(4)
            for i, a in enumerate(_SEVERAL[0])
            if i != t
        )

    loss = SpreadLoss(1, start=0.5, end=0.5, dtype="float64")
    smoothed = [0.85, 0.05, 0.05, 0.05]
    np.testing.assert_allclose(loss([smoothed], _SEVERAL), expected(smoothed))
    assert float(loss(np.zeros([1, 4]), _SEVERAL)) == 0
    assert float(loss(np.ones([1, 4]), _SEVERAL)) == 0


def _following(optimizer, **arguments):
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])
    loss = SpreadLoss(10, start=0.1, end=0.9)
    model.compile(optimizer, loss, run_eagerly=True, **arguments)
    loss.follow(model.optimizer)
    return model


def _assert_goes_on(model, again, data):
    assert again.optimizer.iterations == model.optimizer.iterations
    for ours, theirs in zip(model.optimizer.variables, again.optimizer.variables):
        np.testing.assert_array_equal(theirs, ours)
    again.loss.follow(again.optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            assert again.train_on_batch(*data) == model.train_on_batch(*data)


def test_the_margin_and_the_optimizer_go_on_from_a_file(tmp_path):
    random = np.random.default_rng(1)
    data = random.random([5, 4], np.float32), np.array([0, 1, 2, 0, 1])
    model = _following("adam")
    for _ in range(3):
        model.train_on_batch(*data)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    # Before it follows the optimizer, the margin is that of the file, 0.1 + 0.8 * 0.3.
    with pytest.warns(UserWarning, match=r"stays at 0\.34: call loss\.follow"):
        found = again.test_on_batch(*data)
    assert found == model.test_on_batch(*data)
    _assert_goes_on(model, again, data)


def test_files_that_have_the_optimizer_in_the_loss(tmp_path, monkeypatch):
    """As those of earlier releases."""
    data = np.ones([2, 4]), np.array([0, 1])
    model, again = _following("adam"), _following("adam")
    for _ in range(3):
        model.train_on_batch(*data)
    with monkeypatch.context() as patch:
        patch.setattr(SpreadLoss, "save_own_variables", lambda self, store: None)
        patch.setattr(model.loss, "_optimizer", model.optimizer)
        model.save_weights(tmp_path / "model.weights.h5")
    again.optimizer.build(again.trainable_variables)
    again.load_weights(tmp_path / "model.weights.h5")
    again.save_weights(tmp_path / "later.weights.h5")
    later = _following("adam")
    later.optimizer.build(later.trainable_variables)
    later.load_weights(tmp_path / "later.weights.h5")
    _assert_goes_on(model, again, data)
    assert later.optimizer.iterations == 3
