# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Three recipes that train quickly on few digits, for tests of `tf-capsops report`."""

import dataclasses
import json
import pathlib
import sys

import tensorflow as tf

from tf_capsops.__main__ import main
from tf_capsops.data import dataset, sources
from tf_capsops.experiments import recipes

EFFICIENT, CAPSNET, QUANTIZED = (
    "efficient_capsnet-digits",
    "capsnet-digits",
    "inq5-digits",
)


TRAINING, TESTS = 150, 60  # of the digits
_SMALL = {
    EFFICIENT: {"filters": (8, 8, 16)},
    CAPSNET: {"filters": 8, "primary_channels": 2, "decoder_units": (16,)},
    QUANTIZED: {},
}


def quickly(monkeypatch, epochs=1):
    """Leaves three recipes, of small networks and so many epochs, and few digits.

    Quantization takes two steps.
    """
    quick = {}
    for name, network in _SMALL.items():
        changes = {"epochs": epochs, "batch_size": 50, "network": network}
        quick[name] = dataclasses.replace(recipes.RECIPES[name], changes=changes)
    monkeypatch.setattr(recipes, "RECIPES", quick)
    monkeypatch.setattr(recipes, "quantization_steps", lambda *_: [0.5, 1.0])
    few_digits(monkeypatch)
    # It would last until the process ends, and keep other tests from XLA.
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)


def few_digits(monkeypatch):
    """Leaves few digits, and recipes that expect so many."""
    fewer = {"training": TRAINING, "tests": TESTS}
    few = dataclasses.replace(recipes.DATA["digits"], **fewer)
    monkeypatch.setitem(recipes.DATA, "digits", few)
    monkeypatch.setattr(sources, "_digits", _few)


_all = sources._digits


def _few():
    whole = _all()
    training = whole.x_train[:TRAINING], whole.y_train[:TRAINING]
    return dataset.Dataset(
        "digits", *training, whole.x_test[:TESTS], whole.y_test[:TESTS]
    )


def here(started):
    """Returns what runs commands in this process instead of one of their own."""

    def call(command, env):
        assert command[:4] == [sys.executable, "-m", "tf_capsops", "train"]
        assert pathlib.Path(env["PYTHONPATH"].split(":")[0], "tf_capsops").is_dir()
        started.append(command[4:])
        return main(command[3:])

    return call


def results_of(path="runs/results.json"):
    return json.loads(pathlib.Path(path).read_text())
