# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The claim of van de Wolfshaar, "Cuda, TensorFlow And Capsule Networks".

"Training with the custom op runs somewhat slower than training with the transpose and
reshape hacking": the paper's op, ours and the reshapes, for the paper's layer alone,
and in training steps of its network, measured as `tf-capsops bench` does.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import keras
import tensorflow as tf
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import tf_capsops
from benchmarks.papers import chart, outcome, report, studies
from tf_capsops import layers
from tf_capsops.bench import cases, measure, networks, plain_networks, training
from tf_capsops.bench.fitting import Method
from tf_capsops.bench.report import OURS
from tf_capsops.bench.suites import capsule_prediction

OP = "CapsulePrediction"
DEVICES = ("CPU", "GPU")
BATCHES = (1, 10, 100)
LAYER = {"in_caps": 1152, "out_caps": 10, "out_dim": 16, "in_dim": 8}
# Its code trains with batches of 100.
SIZES = {"batch": 100, "in_height": 28, "in_width": 28, "channels": 1, "classes": 10}
NETWORK = {
    "filters": 256,
    "kernel_size": 9,
    "primary_channels": 32,
    "primary_dim": 8,
    "primary_kernel_size": 9,
    "primary_strides": 2,
    "capsule_dim": 16,
    "routing_iterations": 4,  # once more than its `routing_iters`
    "decoder_units": (512, 1024),
    "reconstruction_weight": 0.0005,  # the paper takes 0.001 of half the squares
}
_DECODER = "decoder_units", "reconstruction_weight"

PAPER, RESHAPES = "paper's kernels", "reshapes"
_STEPS = {"forward": measure.forward_step, "backward": measure.gradient_step}


def predictions(kind: str) -> dict[str, Callable[..., tf.Tensor]]:
    """Returns the ways to predict output capsules on a type of device, by name."""
    theirs = {PAPER: studies.capsule_prediction} if kind == "GPU" else {}
    reshapes = capsule_prediction.SUITE.rivals["matmul"]
    return {**theirs, RESHAPES: reshapes, OP: tf_capsops.capsule_prediction}


class RoutedPredictions(keras.layers.Layer):
    """The paper's `digit_caps`, whose predictions are computed in a given way."""

    def __init__(self, predict, num_capsules, capsule_dim, updates):
        super().__init__()
        self._predict, self._updates = predict, updates
        self._shape = num_capsules, capsule_dim

    def build(self, input_shape):
        _, in_caps, in_dim = input_shape
        shape = (in_caps, *self._shape, in_dim)
        self.kernel = self.add_weight(shape=shape, initializer="glorot_uniform")

    def call(self, incoming):
        u_hat = self._predict(incoming, tf.convert_to_tensor(self.kernel))
        logits = tf.zeros(tf.shape(u_hat)[:3], u_hat.dtype)

        def capsules():
            shares = tf.nn.softmax(logits, axis=2)
            return tf_capsops.squash(tf.reduce_sum(shares[..., None] * u_hat, axis=1))

        for _ in range(self._updates):
            logits += tf.reduce_sum(capsules()[:, None] * u_hat, axis=3)
        return capsules()

    def compute_output_shape(self, input_shape):
        return (input_shape[0], *self._shape)


def _network(digit_capsules: Callable) -> networks.Network:
    """Returns the paper's network with one way to make its digit capsules."""

    def build(case):
        encoder = {**case.attributes}
        updates, dim = encoder.pop("routing_iterations") - 1, encoder.pop("capsule_dim")
        decoder = {name: encoder.pop(name) for name in _DECODER}
        images = keras.Input(plain_networks.image_shape(case), name="images")
        children = plain_networks.primary_capsules(images, **encoder)
        digits = digit_capsules(
            children, case.sizes["classes"], dim, routing_iters=updates
        )
        return plain_networks.with_decoder(case, images, digits, **decoder)

    return networks.Network(build, build, networks.NETWORKS["capsnet"].draw)


def routed(predict: Callable) -> Callable:
    """Returns the paper's `digit_caps` by one way to predict."""

    def digit_caps(incoming, n_digit_caps, dim_digit_caps, routing_iters=3):
        layer = RoutedPredictions(predict, n_digit_caps, dim_digit_caps, routing_iters)
        return layer(incoming)

    return digit_caps


def ways(kind: str) -> dict[Method, networks.Network]:
    """Returns the ways to train on a type of device, and their networks.

    The last is our network of the same layers, trained as `tf-capsops train` does.
    """
    found = {name: routed(predict) for name, predict in predictions(kind).items()}
    found["DigitCaps"] = layers.digit_caps
    made = {name: _network(digits) for name, digits in found.items()}
    jits = (False, True) if kind == "GPU" else (False,)  # docs/training.md says why
    chosen = {
        Method(name, jit, 1): network
        for jit in jits
        for name, network in made.items()
        if not (jit and name == PAPER)  # XLA has no kernels of theirs
    }
    ours = Method(OURS, jit=True, steps=20) if kind == "GPU" else Method(OURS, False, 1)
    return {**chosen, ours: networks.NETWORKS["capsnet"]}


