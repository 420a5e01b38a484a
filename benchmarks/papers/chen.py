# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Table 1 of Chen et al., "How to Accelerate Capsule Convolutions in Capsule Networks".

The sizes of its network, its Figure 3, are not in the text. Measured are two of five
capsule convolutions for MNIST: that which the authors published with their code
(CAFFE-CapsNet, examples/mnist/new_capsule_train.prototxt, with its batch of 128), and
one of the same images and channels whose poses are all 4x4. Then follow the paper's
outlook, networks of 50 and 100 layers: `chen_depth`.
"""

from __future__ import annotations

import functools
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence

import tensorflow as tf

from benchmarks.papers import chart, chen_depth, outcome, report, studies
from tf_capsops.__main__ import make_parser
from tf_capsops.bench import cases, measure, training
from tf_capsops.bench.suites import capsule_conv

OP = "CapsuleConv"
DEVICES = ("GPU",)
BATCH = 128
# A layer's image, kernel, stride, in and out channels, and pose rows, inner, columns.
_PUBLISHED_NETWORK = (
    (28, 3, 2, 1, 1, (1, 1, 32)),
    (13, 3, 1, 1, 4, (4, 8, 16)),
    (11, 3, 2, 4, 8, (4, 16, 8)),
    (5, 3, 1, 8, 4, (4, 8, 16)),
    (3, 3, 1, 4, 10, (4, 16, 8)),
)
NETWORKS = {
    "as published": _PUBLISHED_NETWORK,
    "with 4x4 poses": tuple((*layer[:-1], (4, 4, 4)) for layer in _PUBLISHED_NETWORK),
}
# On a TITAN X (Pascal): forward, backward, in milliseconds.
PUBLISHED = {"gemms": (650, 1570), "official": (170, 340), "custom": (170, 350)}
NAMES = {
    "gemms": "GPU: a call for each product",
    "official": "official APIs: strided batch",
    "custom": "custom APIs: parallel for",
}
OURS = "tf_capsops"
# A launch for each product, millions a batch: timed once, on a few of the samples. Its
# time follows the number of launches, so it is multiplied up to the whole batch.
_SLOW, _SLOW_SAMPLES = "gemms", 8
# Calls in a graph of the authors' schemes. Each takes milliseconds, so that starting a
# graph counts for nothing.
_FEW_CALLS = 4


def _methods(stride: int) -> dict:
    """Returns ways to compute a layer; those with XLA in the name will be compiled."""
    moved = {"strides": (stride, stride), "padding": "VALID", "dilations": (1, 1)}
    found = {
        name: functools.partial(studies.capsule_conv2d, kernel=name, **moved)
        for name in studies.CHEN
    }
    fold = functools.partial(capsule_conv.SUITE.rivals["fold"], **moved)
    ours = functools.partial(capsule_conv.SUITE.ours, **moved)
    return {**found, OURS: ours, "TF fold": fold, "TF fold, XLA": fold}


def _tensors(layer: tuple, batch: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Draws the output's gradient, the input and the weights of a layer."""
    image, kernel, stride, channels, out_channels, (rows, inner, columns) = layer
    out = (image - kernel) // stride + 1
    shapes = (
        (batch, out, out, out_channels, rows, columns),
        (batch, image, image, channels, rows, inner),
        (kernel, kernel, channels, out_channels, inner, columns),
    )
    return tuple(tf.random.uniform(shape, -1, 1) for shape in shapes)


def products(network: tuple) -> int:
    """Returns how many matrices a network multiplies forward."""
    total = 0
    for image, kernel, stride, channels, out_channels, _ in network:
        out = (image - kernel) // stride + 1
        total += BATCH * (out * kernel) ** 2 * channels * out_channels
    return total


def _seconds_once(step, arguments: tuple) -> float:
    tf.test.experimental.sync_devices()
    start = time.perf_counter()
    step(*arguments)
    tf.test.experimental.sync_devices()
    return time.perf_counter() - start


def _measure_slow(compute, layer: tuple, device: str) -> tuple[float, float]:
    """Returns a batch's seconds forward, and forward with backward, from one run."""
    with tf.device(device):
        one, few = _tensors(layer, 1), _tensors(layer, _SLOW_SAMPLES)
        training = measure.training_step(compute)
        _seconds_once(training, one)
        forward = _seconds_once(measure.forward_step(compute), few[1:])
        taken = forward, _seconds_once(training, few)
        return tuple(seconds * BATCH / _SLOW_SAMPLES for seconds in taken)


def _measure_layer(layer: tuple, device: str, repeat: int) -> dict[str, tuple | str]:
    """Returns the seconds forward, and forward with backward, of every method."""
    methods = _methods(stride=layer[2])
    found = {_SLOW: _measure_slow(methods.pop(_SLOW), layer, device)}
    size = 4 * sum(tensor.shape.num_elements() for tensor in _tensors(layer, BATCH))
    with tf.device(device):
        number = measure.set_count(device, size)
        sets = [_tensors(layer, BATCH) for _ in range(number)]
    timings = []
    for make, arguments in (
        (measure.forward_step, [one[1:] for one in sets]),
        (measure.training_step, sets),
    ):
        steps = {name: make(compute) for name, compute in methods.items()}
        steps = {
            name: measure.compiled(step) if name.endswith("XLA") else step
            for name, step in steps.items()
        }
        chains = {
            name: measure.Chain(
                step, arguments, device, _FEW_CALLS if name in studies.CHEN else None
            )
            for name, step in steps.items()
        }
        timings.append(measure.compare(chains, repeat))
    for name in methods:
        both = [timing[name] for timing in timings]
        errors = [timing for timing in both if isinstance(timing, str)]
        found[name] = errors[0] if errors else tuple(t.median for t in both)
    return found


