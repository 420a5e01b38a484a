# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsNet.compile: losses and metrics of the lengths, or by output."""

import re

import keras
import numpy as np
import pytest
import small

_IMAGES = np.random.default_rng(1).random([6, 8, 8, 1], np.float32)
_LABELS = np.arange(6) % 3
_LOSSES = {"loss", "lengths_loss", "reconstruction_loss"}


def _evaluated(**arguments):
    """Returns what `evaluate` says, before and after saving what was compiled."""
    results = []
    keras.utils.set_random_seed(1)
    model = small.capsnet()
    model.compile(**arguments, run_eagerly=True)  # nothing is traced
    for _ in range(2):
        results.append(model.evaluate(_IMAGES, _LABELS, return_dict=True, verbose=0))
        model.compile_from_config(model.get_compile_config())
    assert results[0] == results[1]
    return results[0]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"metrics": "accuracy"}, ["lengths_accuracy"]),
        ({"metrics": None}, []),
        (
            {"metrics": keras.metrics.CategoricalAccuracy()},
            ["lengths_categorical_accuracy"],
        ),
        (
            {"metrics": {"lengths": "accuracy", "reconstruction": ["mse", "mae"]}},
            ["lengths_accuracy", "reconstruction_mse", "reconstruction_mae"],
        ),
        (
            {"metrics": None, "weighted_metrics": {"reconstruction": "mse"}},
            ["reconstruction_mse"],
        ),
    ],
    ids=str,
)
def test_metrics_are_of_the_lengths_or_by_output(arguments, expected):
    assert _evaluated(**arguments).keys() == _LOSSES | {*expected}


def test_losses_are_of_the_lengths_or_by_output():
    default, plain = _evaluated(), _evaluated(loss="mse")
    assert plain["lengths_loss"] != default["lengths_loss"]
    assert plain["reconstruction_loss"] == default["reconstruction_loss"]
    assert _evaluated(loss={"lengths": "mse"}) == plain
    other = _evaluated(loss={"reconstruction": "mse"})
    assert other["lengths_loss"] == default["lengths_loss"]
    assert other["reconstruction_loss"] != default["reconstruction_loss"]


def test_weights_are_of_the_lengths_or_by_output():
    default = _evaluated()
    assert _evaluated(loss_weights={"lengths": 1.0}) == default
    both = _evaluated(loss_weights={"reconstruction": 2.0, "lengths": 3.0})
    total = 3 * default["lengths_loss"] + 2 * default["reconstruction_loss"]
    np.testing.assert_allclose(both["loss"], total, rtol=1e-6)
    assert _evaluated(loss_weights=[3.0, 2.0]) == both


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("metrics", [["accuracy"], ["mse"]]),
        ("metrics", {"labels": ["accuracy"]}),
        ("weighted_metrics", {"labels": "accuracy"}),
        ("loss", ["mse", "mse"]),
        ("loss", {"length": "mse"}),
        ("loss_weights", {"margin": 1.0, "decoder": 2.0}),
    ],
)
def test_what_is_of_no_output_is_refused(argument, value):
    message = (
        rf"CapsNet: {argument} must be for the lengths, or a dict of 'lengths' and "
        rf"'reconstruction'.*, got {re.escape(repr(value))}"
    )
    with pytest.raises(ValueError, match=message):
        _evaluated(**{argument: value})