def _tensors(batch: int) -> measure.Arguments:
    """Draws the output's gradient, the input and the weights of the layer."""
    sizes = {"batch": batch, **LAYER}
    axes = (
        ("batch", "in_caps", "out_caps", "out_dim"),
        ("batch", "in_caps", "in_dim"),
        ("in_caps", "out_caps", "out_dim", "in_dim"),
    )
    return tuple(tf.random.uniform([sizes[a] for a in each], -1, 1) for each in axes)


def _compare(batch: int, device: str, repeat: int) -> dict[str, dict[str, dict]]:
    """Returns a cell for each direction and method."""
    with tf.device(device):
        first = _tensors(batch)
        size = 4 * sum(tensor.shape.num_elements() for tensor in first)
        more = measure.set_count(device, size) - 1
        sets = [first, *(_tensors(batch) for _ in range(more))]
    cells = {}
    for direction, make in _STEPS.items():
        found = predictions(measure.device_type(device))
        steps = {name: make(compute) for name, compute in found.items()}
        ours = steps.pop(OP)
        steps |= {f"{RESHAPES}, XLA": measure.compiled(steps[RESHAPES]), OURS: ours}
        taken = [each[1:] if direction == "forward" else each for each in sets]
        chains = {n: measure.Chain(s, taken, device) for n, s in steps.items()}
        timings = measure.compare(chains, repeat)
        cells[direction] = {n: outcome.cell(timing) for n, timing in timings.items()}
    return cells


def _of_layer(device: str, repeat: int) -> Iterator[dict]:
    """Yields one result: a method's cells are those of each direction by batch."""
    taken = [_compare(batch, device, repeat) for batch in BATCHES]
    headings = [f"{d}, {b}" for d in _STEPS for b in BATCHES]
    methods = {
        name: outcome.row(
            "cell", [each[d][name] for d in _STEPS for each in taken], headings
        )
        for name in taken[0]["forward"]
    }
    yield {"columns": headings, "methods": methods}


def _of_network(device: str, repeat: int) -> Iterator[dict]:
    """Yields training steps, as `tf-capsops bench --suite training` does."""
    kind = measure.device_type(device)
    case = cases.Case("paper_network", SIZES, (), (kind,), NETWORK)
    entries = {
        str(method): training.attempt(case, method, "float32", kind, repeat, network)
        for method, network in ways(kind).items()
    }
    yield training.result_entry(case, kind, "float32", entries)


PARTS = {"layer": _of_layer, "training": _of_network}


def _label(name: str, ours: str) -> str:
    """Returns a method's name as tables show it: what of ours it is."""
    plain, _, way = name.partition(", ")
    return ", ".join([ours if plain == OURS else plain, *([way] if way else [])])


def _layer_table(result: Mapping | None) -> tuple[list[str], list[list[str]]]:
    if result is None:
        return ["ms, by batch", *(f"{d}, {b}" for d in _STEPS for b in BATCHES)], []
    rows = [
        [_label(name, OP), *map(outcome.shown, row["cells"])]
        for name, row in result["methods"].items()
    ]
    outcome.bold_least(rows, range(1, 1 + len(result["columns"])))
    return ["ms, by batch", *result["columns"]], rows


def _training_table(result: Mapping | None) -> tuple[list[str], list[list[str]]]:
    methods = result["methods"] if result else {}
    names = [_label(name, "`models.capsnet`") for name in methods]
    return outcome.steps(names, methods.values())


_TABLES = {"layer": _layer_table, "training": _training_table}


def tables(results: Sequence[Mapping]) -> Iterator[tuple[str, dict]]:
    """Yields the table of each part, for each type of device."""
    for part, make in _TABLES.items():
        for kind in ("GPU", "CPU"):
            result = report.newest(report.on(kind, results), part=part)
            columns, rows = make(result)
            name = f"papers_van_de_wolfshaar_{part}_{kind.lower()}"
            yield name, report.table(columns, rows, [result], OP)


def _draw(panel, result: Mapping) -> None:
    """Draws training steps, and in them what the GPU computes, where that is known."""
    methods = {
        _label(name, "models.capsnet"): method
        for name, method in result["methods"].items()
        if "median_us" in method
    }
    steps = [method["median_us"] / 1e3 for method in methods.values()]
    bars = panel.barh(list(methods), steps, color="tab:blue", alpha=0.4, label="a step")
    panel.bar_label(bars, [outcome.shown({"ms": ms}) for ms in steps], padding=3)
    if all("busy_us" in method for method in methods.values()):
        busy = [method["busy_us"] / 1e3 for method in methods.values()]
        panel.barh(list(methods), busy, color="tab:blue", label="the GPU computes")
        panel.legend(loc="lower right")
    panel.invert_yaxis()
    panel.set_xlabel("milliseconds")
    panel.set_title(f"{result['device']}, batch {result['sizes']['batch']}")
    panel.margins(x=0.15)


def draw(results: Sequence[Mapping], path: pathlib.Path) -> None:
    """Draws the training steps to a PNG file, a panel for each device."""
    steps = [result for result in results if result["part"] == "training"]
    figure = Figure(figsize=(7 * max(1, len(steps)), 4), layout="constrained")
    FigureCanvasAgg(figure)
    for place, result in enumerate(steps, 1):
        _draw(figure.add_subplot(1, len(steps), place), result)
    figure.savefig(path, dpi=chart.DPI)
