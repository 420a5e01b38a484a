# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Networks of many capsule convolutions, the outlook of Chen et al.: they train."""

import keras
import numpy as np
import pytest

import tf_capsops
from benchmarks.papers import chen, chen_depth
from tf_capsops.bench import cases, training
from tf_capsops.bench.networks import CASES
from tf_capsops.layers import CapsuleConv2D
from tf_capsops.losses import MarginLoss

_IMAGES = np.random.default_rng(1).random([6, 4, 4, 1], np.float32)
_LABELS = np.arange(6) % 3


def _network(depth, **options):
    keras.utils.set_random_seed(1)
    sizes = {"capsules": 2, "pose_shape": (2, 2)}
    return chen_depth.network(depth, (4, 4, 1), 3, **sizes, **options)


def test_fifty_layers_learn():
    model = _network(50)
    convolutions = [each for each in model.layers if isinstance(each, CapsuleConv2D)]
    assert len(convolutions) == 52
    model.compile(keras.optimizers.SGD(0.1), MarginLoss(), run_eagerly=True)
    losses = model.fit(_IMAGES, _LABELS, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0] / 3


def test_layers_leave_values_as_large_as_they_are():
    """Sums keep the scale of many layers, whatever their number."""
    for depth in (10, 50):
        model = _network(depth)
        sums = [each for each in model.layers if isinstance(each, keras.layers.Add)]
        ends = keras.Model(model.inputs[0], [sums[0].output, sums[-1].output])
        first, last = (np.std(end) for end in ends(_IMAGES))
        assert 0.5 < last / first < 4


def test_layers_without_sums_only_follow_one_another():
    kinds = [type(layer).__name__ for layer in _network(2, residual=False).layers]
    assert kinds.count("CapsuleConv2D") == 4 and "Add" not in kinds


def test_the_fold_computes_the_same():
    model = _network(3)
    ours = model(_IMAGES)
    with tf_capsops.portable():
        np.testing.assert_allclose(model(_IMAGES), ours, rtol=1e-5)


def test_what_training_took_is_shown(eagerly, monkeypatch, tmp_path):
    images, labels = np.repeat(_IMAGES, 2, axis=0), np.tile(_LABELS, 2)
    monkeypatch.setattr(chen_depth, "_digits", lambda: (images, labels))
    monkeypatch.setattr(chen_depth, "_LAYERS", {"capsules": 1, "pose_shape": (2, 2)})
    monkeypatch.setattr(chen_depth, "EPOCHS", 3)
    methods = chen_depth.OURS, chen_depth.FOLD
    monkeypatch.setattr(chen_depth, "METHODS", {1: methods})
    (result,) = chen_depth.run("CPU:0", 2)
    assert [*result["methods"]] == [*methods]
    ours, fold = result["methods"].values()
    assert ours["losses"][0] == pytest.approx(fold["losses"][0], rel=1e-4)
    assert ours["step_ms"] > 0 and ours["peak_bytes"] is None
    result |= {"part": "depth", "device": "CPU:0", "run": {}}
    table = dict(chen.tables([result]))["papers_chen_depth"]
    assert [row[0] for row in table["rows"]] == ["1: CapsuleConv", "1: fold"]
    assert table["rows"][0][1] == f"{ours['losses'][0]:.3f}"
    chen.draw([result], tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_a_step_of_the_network_is_measured(monkeypatch):
    row = {"median_us": 1500.0, "images_per_second": 85333.3, "extra_bytes": 2e6}
    row |= {"busy_us": 750.0, "launches": 123.4}
    methods = {"tf_capsops, 20 steps": row, "plain Keras, XLA, 20 steps": {"error": ""}}
    asked = []

    def run(options):
        asked.append(options)
        yield {"device": "GPU:0", "methods": methods}

    monkeypatch.setattr(training, "run", run)
    (result,) = chen.PARTS["training"]("GPU:0", 2)
    (options,) = asked
    assert (options.device, options.repeat) == (["GPU"], 2)
    (case,) = {case.name for case in CASES if case.name in options.model}
    assert case == "p_capsnet-chen" and options.suite == [cases.TRAINING]
    result |= {"part": "training", "run": {}}
    assert dict(chen.tables([result]))["papers_chen_training"]["rows"] == [
        ["CapsuleConv", "**1.500**", "85,333", "0.750", "123", "2.000"],
        ["plain Keras, XLA", "cannot run", "", "", "", ""],
    ]


def test_without_results_there_are_empty_tables():
    tables = dict(chen.tables([]))
    assert tables["papers_chen_depth"]["rows"] == []
    assert all(table["runs"] == [] for table in tables.values())
