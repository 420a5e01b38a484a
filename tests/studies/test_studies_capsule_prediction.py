# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The paper of capsule prediction: its kernels, and its claim, measured."""

import json

import fresh
import numpy as np
import pytest
import tensorflow as tf
from cuda_studies import on_gpus, with_library
from descriptions import capsule_prediction
from tolerances import assert_close

from benchmarks.papers import __main__ as papers
from benchmarks.papers import studies, van_de_wolfshaar
from tf_capsops import layers
from tf_capsops.bench import cases, measure, training
from tf_capsops.bench.report import OURS

SUITE = cases.suites()["CapsulePrediction"]
CASES = SUITE.select(cases.CORRECTNESS)

# The paper's network, small.
_SIZES = {"batch": 2, "in_height": 8, "in_width": 9, "channels": 2, "classes": 3}
_NETWORK = {
    **van_de_wolfshaar.NETWORK,
    **{"filters": 4, "kernel_size": 3, "primary_channels": 2, "primary_dim": 4},
    **{"primary_kernel_size": 3, "capsule_dim": 4, "decoder_units": (8,)},
}


@on_gpus
@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels(case, gpu):
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(-1, 1, SUITE.output_shape(case)), *SUITE.draw(case, rng)]
    with tf.device(gpu):
        tensors = [tf.constant(array, tf.float32) for array in arrays]
        results = measure.training_step(studies.capsule_prediction)(*tensors)
        plain = measure.training_step(SUITE.rivals["einsum"])(*tensors)
    assert all(result.device.endswith(gpu) for result in results)
    exact = [tensor.numpy().astype(np.float64) for tensor in tensors]
    reference = capsule_prediction.OP.reference
    truths, magnitudes = reference(*exact), reference(*map(np.abs, exact))
    for result, truth, yardstick, magnitude in zip(results, truths, plain, magnitudes):
        assert_close(result.numpy(), truth, yardstick.numpy(), magnitude)


@with_library
def test_shapes_are_inferred_and_checked():
    def symbol(*shape):
        return tf.compat.v1.placeholder(tf.float32, shape)

    with tf.Graph().as_default():
        inputs, weights = symbol(None, None, 8), symbol(6, 10, 16, None)
        output = studies.capsule_prediction(inputs, weights)
        assert output.shape.as_list() == [None, 6, 10, 16]
        (by_inputs, by_weights) = tf.gradients(output, [inputs, weights])
        assert by_inputs.shape.as_list() == [None, 6, 8]
        assert by_weights.shape.as_list() == [6, 10, 16, 8]
        text = r"CapsulePrediction: weights dim 0 \(in_caps\) must be 5, got \[6,10,16"
        with pytest.raises(ValueError, match=text):
            studies.capsule_prediction(symbol(2, 5, 8), weights)


def _case():
    return cases.Case("paper_network", _SIZES, (), ("CPU",), _NETWORK)


@pytest.mark.parametrize("name", van_de_wolfshaar.predictions("CPU"))
def test_routed_predictions_are_digit_caps(name, device):
    """The network that is timed computes what `digit_caps` does."""
    predict = van_de_wolfshaar.predictions("CPU")[name]
    capsules = tf.random.stateless_normal([3, 7, 5], [1, 2])
    routed = van_de_wolfshaar.RoutedPredictions(predict, 4, 6, updates=3)
    outputs = routed(capsules)
    same = layers.digit_caps(
        capsules, 4, 6, kernel_initializer=lambda shape, dtype: routed.kernel.value
    )
    np.testing.assert_allclose(outputs, same, rtol=1e-5, atol=1e-7)


def test_every_way_trains_the_same_network():
    ways = van_de_wolfshaar.ways("CPU")
    names = ["reshapes", "CapsulePrediction", "DigitCaps", OURS]
    assert [str(way) for way in ways] == names
    found = []
    for way, network in ways.items():
        build = network.ours if way.who == OURS else network.plain
        trained = build(_case()).model.trainable_variables
        found.append(sorted(tuple(variable.shape) for variable in trained))
    assert len(found[0]) == 9 and found == [found[0]] * len(ways)


