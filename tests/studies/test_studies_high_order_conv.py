# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The paper on high-order convolution: its three implementations, its measurement."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from cuda_studies import on_gpus, with_library
from reference import high_order_conv as reference
from tolerances import assert_close

from benchmarks.papers import __main__ as papers
from benchmarks.papers import (
    outcome,
    pad_slice_multiply,
    simeng_zhejin,
    simeng_zhejin_methods,
    simeng_zhejin_share,
    studies,
)
from tf_capsops import layers
from tf_capsops.bench import measure
from tf_capsops.bench.report import OURS

# Batch, channels, height, width; kernel.
CASES = [
    ((1, 1, 1, 1), (1, 1)),
    ((1, 1, 1, 1), (3, 3)),
    ((2, 3, 8, 8), (5, 5)),
    ((3, 5, 7, 13), (5, 5)),
    ((2, 3, 9, 1), (5, 3)),
    ((2, 4, 1, 11), (3, 5)),
    ((2, 1, 3, 4), (9, 7)),  # beyond the image on all sides
    ((1, 2, 3, 33), (1, 5)),
    ((2, 2, 31, 32), (3, 3)),
    ((1, 2, 3, 1024), (3, 3)),
    ((1, 1, 1025, 2), (3, 1)),
    ((1, 3, 64, 67), (5, 5)),
    ((0, 3, 4, 5), (3, 3)),
    ((2, 0, 4, 5), (3, 3)),
    ((2, 3, 0, 5), (3, 3)),
    ((2, 3, 4, 0), (3, 3)),
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def _stacked(inputs, weights, kernel_size):
    """Plain TensorFlow: a sum of products over all that a filter reads."""
    height, width = inputs.shape[2:]
    outside = [[size // 2] * 2 for size in kernel_size]
    padded = tf.pad(inputs, [[0, 0], [0, 0], *outside])
    reads = [
        padded[:, :, y : y + height, x : x + width]
        for y in range(kernel_size[0])
        for x in range(kernel_size[1])
    ]
    return tf.einsum("kbchw,kbhw->bchw", tf.stack(reads), weights[:, :, 0])


def _assert_close(compute, shape, kernel_size):
    """Compares output and gradients with the reference."""
    batch, _, height, width = shape
    weights_shape = kernel_size[0] * kernel_size[1], batch, 1, height, width
    rng = np.random.default_rng(0)
    tensors = [
        tf.constant(rng.uniform(-1, 1, s), tf.float32)
        for s in (shape, shape, weights_shape)
    ]
    ours, plain = (
        measure.training_step(lambda *t, c=c: c(*t, kernel_size))(*tensors)
        for c in (compute, _stacked)
    )

    def exact(grad, inputs, weights):
        grad, inputs = np.moveaxis(grad, 1, 3), np.moveaxis(inputs, 1, 3)
        filters = np.moveaxis(weights[:, :, 0], 0, 3)
        results = (
            reference.forward(inputs, filters, kernel_size),
            *reference.backward(grad, inputs, filters, kernel_size),
        )
        output, grad_inputs, grad_filters = results
        return (
            np.moveaxis(output, 3, 1),
            np.moveaxis(grad_inputs, 3, 1),
            np.moveaxis(grad_filters, 3, 0)[:, :, np.newaxis],
        )

    arrays = [tensor.numpy().astype(np.float64) for tensor in tensors]
    truths, magnitudes = exact(*arrays), exact(*map(np.abs, arrays))
    for result, truth, yardstick, magnitude in zip(ours, truths, plain, magnitudes):
        assert_close(result.numpy(), truth, yardstick.numpy(), magnitude)


@every_case
@pytest.mark.parametrize("scheme", [pad_slice_multiply.python, pad_slice_multiply.cpp])
def test_pad_slice_multiply(scheme, case, device):
    _assert_close(scheme, *case)


@on_gpus
@every_case
def test_cuda(case, gpu):
    def compute(*tensors):
        output = studies.high_order_conv2d(*tensors)
        assert output.device.endswith(gpu)
        return output

    with tf.device(gpu):
        _assert_close(compute, *case)


def _symbols(*shapes):
    return [tf.compat.v1.placeholder(tf.float32, shape) for shape in shapes]


@with_library
def test_shapes_are_inferred():
    ops = studies.load()
    with tf.Graph().as_default():
        image, weights = _symbols((None, 2, 5, 7), (15, 3, 1, None, 7))
        output = ops.high_order_conv_study(image, weights, kernel_size=(5, 3))
        assert output.shape.as_list() == [3, 2, 5, 7]
        grads = ops.high_order_conv_study_grad(
            output, image, weights, kernel_size=(5, 3)
        )
        shapes = [grad.shape.as_list() for grad in grads]
        assert shapes == [[3, 2, 5, 7], [15, 3, 1, 5, 7]]


@with_library
@pytest.mark.parametrize(
    "image, weights, text",
    [
        (
            (1, 1, 2, 1025),
            (9, 1, 1, 2, 1025),
            "HighOrderConvStudy: width must be at most 1024 (a thread each), got 1025",
        ),
        (
            (1, 1, 2, 3),
            (9, 1, 2, 2, 3),
            "HighOrderConvStudy: weights dim 2 (channels that differ) must be 1, got ",
        ),
        (
            (1, 1, 2, 3),
            (1, 9, 2, 3),
            "HighOrderConvStudy: weights must have rank 5 [kernel_positions, batch, ",
        ),
        ((1, 1, 2, 3), (8, 1, 1, 2, 3), "HighOrderConv: filters dim 1 "),
        ((1, 1, 2, 4), (9, 1, 1, 2, 3), "HighOrderConv: filters dim 3 (width) must be"),
    ],
)
def test_cuda_refuses(image, weights, text):
    """The shape function, which needs no GPU; kernels call the same rule."""
    with tf.Graph().as_default(), pytest.raises(ValueError) as caught:
        studies.high_order_conv2d(*_symbols(image, weights), (3, 3))
    assert str(caught.value).startswith(text)


def test_published_times_are_shorter_than_reading_takes():
    """docs/notebook/papers.md: one GPU of a K80 could not even read in them."""
    for direction in simeng_zhejin.DIRECTIONS:
        published = simeng_zhejin.TEXT["GPU", direction]["cuda"] / 1e3
        least = [
            simeng_zhejin.least_bytes(b, direction) / simeng_zhejin.K80_BYTES_PER_SECOND
            for b in (64, 512)
        ]
        assert least[0] > 1.5 * published and least[1] > 12 * published


def test_published_megabytes_are_those_of_a_batch_of_128():
    """Its 588 KB of input and 4900 KB of weights a sample, and its 686 MB for 512."""
    images, weights = (4 * s * 224 * 224 / 1024 for s in (3, 25))
    assert (images, weights) == (588, 4900)
    assert 128 * (images + weights) / 1024 == 686


def test_host_clock_runs_forward_then_backward():
    calls = []
    compute = {name: lambda name=name: calls.append(name) for name in ("one", "two")}
    taken = simeng_zhejin.host_clock(compute, wait=True)
    assert calls == ["one", "two"] * 6  # once to warm up
    assert set(taken) == {"one", "two"} and min(taken.values()) >= 0


def test_slow_methods_are_timed_once():
    step = measure.forward_step(tf.negative)
    chains = {
        name: measure.Chain(step, [(tf.ones(1),)], "CPU:0", length=1, seconds=0.001)
        for name in ("one", "two")
    }
    for slow, samples in ((0, 1), (60, 3)):
        outcome = measure.compare(chains, repeat=3, slow=slow)
        assert [timing.samples for timing in outcome.values()] == [samples, samples]


def test_gradient_step_leaves_out_the_output():
    step = measure.gradient_step(lambda x, y: x * y)
    results = step(tf.constant(2.0), tf.constant(3.0), tf.constant(5.0))
    assert [result.numpy() for result in results] == [10, 6]


def test_bench_without_a_gpu(tmp_path, capsys, monkeypatch):
    """The CPU's charts need neither a GPU nor the library of the studies."""
    found = simeng_zhejin_methods.methods("CPU")
    names = [OURS, f"{OURS}, NHWC"]  # the others take seconds to trace
    few = {name: found[name] for name in names}
    monkeypatch.setattr(simeng_zhejin_methods, "IMAGE", (6, 5))
    monkeypatch.setattr(simeng_zhejin, "methods", lambda kind: few)
    monkeypatch.setattr(simeng_zhejin, "BATCHES", {"CPU": (1,), "GPU": (1,)})
    monkeypatch.setattr(simeng_zhejin, "_SAMPLE_SECONDS", {"CPU": 0.001})
    arguments = ["--paper", "simeng_zhejin", "--part", "module", "share", "launches"]
    arguments += ["--device", "CPU", "--repeat", "2", "--output", str(tmp_path)]
    assert papers.main(arguments) == 0
    printed = capsys.readouterr().out
    report = json.loads((tmp_path / "papers.json").read_text())
    assert list(report["papers"]) == ["simeng_zhejin"]
    results = report["papers"]["simeng_zhejin"]
    assert [result["direction"] for result in results] == ["forward", "backward"]
    for result in results:
        assert (result["part"], result["device"]) == ("module", "CPU:0")
        assert list(result["methods"]) == names
        for row in result["methods"].values():
            assert [cell["samples"] for cell in row["cells"]] == [2]
    assert min(row["cells"][0]["ms"] for row in results[0]["methods"].values()) > 0
    for text in ("forward, batch", "HighOrderConv, NCHW", "HighOrderConv, NHWC"):
        assert text in printed
    table = report["tables"]["papers_simeng_zhejin_module_cpu_forward"]
    (run,) = table["runs"]
    assert run["command"] == (
        "python -m benchmarks.papers --paper simeng_zhejin --part module --device CPU "
        "--repeat 2"
    )
    picture = tmp_path / "papers_simeng_zhejin.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_every_method_computes_the_same_module(monkeypatch):
    """Output and gradients of the layer with a residual, whatever the layout."""
    monkeypatch.setattr(simeng_zhejin_methods, "IMAGE", (7, 6))
    rng = np.random.default_rng(0)
    images, grad = (
        rng.uniform(-1, 1, (2, 7, 6, 3)).astype(np.float32) for _ in range(2)
    )
    weights = simeng_zhejin_methods.generator()
    layer = layers.HighOrderConv2D(5)
    layer.build(images.shape)
    layer.set_weights([weight.numpy() for weight in weights])
    with tf.GradientTape() as tape:
        inputs = tf.constant(images)
        tape.watch(inputs)
        expected = layer(inputs) + inputs
    sources = [inputs, *layer.trainable_variables]
    expected = [expected, *tape.gradient(expected, sources, tf.constant(grad))]
    for method in simeng_zhejin_methods.methods("CPU").values():
        compute = simeng_zhejin_methods.module(method, "CPU")
        first = method.layout != simeng_zhejin_methods.NHWC
        axes = [0, 3, 1, 2] if first else [0, 1, 2, 3]
        found = measure.training_step(compute)(
            *(tf.transpose(t, axes) for t in (grad, images)),
            *weights,
        )
        for place, (one, wanted) in enumerate(zip(found, expected, strict=True)):
            if first and place < 2:
                one = tf.transpose(one, [0, 2, 3, 1])
            np.testing.assert_allclose(one, wanted, rtol=1e-5, atol=1e-5)


def test_too_little_memory_is_said(monkeypatch):
    monkeypatch.setattr(simeng_zhejin, "IMAGE", (10**6, 10**6))
    text = simeng_zhejin._too_large("python", 8, "CPU:0")
    assert text.startswith("not tried, takes 24800000 GB of memory and ")
    assert not simeng_zhejin._too_large("cpp", 8, "CPU:0")


def _results():
    """Yields made-up results of a GPU: a number for each method and batch."""
    batches = simeng_zhejin.BATCHES["GPU"]
    rows = {}
    for place, name in enumerate(simeng_zhejin_methods.methods("GPU")):
        cells = [{"ms": place + 0.5, "bytes": 10**8 * batch} for batch in batches]
        rows[name] = outcome.row("batch", cells, batches)
    cells = [*rows["python"]["cells"][:-1], {"error": outcome.NO_MEMORY}]
    rows["python"] = outcome.row("batch", cells, batches)
    shared = {"device": "GPU:0", "run": {"command": "any"}}
    for direction in simeng_zhejin.DIRECTIONS:
        module = {"part": "module", "direction": direction, "batches": batches}
        yield {**module, "methods": rows, **shared}
    steps = {"no module": {"ms": 60}, "python": {"ms": 90}, "cuda": {"error": "no"}}
    yield {"part": "share", "methods": steps, **shared}
    names = [f"{d}, {w}" for d in ("forward", "backward") for w in _WAITED]
    lines = {name: [0.03125] * len(batches) for name in names}
    yield {"part": "launches", "rows": lines, **shared}


_WAITED = ("not waited for", "waited for")


def test_tables_show_both_sides(tmp_path):
    results = list(_results())
    tables = dict(simeng_zhejin.tables(results))
    name = "papers_simeng_zhejin"
    rows = {row[0]: row for row in tables[f"{name}_module_gpu_backward"]["rows"]}
    assert rows["`python`"][1:3] == ["**0.500** (36)", "**0.500** (63)"]
    assert rows["`python`"][-2:] == ["no memory", "235.66"]
    assert rows["`cuda`"][-1] == "1.29"
    assert rows["HighOrderConv, NCHW"][-2:] == ["4.500", ""]
    rows = {row[0]: row for row in tables[f"{name}_memory"]["rows"]}
    assert rows["`cpp`"][1] == "0.81" and rows["`cpp`"][-2:] == ["64", "512"]
    assert rows["`python`"][-3:] == ["no memory", "64", "256"]
    rows = {row[0]: row for row in tables[f"{name}_share"]["rows"]}
    assert rows["`python`"] == ["`python`", "90.0", "30.0", "33%"]
    assert rows["`cuda`"][1:] == ["cannot run", "", ""]
    rows = {row[0]: row for row in tables[f"{name}_module_gpu_forward"]["rows"]}
    assert rows["`cuda`"][1] == "2.500 (1.0-1.15)" and rows["`cuda`"][-2] == "2.500"
    rows = {row[0]: row for row in tables[f"{name}_speedup"]["rows"]}
    assert rows["`cpp`"] == [
        *("`cpp`", "0.33 (1.03)", "0.33 (9.11)", "(1.01)", "(3.55)")
    ]
    assert rows["`cuda`"][1:3] == ["0.20 (22)", "0.20 (183)"]
    assert rows["`python`, XLA"] == ["`python`, XLA", "0.14", "0.14", "", ""]
    rows = tables[f"{name}_launches"]["rows"]
    assert [row[1] for row in rows[:3]] == ["0.031", "0.031", "0.207"]
    simeng_zhejin.draw(results, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_step_of_a_network(monkeypatch):
    """Gradients in the images, in the network's weights and in the module's."""
    network = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(4)])
    images, labels = tf.random.uniform((2, 5, 6, 3)), tf.constant([1, 3])
    weights = simeng_zhejin_methods.generator()
    method = simeng_zhejin_methods.methods("CPU")[f"{OURS}, NHWC"]
    for one, shapes in ((None, []), (method, [weight.shape for weight in weights])):
        found = simeng_zhejin_share._step(network, one, images, labels, *weights)
        assert [g.shape for g in found] == [images.shape, (90, 4), (4,), *shapes]
