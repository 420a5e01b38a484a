# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measures whole training steps through Keras' `fit`, as users wait for them.

A sample is an epoch of `fit` over a data set cached in memory, from its first step to
the metrics at its end, divided by its steps. `fit` has run before, so nothing is traced
or compiled within a sample. Every network is measured in plain Keras beside ours, with
and without XLA and with several numbers of `steps_per_execution`; where there is
PyTorch, so is the network that benchmarks/torch_training.py has.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import itertools
import math
import time
import warnings
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from tf_capsops.bench import cases, measure, pytorch, report, trace
from tf_capsops.bench.networks import CASES, NETWORKS, Trainee
from tf_capsops.models import Unrolled

PLAIN = "plain Keras"
_JIT = {"off": False, "on": True}
# Least seconds of a sample, by device type; most of all samples of a method together.
_SAMPLE_SECONDS = {"CPU": 0.5, "GPU": 0.3}
_METHOD_SECONDS = 10
# Seconds of a step from which on Keras' few milliseconds for an execution do not show.
_SLOW_STEP = 0.1
_BATCHES = 20  # in the data set
_SEED = 20171026
_POLICIES = {"float16": "mixed_float16", "bfloat16": "mixed_bfloat16"}
_TORCH = "torch_training.py"


@dataclasses.dataclass(frozen=True)
class Method:
    """One way to train a network."""

    who: str
    jit: bool
    steps: int

    def __str__(self) -> str:
        xla = ", XLA" if self.jit else ""
        return f"{self.who}{xla}" + (f", {self.steps} steps" if self.steps > 1 else "")


class _LeftOut(Exception):
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


class _Fit:
    """A compiled network and its data."""

    def __init__(self, case: cases.Case, method: Method, kind: str) -> None:
        network = NETWORKS[case.name]
        build = network.ours if method.who == report.OURS else network.plain
        trainee = build(case)
        self._model = trainee.model
        self._model.groups_steps = False  # `method.steps` says how many
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where Keras goes on without XLA
            self._model.compile(
                keras.optimizers.Adam(),
                steps_per_execution=method.steps,
                jit_compile=method.jit,
                **trainee.compiling,
            )
        if self._model.jit_compile != method.jit:
            raise _LeftOut("it has layers that Keras does not compile with XLA")
        self._batches = _batches(case, trainee, kind)

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


def _batches(case: cases.Case, trainee: Trainee, kind: str) -> tf.data.Dataset:
    batch = case.sizes["batch"]
    rng = np.random.default_rng(_SEED)
    drawn = NETWORKS[case.name].draw(case, _BATCHES * batch, rng)
    with tf.device("CPU:0"):
        samples = tf.data.Dataset.from_tensor_slices(drawn)
    batches = samples.batch(batch, drop_remainder=True).map(trainee.arrange)
    batches = batches.cache().repeat()
    if kind == "GPU" and not isinstance(trainee.model, Unrolled):
        # Ours copies batches ahead by itself.
        return batches.apply(tf.data.experimental.prefetch_to_device("/GPU:0", 20))
    return batches.prefetch(tf.data.AUTOTUNE)


def _measure(case: cases.Case, method: Method, kind: str, repeat: int) -> dict:
    """Measures one method; the device is the one that is in scope."""
    on_gpu, gpu = kind == "GPU", f"{kind}:0"
    if on_gpu:
        before = tf.config.experimental.get_memory_info(gpu)["current"]
    fit = _Fit(case, method, kind)
    _, once = fit.seconds(method.steps, epochs=2)
    steps = method.steps * math.ceil(_SAMPLE_SECONDS[kind] / once)
    samples, peak = [once / method.steps], None
    if on_gpu:
        tf.config.experimental.reset_memory_stats(gpu)
    if once < _METHOD_SECONDS / 2:
        epoch = once * steps / method.steps
        epochs = max(1, min(repeat, int(_METHOD_SECONDS / epoch)))
        samples = [each / steps for each in fit.seconds(steps, epochs)]
    if on_gpu:
        peak = tf.config.experimental.get_memory_info(gpu)["peak"] - before
    entry = report.method_entry(measure.summary(samples, peak))
    entry["images_per_second"] = 1e6 * case.sizes["batch"] / entry["median_us"]
    if on_gpu:
        busy, launches = trace.gpu_work(lambda: fit.seconds(steps, epochs=1))
        if launches:
            entry["busy_us"], entry["launches"] = 1e6 * busy / steps, launches / steps
    return entry


