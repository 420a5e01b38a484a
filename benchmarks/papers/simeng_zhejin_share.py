# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The share of the module of Simeng and Zhejin in the step of a network.

The paper says about a half, of a typical network that it does not name. Here it is
ResNet-50, for images of the paper's size, with the module in front of it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence

import keras
import tensorflow as tf

from benchmarks.papers import outcome, report
from benchmarks.papers.simeng_zhejin_methods import (
    CHANNELS,
    IMAGE,
    NHWC,
    Method,
    generator,
    methods,
    module,
)
from tf_capsops.bench import measure
from tf_capsops.bench.report import OURS

BATCH, CLASSES = 64, 1000
_WITHOUT, _SECONDS = "no module", 0.3


def _in_front(method: Method | None, images, *weights) -> tf.Tensor:
    """Applies the module to images with channels last."""
    if method is None:
        return images
    is_last = method.layout == NHWC
    images = images if is_last else tf.transpose(images, [0, 3, 1, 2])
    output = module(method, "GPU")(images, *weights)
    return output if is_last else tf.transpose(output, [0, 2, 3, 1])


def _step(network: keras.Model, method: Method | None, images, labels, *weights):
    """Returns the gradients of a step in the images and in all weights."""
    with tf.GradientTape() as tape:
        tape.watch([images, *weights])
        logits = network(_in_front(method, images, *weights), training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.reduce_mean(losses)
    sources = [images, *network.trainable_variables]
    sources += weights if method else ()
    return tuple(tf.convert_to_tensor(g) for g in tape.gradient(loss, sources))


def run(device: str, repeat: int) -> Iterator[dict]:
    """Yields the times of a step with each method's module, and without it."""
    if measure.device_type(device) == "CPU":
        return
    tried = {n: m for n, m in methods("GPU").items() if not m.xla and n != OURS}
    with tf.device(device):
        network = keras.applications.ResNet50(
            weights=None, classes=CLASSES, classifier_activation=None
        )
        images = tf.random.uniform((BATCH, *IMAGE, CHANNELS))
        labels = tf.random.uniform((BATCH,), 0, CLASSES, tf.int32)
        arguments = (images, labels, *generator())
    chains = {
        name: measure.Chain(
            functools.partial(_step, network, method),
            [arguments],
            device,
            length=1,
            seconds=_SECONDS,
        )
        for name, method in {_WITHOUT: None, **tried}.items()
    }
    timings = measure.compare(chains, repeat)
    yield {
        "batch": BATCH,
        "methods": {name: outcome.cell(timing) for name, timing in timings.items()},
    }


def table(results: Sequence[Mapping]) -> dict:
    """Returns milliseconds of a step, and the module's share in it."""
    result = report.newest(results, part="share")
    rows = [["the paper's network", "", "", "about 50%"]]
    for name, cell in (result["methods"] if result else {}).items():
        base = result["methods"][_WITHOUT]
        more, share = "", ""
        if name != _WITHOUT and "ms" in cell and "ms" in base:
            more = outcome.number(cell["ms"] - base["ms"])
            share = f"{1 - base['ms'] / cell['ms']:.0%}"
        label = name if name == _WITHOUT else outcome.name(name, "HighOrderConv")
        rows.append([label, outcome.shown(cell), more, share])
    columns = [f"ResNet-50, batch {BATCH}", "ms a step", "the module's", "share"]
    return report.table(columns, rows, [result], "HighOrderConv")
