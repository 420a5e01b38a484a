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
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich import box
from rich.table import Table

from benchmarks.papers import chen_depth, studies
from tf_capsops.bench import measure
from tf_capsops.bench.suites import capsule_conv

OP = "CapsuleConv"
DEVICES = ("GPU",)
BATCH = 128
# By layer: image, kernel, stride, in and out channels, and pose rows, inner, columns.
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
    """Returns ways to compute a layer; a name with XLA is to be compiled."""
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


def run(device: str, repeat: int) -> Iterator[dict]:
    """Yields a result for each network: milliseconds, the layers' medians added up.

    Then it yields those of `chen_depth`.
    """
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
            if method in PUBLISHED:
                forward, backward = PUBLISHED[method]
                rows[method]["published_ms"] = [forward + backward, forward, backward]
        if "error" not in rows[_SLOW]:
            rows[_SLOW]["samples"] = _SLOW_SAMPLES
        yield {
            "network": name,
            "batch": BATCH,
            "layers": [list(layer) for layer in network],
            "products": products(network),
            "methods": rows,
        }
    yield from chen_depth.run(device)


def table(result: Mapping) -> Table:
    """Returns a result as a table, in the paper's columns."""
    if "depth" in result:
        return chen_depth.table(result)
    shown = Table(
        title='Chen et al., "How to Accelerate Capsule Convolutions", Table 1: '
        f"layers {result['network']}, batch {result['batch']}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    shown.add_column("", no_wrap=True)
    for whose in ("", "TITAN X"):
        for direction in ("total", "forward", "backward"):
            heading = f"{whose}\n{direction}"
            shown.add_column(heading, justify="right", no_wrap=True)
    rows = result["methods"]
    for name, row in rows.items():
        if "error" in row:
            shown.add_row(NAMES.get(name, name), "cannot run")
            continue
        taken = [row[f"{d}_ms"] for d in ("total", "forward", "backward")]
        shown.add_row(
            NAMES.get(name, name),
            *(f"{ms:.3f}" if ms < 100 else f"{ms:.0f}" for ms in taken),
            *map(str, row.get("published_ms", [])),
        )
    notes = [f"{n}: {row['error']}" for n, row in rows.items() if "error" in row]
    notes.append(
        f"milliseconds; TITAN X: as published; {result['products']:,} products "
        f"forward; {NAMES[_SLOW]}: on {_SLOW_SAMPLES} samples, multiplied up"
    )
    shown.caption, shown.caption_justify = "\n".join(notes), "left"
    return shown


def _draw_times(panel, result: Mapping) -> None:
    """Draws how long each method takes, and how long the paper says, as bars."""
    rows = {n: row for n, row in result["methods"].items() if "error" not in row}
    for place, (name, row) in enumerate(rows.items()):
        panel.barh(place - 0.2, row["total_ms"], 0.4, color="C0")
        if name in PUBLISHED:
            panel.barh(place + 0.2, sum(PUBLISHED[name]), 0.4, color="C1")
    panel.barh(0, 0, color="C0", label="measured here")
    panel.barh(0, 0, color="C1", label="published, TITAN X")
    panel.set_yticks(range(len(rows)), [NAMES.get(name, name) for name in rows])
    panel.invert_yaxis()
    panel.set_xscale("log")
    panel.set_xlabel("milliseconds, forward and backward")
    panel.set_title("Table 1: five capsule convolutions", fontsize="medium")
    panel.grid(alpha=0.3, axis="x")
    panel.legend(fontsize="x-small")


def draw(results: Sequence[Mapping], path: pathlib.Path) -> None:
    """Draws Table 1 as bars, and the losses of deep networks, to a PNG file."""
    figure = Figure(figsize=(10, 3.7), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    published, *_ = NETWORKS
    for result in results:
        if result.get("network") == published:
            _draw_times(left, result)
    chen_depth.draw([result for result in results if "depth" in result], right)
    figure.savefig(path, dpi=110)