def _attempt(
    case: cases.Case, method: Method, dtype: str, kind: str, repeat: int
) -> dict:
    """Measures one method, or says why not, and frees what it took."""
    device = tf.device("CPU:0") if kind == "CPU" else contextlib.nullcontext()
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(_POLICIES.get(dtype, dtype))
    try:
        with device:
            return _measure(case, method, kind, repeat)
    except _LeftOut as reason:
        return {"left_out": str(reason)}
    except (tf.errors.OpError, ValueError) as error:  # ValueError: in tracing
        return {"error": measure.reason(error)}
    finally:
        keras.backend.clear_session()
        keras.config.set_dtype_policy(policy)
        gc.collect()


def _torch_entries(case: cases.Case, dtype: str, kind: str, options) -> dict[str, dict]:
    wanted = case.name == "capsnet" and cases.TRAINING in case.uses
    if not wanted or dtype != "float32" or not pytorch.has_script(_TORCH):
        return {}
    if not pytorch.is_installed():
        return {"PyTorch": {"left_out": "it is not installed"}}
    batch = case.sizes["batch"]
    entries = {}
    for row in pytorch.rows(_TORCH, kind, options, "--batch-size", batch):
        if samples := row.pop("samples", None):
            taken = measure.summary(samples, row.pop("peak_bytes"))
            row |= report.method_entry(taken)
            row["images_per_second"] = 1e6 * batch / row["median_us"]
        entries[row.pop("method")] = row
    return entries


def _entries(case: cases.Case, dtype: str, kind: str, options) -> dict[str, dict]:
    """Measures all methods of a case."""
    entries: dict[str, dict] = {}
    jits = [_JIT[name] for name in options.jit]
    for who, jit in itertools.product((report.OURS, PLAIN), jits):
        slow = None
        for steps in sorted({*options.steps_per_execution}):
            method = Method(who, jit, steps)
            if slow:
                text = f"a step takes {slow:.1f} s, so an execution's cost is nothing"
                entry = {"left_out": text}
            else:
                entry = _attempt(case, method, dtype, kind, options.repeat)
            entries[str(method)] = entry
            if steps == 1 and entry.get("median_us", 0) > 1e6 * _SLOW_STEP:
                slow = entry["median_us"] / 1e6
    return {**entries, **_torch_entries(case, dtype, kind, options)}


def run(options: argparse.Namespace) -> Iterator[dict]:
    """Yields the entry of `results` for each case, device and dtype.

    Each entry has the fields of an op's, but for what is known of ops only. Methods are
    named "plain Keras, XLA, 20 steps" for 20 `steps_per_execution`. A method has the
    fields of an op's, where `extra_bytes` is all memory that training took on a GPU;
    `images_per_second`; on a GPU for a step `busy_us`, in which it computed, and
    `launches`, its kernels; or `left_out`, why it was not measured.
    """
    for kind, dtype in itertools.product(options.device, options.dtype):
        for case in CASES:
            chosen = case.name in options.model and {*case.uses} & {*options.suite}
            if not chosen or kind not in case.devices:
                continue
            yield {
                "op": "training",
                "case": case.name,
                "sizes": dict(case.sizes),
                "attributes": dict(case.attributes),
                "direction": "step",
                "device": f"{kind}:0",
                "dtype": dtype,
                "methods": _entries(case, dtype, kind, options),
            }
