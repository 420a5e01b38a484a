# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains a network of the benchmark through Keras' `fit`, in one of several ways."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import time
import warnings
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from tf_capsops.bench import cases, report
from tf_capsops.bench.networks import NETWORKS, Network, Trainee
from tf_capsops.models import Unrolled

PLAIN = "plain Keras"
_BATCHES = 20  # in the data set
_SEED = 20171026
_POLICIES = {"float16": "mixed_float16", "bfloat16": "mixed_bfloat16"}


@dataclasses.dataclass(frozen=True)
class Method:
    """One way to train a network."""

    who: str
    jit: bool
    steps: int

    def __str__(self) -> str:
        xla = ", XLA" if self.jit else ""
        return f"{self.who}{xla}" + (f", {self.steps} steps" if self.steps > 1 else "")


class LeftOut(Exception):
    """A method is not measured; the text says why."""


class _Clock(keras.callbacks.Callback):
    """Takes the seconds of every epoch, up to the metrics at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch, logs=None):
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(time.perf_counter() - self._start)


class Fit:
    """A compiled network and its data; by default the benchmark's of the case."""

    def __init__(
        self,
        case: cases.Case,
        method: Method,
        kind: str,
        network: Network | None = None,
    ) -> None:
        network = network or NETWORKS[case.name]
        build = network.ours if method.who == report.OURS else network.plain
        trainee = build(case)
        self._model = trainee.model
        self._model.groups_steps = method.steps > 1  # else `fit` chooses
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where Keras goes on without XLA
            self._model.compile(
                keras.optimizers.Adam(),
                steps_per_execution=method.steps,
                jit_compile=method.jit,
                **trainee.compiling,
            )
        if self._model.jit_compile != method.jit:
            raise LeftOut("it has layers that Keras does not compile with XLA")
        self._batches = _batches(case, network, trainee, kind)

    def seconds(self, steps: int, epochs: int) -> list[float]:
        """Trains, and returns the seconds of every epoch."""
        clock = _Clock()
        self._model.fit(
            self._batches,
            epochs=epochs,
            steps_per_epoch=steps,
            shuffle=False,
            verbose=0,
            callbacks=[clock],
        )
        return clock.seconds


def _batches(
    case: cases.Case, network: Network, trainee: Trainee, kind: str
) -> tf.data.Dataset:
    batch = case.sizes["batch"]
    rng = np.random.default_rng(_SEED)
    drawn = network.draw(case, _BATCHES * batch, rng)
    with tf.device("CPU:0"):
        samples = tf.data.Dataset.from_tensor_slices(drawn)
    batches = samples.batch(batch, drop_remainder=True).map(trainee.arrange)
    batches = batches.cache().repeat()
    if kind == "GPU" and not isinstance(trainee.model, Unrolled):
        # Ours copies batches ahead by itself.
        return batches.apply(tf.data.experimental.prefetch_to_device("/GPU:0", 20))
    return batches.prefetch(tf.data.AUTOTUNE)


@contextlib.contextmanager
def scope(dtype: str, kind: str) -> Iterator[None]:
    """Makes networks of one type on one device, and frees at its end what they took."""
    device = tf.device("CPU:0") if kind == "CPU" else contextlib.nullcontext()
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(_POLICIES.get(dtype, dtype))
    try:
        with device:
            yield
    finally:
        keras.backend.clear_session()
        keras.config.set_dtype_policy(policy)
        gc.collect()