def _layers(device: str, repeat: int) -> Iterator[dict]:
    """Yields a result for each network: milliseconds, the layers' medians added up."""
    for name, network in NETWORKS.items():
        layers = [_measure_layer(layer, device, repeat) for layer in network]
        rows = {}
        for method in layers[0]:
            taken = [layer[method] for layer in layers]
            errors = [seconds for seconds in taken if isinstance(seconds, str)]
            if errors:
                rows[method] = {"error": errors[0]}
                continue
            forward, total = (1e3 * sum(seconds) for seconds in zip(*taken))
            rows[method] = {
                "total_ms": total,
                "forward_ms": forward,
                "backward_ms": total - forward,
                "layers_ms": [[1e3 * s for s in seconds] for seconds in taken],
            }
        if "error" not in rows[_SLOW]:
            rows[_SLOW]["samples"] = _SLOW_SAMPLES
        yield {
            "network": name,
            "batch": BATCH,
            "layers": [list(layer) for layer in network],
            "products": products(network),
            "methods": rows,
        }


def _training(device: str, repeat: int) -> Iterator[dict]:
    """Yields a training step of the network, as `tf-capsops bench` measures it."""
    given = ["--suite", cases.TRAINING, "--model", "p_capsnet-chen"]
    given += ["--steps-per-execution", "20", "--repeat", str(repeat)]
    given += ["--device", measure.device_type(device)]
    options = make_parser().parse_args(["bench", *given])
    yield from training.run(options)


_TRAINING_COLUMNS = {
    "ms a step": ("median_us", 1e3),
    "images a second": ("images_per_second", 1),
    **outcome.STEP_COLUMNS,
}
PARTS = {
    "layers": _layers,
    "training": _training,
    "depth": chen_depth.run,
    "depth_xla": chen_depth.run_compiled,
}


def _name(method: str) -> str:
    return NAMES.get(method, outcome.name(method, OP))


def _table(network: str, results: Sequence[Mapping]) -> dict:
    """Returns the paper's columns: ours, and the published ones of its own network."""
    result = report.newest(results, network=network)
    is_theirs = network == "as published"
    rows = []
    for name in result["methods"] if result else PUBLISHED:
        line = [_name(name)]
        row = result["methods"][name] if result else {}
        if "error" in row:
            line += ["cannot run", "", ""]
        else:
            ours = (row.get(f"{way}_ms") for way in ("total", "forward", "backward"))
            line += map(outcome.number, ours)
        if is_theirs:
            theirs = PUBLISHED.get(name, ())
            line += [f"{ms:,}" for ms in (sum(theirs), *theirs)] if theirs else [""] * 3
        rows.append(line)
    outcome.bold_least(rows, (1, 2, 3))
    columns = [f"ms, layers {network}", "total", "forward", "backward"]
    columns += ["TITAN X", "forward", "backward"] if is_theirs else []
    return report.table(columns, rows, [result], OP)


def _training_table(results: Sequence[Mapping]) -> dict:
    """Returns time, launches and memory of a training step."""
    result = report.newest(results, part="training")
    methods = result["methods"] if result else {}
    names = [
        outcome.name(name.removesuffix(", 20 steps"), OP).replace("`", "")
        for name in methods
    ]
    columns, rows = outcome.steps(names, methods.values(), _TRAINING_COLUMNS)
    return report.table(columns, rows, [result], OP)


def tables(results: Sequence[Mapping]) -> Iterator[tuple[str, dict]]:
    """Yields Table 1 for each network, training steps, and deep networks."""
    for name, network in zip(("papers_chen", "papers_chen_4x4"), NETWORKS):
        yield name, _table(network, results)
    yield "papers_chen_training", _training_table(results)
    yield "papers_chen_depth", chen_depth.table(results)


def _draw_times(panel, results: Sequence[Mapping]) -> None:
    """Draws how long each method takes, and how long the paper says, as bars."""
    published, *_ = NETWORKS
    result = report.newest(results, network=published)
    rows = result["methods"] if result else {name: {} for name in PUBLISHED}
    for place, name in enumerate(rows):
        panel.barh(place - 0.2, rows[name].get("total_ms", 0), 0.4, color="tab:blue")
        panel.barh(place + 0.2, sum(PUBLISHED.get(name, ())), 0.4, color="tab:orange")
    panel.barh(0, 0, color="tab:blue", label="here")
    panel.barh(0, 0, color="tab:orange", label="published")
    panel.set_yticks(range(len(rows)), [_name(name) for name in rows])
    panel.invert_yaxis()
    panel.set_xscale("log")
    panel.set_xlim(left=0.1)
    panel.set_xlabel("milliseconds, forward and backward")
    panel.set_title("Table 1", fontsize="medium")
    panel.grid(alpha=0.3, axis="x")
    panel.legend(fontsize="x-small")


def draw(results: Sequence[Mapping], path: pathlib.Path) -> None:
    """Draws Table 1 as bars, and the losses of deep networks, to a PNG file."""
    figure, [[left, right]] = chart.figure(1, 2)
    _draw_times(left, results)
    chen_depth.draw(results, right)
    figure.savefig(path, dpi=chart.DPI)
