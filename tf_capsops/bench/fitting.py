# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains a network of the benchmark through Keras' `fit`, in one of several ways."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
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
UNTUNED_STEPS = 20  # steps of the first epoch of an untuned method
_BATCHES = 20  # number of batches in the data set
_SEED = 20171026
_POLICIES = {"float16": "mixed_float16", "bfloat16": "mixed_bfloat16"}


@dataclasses.dataclass(frozen=True)
class Method:
    """One way to train a network.

    Attributes:
        who: Whose network it is.
        jit: Keras' `jit_compile`.
        steps: Keras' `steps_per_execution`; None for a model that is compiled without
            `jit_compile` and `steps_per_execution`.
        arrays: Whether `fit` is given arrays instead of a data set.
        gpus: How many GPUs share each batch.
    """

    who: str
    jit: bool = False
    steps: int | None = None
    arrays: bool = False
    gpus: int = 1

    @property
    def execution(self) -> int:
        """The steps of the first epoch."""
        return self.steps or UNTUNED_STEPS

    @property
    def compiling(self) -> dict[str, object]:
        """The arguments of `compile` that differ between methods."""
        if self.steps is None:
            return {}
        return {"jit_compile": self.jit, "steps_per_execution": self.steps}

    def __str__(self) -> str:
        untuned = self.steps is None
        words = [self.who, "XLA" if self.jit else "", "untuned" if untuned else ""]
        words += [f"{self.steps} steps" if self.execution > 1 and self.steps else ""]
        words += ["arrays" if self.arrays else ""]
        words += [f"{self.gpus} GPUs" if self.gpus > 1 else ""]
        return ", ".join(filter(None, words))


class LeftOut(Exception):
    """A method is not measured; the text says why."""


class Clock(keras.callbacks.Callback):
    """Measures the seconds of every epoch, up to the metrics at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch, logs=None):
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(time.perf_counter() - self._start)


class Fit:
    """A compiled network and its data; by default the network of the case's name."""

    def __init__(
        self,
        case: cases.Case,
        method: Method,
        kind: str,
        network: Network | None = None,
    ) -> None:
        network = network or NETWORKS[case.name]
        build = network.ours if method.who == report.OURS else network.plain
        with _strategy(method, kind).scope():
            trainee = build(case)
            self.model = trainee.model
            self.model.groups_steps = method.steps != 1  # `fit` may group other steps
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Keras may go on without XLA
                self.model.compile(
                    keras.optimizers.Adam(), **method.compiling, **trainee.compiling
                )
        if method.steps and self.model.jit_compile != method.jit:
            raise LeftOut("it has layers that Keras does not compile with XLA")
        self._batch = case.sizes["batch"]
        drawn = network.draw(case, _BATCHES * self._batch, np.random.default_rng(_SEED))
        self._arrays = self._batches = None
        with tf.device("CPU:0"):
            if method.arrays:
                arranged = trainee.arrange(*map(tf.constant, drawn))
                self._arrays = tf.nest.map_structure(
                    lambda each: each.numpy(), arranged
                )
            else:
                self._batches = _batches(self._batch, drawn, trainee, kind, method)

    def seconds(self, steps: int, epochs: int) -> list[float]:
        """Trains, and returns the seconds of every epoch."""
        clock = Clock()
        fit = functools.partial(
            self.model.fit,
            epochs=epochs,
            shuffle=False,
            verbose=0,
            callbacks=[clock],
        )
        if self._arrays:
            samples = steps * self._batch
            x, y = tf.nest.map_structure(
                lambda each: np.resize(each, (samples, *each.shape[1:])), self._arrays
            )
            fit(x, y, batch_size=self._batch)
        else:
            fit(self._batches, steps_per_epoch=steps)
        return clock.seconds


def _strategy(method: Method, kind: str) -> tf.distribute.Strategy:
    if method.gpus == 1:
        return tf.distribute.get_strategy()
    if kind != "GPU":
        raise LeftOut(f"{kind}s do not share batches")
    seen = len(tf.config.list_logical_devices("GPU"))
    if seen < method.gpus:
        raise LeftOut(f"TensorFlow sees {seen} of {method.gpus} GPUs")
    return tf.distribute.MirroredStrategy([f"GPU:{i}" for i in range(method.gpus)])


def _batches(
    batch: int, drawn: tuple, trainee: Trainee, kind: str, method: Method
) -> tf.data.Dataset:
    samples = tf.data.Dataset.from_tensor_slices(drawn)
    batches = samples.batch(batch, drop_remainder=True).map(trainee.arrange)
    batches = batches.cache().repeat()
    ours = isinstance(trainee.model, Unrolled)  # it copies batches ahead by itself
    if kind == "GPU" and method.steps and method.gpus == 1 and not ours:
        return batches.apply(tf.data.experimental.prefetch_to_device("/GPU:0", 20))
    return batches.prefetch(tf.data.AUTOTUNE)


@contextlib.contextmanager
def scope(dtype: str, kind: str) -> Iterator[None]:
    """Builds networks of one type on one device in a block, and then frees memory."""
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
