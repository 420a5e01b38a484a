# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The paper on high-order convolution: its three implementations, its measurement."""

import json

import numpy as np
import pytest
import tensorflow as tf
from cuda_studies import on_gpus, with_library
from reference import high_order_conv as reference
from rich.console import Console
from tolerances import assert_close

from benchmarks.papers import __main__ as papers
from benchmarks.papers import outcome, pad_slice_multiply, simeng_zhejin, studies
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
    """docs/papers.md: of one GPU of a K80, and with a batch of 512 many times so."""
    for place, direction in enumerate(simeng_zhejin.DIRECTIONS):
        published = simeng_zhejin.PUBLISHED["GPU"]["cuda"][place] / 1e3
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


@pytest.mark.slow
def test_bench_without_a_gpu(tmp_path, capsys, monkeypatch):
    """The CPU's charts need neither a GPU nor the library of the studies."""
    monkeypatch.setattr(simeng_zhejin, "IMAGE", (6, 5))
    monkeypatch.setattr(simeng_zhejin, "BATCHES", {"CPU": (1, 2)})
    arguments = ["--op", "HighOrderConv", "--device", "CPU"]
    arguments += ["--repeat", "2", "--output", str(tmp_path)]
    assert papers.main(arguments) == 0
    printed = capsys.readouterr().out
    report = json.loads((tmp_path / "papers.json").read_text())
    assert set(report) >= {"command", "versions", "simeng_zhejin"}
    assert "vaidya" not in report
    results = report["simeng_zhejin"]
    assert [result["direction"] for result in results] == ["forward", "backward"]
    names = ["python", "cpp", "python, XLA", OURS, f"{OURS}, NHWC"]
    for result in results:
        assert list(result["methods"]) == names
        for name, row in result["methods"].items():
            assert name in printed
            assert [cell["samples"] for cell in row["cells"]] == [2, 2]
            assert min(cell["ms"] for cell in row["cells"]) > 0
    assert (tmp_path / "simeng_zhejin.png").read_bytes().startswith(b"\x89PNG")


def test_too_little_memory_is_said(monkeypatch):
    monkeypatch.setattr(simeng_zhejin, "IMAGE", (10**6, 10**6))
    text = simeng_zhejin._too_large("python", "backward", 8, "CPU:0")
    assert text.startswith("not tried, takes 24800000 GB of memory and ")
    assert not simeng_zhejin._too_large("cpp", "backward", 8, "CPU:0")


def test_table_shows_both_sides(tmp_path):
    cells = [{"ms": 0.5, "samples": 5}, {"error": "out of memory"}]
    rows = {"python": outcome.row("batch", cells, (8, 512))}
    rows["cuda"] = outcome.row("batch", [{"ms": 1.25}, {"ms": 123.4}], (8, 512))
    rows["cuda, not waited for"] = {"cells": [{"ms": 0.03125}, {"ms": 0.03}]}
    result = {
        "device": "GPU:0",
        "direction": "backward",
        "batches": [8, 512],
        "methods": rows,
        "published_ms": {"cuda": 1.29},
        "k80_least_ms": [0.4, 25.25],
    }
    console = Console(width=120)
    with console.capture() as capture:
        console.print(simeng_zhejin.table(result))
    for text in ("0.500", "no memory", "123", "0.031", "1.29", "25.2", "python: batch"):
        assert text in capture.get()
    simeng_zhejin.draw([result], tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
