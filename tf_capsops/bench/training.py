# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measures whole training steps through Keras' `fit`, as users wait for them.

A sample is an epoch of `fit` over a data set cached in memory, from its first step to
the metrics at its end, divided by its steps. `fit` has run before, so nothing is traced
or compiled within a sample. Networks are measured with and without XLA and with several
numbers of `steps_per_execution`, and most of them in plain Keras, too. With PyTorch
installed, the networks of benchmarks/torch_training.py are also measured there.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
from collections.abc import Iterator

import keras
import tensorflow as tf

from tf_capsops.bench import cases, measure, pytorch, report, start_up, trace
from tf_capsops.bench.fitting import PLAIN, Fit, LeftOut, Method, scope
from tf_capsops.bench.networks import CASES, NETWORKS, Network
from tf_capsops.bench.plain_networks import IMAGE
from tf_capsops.errors import CommandError

_JIT = {"off": False, "on": True}
# Least seconds of a sample by device type, and most seconds of all samples of a method.
_SAMPLE_SECONDS = {"CPU": 0.5, "GPU": 0.3}
_METHOD_SECONDS = 10
# Seconds of a step so long that Keras' few milliseconds for an execution do not show.
_SLOW_STEP = 0.1
TORCH = "torch_training.py"
IN_TORCH = (
    *("capsnet", "efficient_capsnet", "matrix_capsnet"),
    *("deepcaps", "segcaps", "ucaps3d", "unet"),
)


def _measure(
    case: cases.Case, method: Method, kind: str, repeat: int, network: Network | None
) -> dict:
    """Measures one method; the device is the one that is in scope."""
    on_gpu, gpu = kind == "GPU", f"{kind}:0"
    if on_gpu:
        before = tf.config.experimental.get_memory_info(gpu)["current"]
    fit = Fit(case, method, kind, network)
    _, once = fit.seconds(method.execution, epochs=2)
    steps = method.execution * math.ceil(_SAMPLE_SECONDS[kind] / once)
    samples, peak = [once / method.execution], None
    if on_gpu:
        tf.config.experimental.reset_memory_stats(gpu)
    if once < _METHOD_SECONDS / 2:
        epoch = once * steps / method.execution
        epochs = max(1, min(repeat, int(_METHOD_SECONDS / epoch)))
        samples = [each / steps for each in fit.seconds(steps, epochs)]
    if on_gpu:
        peak = tf.config.experimental.get_memory_info(gpu)["peak"] - before
    entry = report.method_entry(measure.summary(samples, peak))
    entry["images_per_second"] = 1e6 * case.sizes["batch"] / entry["median_us"]
    entry["parameters"] = _trained_numbers(fit.model)
    if on_gpu:
        busy, launches = trace.gpu_work(lambda: fit.seconds(steps, epochs=1))
        if launches:
            entry["busy_us"], entry["launches"] = 1e6 * busy / steps, launches / steps
    return entry


def attempt(
    case: cases.Case,
    method: Method,
    dtype: str,
    kind: str,
    repeat: int,
    network: Network | None = None,
) -> dict:
    """Measures one method, or says why not; `network` may replace the case's own."""
    try:
        with scope(dtype, kind):
            return _measure(case, method, kind, repeat, network)
    except LeftOut as reason:
        return {"left_out": str(reason)}
    except (tf.errors.OpError, ValueError) as error:  # ValueError: in tracing
        return {"error": measure.reason(error)}


def _trained_numbers(model: keras.Model) -> int:
    """Returns how many trained numbers a model has."""
    return sum(math.prod(each.shape) for each in model.trainable_variables)


def _expected_numbers(case: cases.Case) -> int:
    """Returns how many trained numbers our network has."""
    with scope("float32", "CPU"):
        return _trained_numbers(NETWORKS[case.name].ours(case).model)


def _torch_entries(case: cases.Case, dtype: str, kind: str, options) -> dict[str, dict]:
    """Returns the entries of methods in PyTorch, by name; none if they do not apply."""
    wanted = options.rivals and case.name in IN_TORCH and cases.TRAINING in case.uses
    if not wanted or dtype == "float64" or not pytorch.has_script(TORCH):
        return {}
    if not pytorch.interpreter(options):
        return {"PyTorch": {"left_out": "it is not installed"}}
    batch = case.sizes["batch"]
    try:
        expected = _expected_numbers(case)
    except (tf.errors.OpError, ValueError) as error:
        return {"PyTorch": {"error": measure.reason(error)}}
    described = "--case", pytorch.described(case), "--dtype", dtype
    entries = {}
    for row in pytorch.rows(TORCH, kind, options, *described):
        name, counted = row.pop("method"), row.get("parameters", expected)
        if counted != expected:
            row = {"error": f"it has {counted} parameters, and ours {expected}"}
        if samples := row.pop("samples", None):
            taken = measure.summary(samples, row.pop("peak_bytes"))
            row |= report.method_entry(taken)
            row["images_per_second"] = 1e6 * batch / row["median_us"]
            if options.start_up:
                row |= start_up.of_torch(TORCH, name, kind, options, *described)
        entries[name] = row
    return entries