def test_every_way_on_a_gpu():
    """The paper's op has no XLA kernel."""
    names = [str(way) for way in van_de_wolfshaar.ways("GPU")]
    assert names == [
        *("paper's kernels", "reshapes", "CapsulePrediction", "DigitCaps"),
        *("reshapes, XLA", "CapsulePrediction, XLA", "DigitCaps, XLA"),
        f"{OURS}, XLA, 20 steps",
    ]


def test_each_kernel_multiplies_as_often():
    """The numbers of docs/notebook/papers.md: two loads for each product."""
    page = (fresh.ROOT / "docs/notebook/papers.md").read_text()
    batch, i = van_de_wolfshaar.SIZES["batch"], van_de_wolfshaar.LAYER["in_caps"]
    j, d, k = (van_de_wolfshaar.LAYER[n] for n in ("out_caps", "out_dim", "in_dim"))
    for name, elements, products in (
        ("predictions", batch * i * j * d, k),
        ("gradient of the input", batch * i * k, j * d),
        ("gradient of the weights", i * j * d * k, batch),
    ):
        loads = 2 * elements * products
        assert f"| {name} | {elements:,} | {products} | {loads:,} |" in page


@pytest.mark.slow
def test_bench_without_a_gpu(tmp_path, capsys, monkeypatch):
    """The CPU's tables need neither a GPU nor the library of the studies."""
    small = {"in_caps": 6, "out_caps": 3, "out_dim": 4, "in_dim": 4}
    for name, value in (
        *(("BATCHES", (2,)), ("LAYER", small)),
        *(("SIZES", _SIZES), ("NETWORK", _NETWORK)),
    ):
        monkeypatch.setattr(van_de_wolfshaar, name, value)
    for module in (measure, training):
        monkeypatch.setitem(module._SAMPLE_SECONDS, "CPU", 0.01)
    arguments = ["--paper", "van_de_wolfshaar", "--device", "CPU"]
    arguments += ["--repeat", "2", "--output", str(tmp_path)]
    assert papers.main(arguments) == 0
    printed = capsys.readouterr().out
    made = json.loads((tmp_path / "papers.json").read_text())
    results = made["papers"]["van_de_wolfshaar"]
    assert [result["part"] for result in results] == ["layer", "training"]
    ways = [str(way) for way in van_de_wolfshaar.ways("CPU")]
    expected = [["reshapes", "reshapes, XLA", OURS], ways]
    for result, names in zip(results, expected, strict=True):
        assert list(result["methods"]) == names
        for method in result["methods"].values():
            cells = method.get("cells", [method])
            assert [cell["samples"] for cell in cells] == [2] * len(cells)
    for text in ("forward, 2", "backward, 2", "DigitCaps", "models.capsnet"):
        assert text in printed
    assert (
        (tmp_path / "papers_van_de_wolfshaar.png").read_bytes().startswith(b"\x89PNG")
    )


def test_tables_and_chart_show_what_was_measured(tmp_path):
    step = {"median_us": 1500.0, "busy_us": 1234.5, "launches": 67.5}
    methods = {"reshapes": step, f"{OURS}, XLA, 20 steps": {"error": "no memory"}}
    steps = training.result_entry(_case(), "GPU", "float32", methods)
    cells = [{"ms": 0.25}, {"error": "out of memory"}]
    layer = {"device": "CPU:0", "columns": ["forward, 1", "backward, 1"]}
    layer["methods"] = {"reshapes": {"cells": cells, "error": "why"}}
    layer["methods"][OURS] = {"cells": [{"ms": 12.34}, {"ms": 123.4}]}
    shared = {"run": {"command": "any"}}
    results = [
        {**steps, "part": "training", **shared},
        {**layer, "part": "layer", **shared},
    ]
    found = dict(van_de_wolfshaar.tables(results))
    made = found["papers_van_de_wolfshaar_training_gpu"]
    assert made["columns"] == ["training step", "ms a step", "GPU busy, ms", "launches"]
    assert made["rows"] == [
        ["reshapes", "**1.500**", "1.234", "67.50"],
        ["`models.capsnet`, XLA, 20 steps", "cannot run", "", ""],
    ]
    made = found["papers_van_de_wolfshaar_layer_cpu"]
    assert made["rows"] == [
        ["reshapes", "**0.250**", "no memory"],
        ["CapsulePrediction", "12.3", "**123**"],
    ]
    van_de_wolfshaar.draw(results, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
