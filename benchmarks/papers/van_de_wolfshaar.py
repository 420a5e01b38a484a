# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The claim of van de Wolfshaar, "Cuda, TensorFlow And Capsule Networks".

"Training with the custom op runs somewhat slower than training with the transpose and
reshape hacking": the paper's op, ours and the reshapes, at the size of the paper's
layer, and in training steps of its network. Results are those of `tf-capsops bench`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import keras
import tensorflow as tf
from rich.table import Table

import tf_capsops
from benchmarks.papers import studies
from tf_capsops import layers
from tf_capsops.bench import cases, measure, networks, plain_networks, report, training
from tf_capsops.bench.fitting import Method
from tf_capsops.bench.floor import measure_ceilings
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

PAPER = "paper's kernels"
RESHAPES = "reshapes"
# A suite of its own, so that its results are told from those of CapsulePrediction.
SUITE = dataclasses.replace(capsule_prediction.SUITE, op="CapsulePredictionStudy")
_STEPS = {"forward": measure.forward_step, "backward": measure.gradient_step}


def predictions(kind: str) -> dict[str, Callable[..., tf.Tensor]]:
    """Returns the ways to predict output capsules on a type of device, by name."""
    found = {"CapsulePrediction": tf_capsops.capsule_prediction}
    if kind == "GPU":
        found[PAPER] = studies.capsule_prediction
    return {**found, RESHAPES: SUITE.rivals["matmul"]}


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


def methods(kind: str) -> dict[Method, networks.Network]:
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
    on_gpu = kind == "GPU"
    ours = Method(report.OURS, on_gpu, 20 if on_gpu else 1)
    return {**chosen, ours: networks.NETWORKS["capsnet"]}


def _costs(case: cases.Case) -> dict[str, cases.Cost]:
    """Returns the least work forward, and of both gradients."""
    forward, both = SUITE.forward_cost(case), SUITE.training_cost(case)
    gradients = both.elements - forward.elements, both.flops - forward.flops
    return {"forward": forward, "backward": cases.Cost(*gradients)}


def _tensors(sizes: Mapping[str, int]) -> measure.Arguments:
    """Draws the output's gradient, the input and the weights."""
    axes = (
        ("batch", "in_caps", "out_caps", "out_dim"),
        ("batch", "in_caps", "in_dim"),
        ("in_caps", "out_caps", "out_dim", "in_dim"),
    )
    return tuple(tf.random.uniform([sizes[a] for a in each], -1, 1) for each in axes)


def _of_layer(device: str, repeat: int) -> Iterator[dict]:
    """Yields a result for each batch and direction of the op."""
    kind = measure.device_type(device)
    ceilings = measure_ceilings(device, tf.float32, repeat)
    entry = report.ceilings_entry(device, tf.float32, ceilings)
    found = predictions(kind)
    found = {report.OURS: found.pop("CapsulePrediction"), **found}
    for batch in BATCHES:
        case = cases.Case(f"paper_layer_b{batch}", {"batch": batch, **LAYER}, ())
        with tf.device(device):
            first = _tensors(case.sizes)
            size = 4 * sum(tensor.shape.num_elements() for tensor in first)
            more = measure.set_count(device, size) - 1
            sets = [first, *(_tensors(case.sizes) for _ in range(more))]
        for direction, make in _STEPS.items():
            steps = {name: make(compute) for name, compute in found.items()}
            steps[f"{RESHAPES}, XLA"] = measure.compiled(steps[RESHAPES])
            taken = [each[1:] if direction == "forward" else each for each in sets]
            chains = {n: measure.Chain(s, taken, device) for n, s in steps.items()}
            timings = measure.compare(chains, repeat)
            cost = _costs(case)[direction]
            floor = ceilings.seconds(cost, tf.float32.size)
            yield report.result_entry(
                SUITE, case, direction, cost, entry, floor, timings
            )


def run(device: str, repeat: int) -> Iterator[dict]:
    """Yields results of the op, and then of training steps, as `tf-capsops bench`."""
    yield from _of_layer(device, repeat)
    kind = measure.device_type(device)
    case = cases.Case("paper_network", SIZES, (), (kind,), NETWORK)
    entries = {
        str(method): training.attempt(case, method, "float32", kind, repeat, network)
        for method, network in methods(kind).items()
    }
    yield training.result_entry(case, kind, "float32", entries)


def table(result: Mapping) -> Table:
    """Returns a result as a table."""
    shown = report.training_table if result["op"] == "training" else report.table
    return shown(result)