def _methods(case: cases.Case, options: argparse.Namespace) -> Iterator[Method]:
    """Yields the methods in TensorFlow that the options ask for."""
    has_rival = options.rivals and NETWORKS[case.name].plain
    whom = (report.OURS, PLAIN) if has_rival else (report.OURS,)
    for who, gpus in itertools.product(whom, sorted({*options.gpus})):
        for jit in options.jit:
            for steps in sorted({*options.steps_per_execution}):
                yield Method(who, _JIT[jit], steps, gpus=gpus)
        if options.untuned:
            yield Method(who, gpus=gpus)
            yield Method(who, arrays=True, gpus=gpus)


def _entries(case: cases.Case, dtype: str, kind: str, options) -> dict[str, dict]:
    """Measures all methods of a case in TensorFlow."""
    entries: dict[str, dict] = {}
    for method in _methods(case, options):
        single = dataclasses.replace(method, steps=1)
        one = entries.get(str(single), {}).get("median_us", 0) / 1e6
        if (method.steps or 1) > 1 and one > _SLOW_STEP:
            text = f"a step takes {one:.1f} s, so an execution's cost is nothing"
            entry = {"left_out": text}
        else:
            entry = attempt(case, method, dtype, kind, options.repeat)
        if options.start_up and "median_us" in entry:
            entry |= start_up.of_fit(case, method, dtype, kind, options.tf32)
        entries[str(method)] = entry
    return entries


def _sized(case: cases.Case, options: argparse.Namespace) -> Iterator[cases.Case]:
    """Yields a case in the sizes that the options ask for, or else in its own sizes.

    Raises:
        CommandError: The images have another number of axes.
    """
    sizes, name = dict(case.sizes), case.name
    if options.image_size:
        axes = [axis for axis in IMAGE if axis in sizes]
        pixels = options.image_size
        pixels = pixels * len(axes) if len(pixels) == 1 else pixels
        if len(pixels) != len(axes):
            text = f"--image-size: {name} takes 1 or {len(axes)}, got {len(pixels)}"
            raise CommandError(text)
        sizes |= zip(axes, pixels, strict=True)
    for batch in options.batch_size or [sizes["batch"]]:
        yield dataclasses.replace(case, sizes={**sizes, "batch": batch})


def _label(case: cases.Case, options: argparse.Namespace) -> str:
    """Returns a case's name, with the sizes that were asked for."""
    image = "x".join(str(case.sizes[axis]) for axis in IMAGE if axis in case.sizes)
    words = [case.name, image if options.image_size else ""]
    words.append(f"batch {case.sizes['batch']}" if options.batch_size else "")
    return ", ".join(filter(None, words))


def result_entry(
    case: cases.Case, kind: str, dtype: str, methods: dict[str, dict]
) -> dict:
    """Returns the entry of `results` for one case, device and dtype."""
    return {
        "op": "training",
        "case": case.name,
        "sizes": dict(case.sizes),
        "attributes": dict(case.attributes),
        "direction": "step",
        "device": f"{kind}:0",
        "dtype": dtype,
        "methods": methods,
    }


def run(options: argparse.Namespace) -> Iterator[dict]:
    """Yields the entry of `results` for each case, device and dtype.

    An entry has the fields of an op's entry, except those that only ops have. Methods
    have names such as "plain Keras, XLA, 20 steps", with `steps_per_execution`. A
    method has the fields of an op's method, and

    * `extra_bytes`: all memory that training took, on the first GPU if there are
      several;
    * `parameters`: how many numbers are trained;
    * `images_per_second`;
    * on a GPU, for each step, `busy_us`, the time in which it computed, and `launches`,
      the number of kernels;
    * with `--start-up`, the fields of `start_up.PARTS`.

    A method that was not measured has `left_out`, the reason.
    """
    chosen = [
        (kind, dtype, sized)
        for kind, dtype in itertools.product(options.device, options.dtype)
        for case in CASES
        if case.name in options.model
        and {*case.uses} & {*options.suite}
        and kind in case.devices
        for sized in _sized(case, options)
    ]
    # PyTorch comes first, because TensorFlow never gives GPU memory back.
    in_torch = [
        _torch_entries(case, dtype, kind, options) for kind, dtype, case in chosen
    ]
    for (kind, dtype, case), others in zip(chosen, in_torch, strict=True):
        methods = {**_entries(case, dtype, kind, options), **others}
        entry = result_entry(case, kind, dtype, methods)
        yield {**entry, "case": _label(case, options)}
