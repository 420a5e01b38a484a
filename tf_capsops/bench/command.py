# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measures what the options ask for, and reports: what `tf-capsops bench` does."""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf
from rich.console import Console

from tf_capsops import kernels
from tf_capsops.bench import (
    against,
    cases,
    chart,
    dtypes,
    layers,
    measure,
    options,
    pytorch,
    report,
    start_up,
    threads,
    training,
)
from tf_capsops.bench.cases import Case, OpSuite
from tf_capsops.bench.floor import Ceilings, measure_ceilings
from tf_capsops.errors import CommandError, make_directory
from tf_capsops.machine import machine

_SEED = 20180211
_WIDTH = 100  # columns, where the output is no terminal


def devices(wanted: Sequence[str] | None) -> list[str]:
    """Returns the kinds of devices to measure on: by default all that TensorFlow sees.

    Raises:
        CommandError: TensorFlow sees no device of a kind that is wanted.
    """
    seen = {device.device_type for device in tf.config.list_physical_devices()}
    for kind in wanted or ():
        if kind not in seen:
            raise CommandError(f"--device {kind}: TensorFlow sees none")
    return list(wanted or (kind for kind in options.DEVICES if kind in seen))


def prepare(tf32: bool) -> Console:
    """Sets TensorFlow up, and returns the console to print to."""
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


def _argument_sets(
    suite: OpSuite, case: Case, dtype: tf.DType, device: str
) -> list[measure.Arguments]:
    """Returns sets of the output's gradient and the inputs, on the device."""
    rng = np.random.default_rng(_SEED)
    arrays = suite.draw(case, rng)
    shape = suite.output_shape(case)

    def tensor(array):
        made = tf.constant(array)
        return tf.cast(made, dtype) if made.dtype.is_floating else made

    elements = math.prod(shape) + sum(array.size for array in arrays)
    sets = []
    for _ in range(measure.set_count(device, elements * dtype.size)):
        with tf.device(device):
            grad = tf.cast(tf.random.uniform(shape, -1, 1), dtype)
            inputs = [tensor(array) for array in arrays]
        sets.append((grad, *inputs))
        arrays = suite.draw(case, rng)
    return sets


def _in_torch(
    suite: OpSuite, case: Case, dtype: tf.DType, device: str, args
) -> dict[str, dict[str, measure.Timing | str]]:
    """Returns timings in PyTorch by direction and method; none if it is missing."""
    found: dict[str, dict[str, measure.Timing | str]] = {}
    script = suite.torch
    if script is None or dtype != tf.float32 or not pytorch.has_script(script):
        return found
    if not args.rivals or not pytorch.interpreter(args):
        return found
    drawn = pytorch.described(case)
    kind = measure.device_type(device)
    for row in pytorch.rows(script, kind, args, "--case", drawn):
        timing = row.get("error") or measure.summary(row["samples"], row["peak_bytes"])
        for direction in (
            [row["direction"]] if "direction" in row else options.DIRECTIONS
        ):
            found.setdefault(direction, {})[row["method"]] = timing
    return found


def _measure_case(
    suite: OpSuite, case: Case, dtype: tf.DType, device: str, args
) -> Iterator[tuple[str, cases.Cost, dict, str]]:
    """Yields direction, least cost, timings of all methods, and our kernels' names."""
    sets = _argument_sets(suite, case, dtype, device)
    prepare = case.bind(suite.prepare)
    with tf.device(device):
        rival_sets = [(grad, *prepare(*inputs)) for grad, *inputs in sets]
    training_step = functools.partial(measure.training_step, sources=suite.sources)
    in_torch = _in_torch(suite, case, dtype, device, args)
    directions = (
        (measure.forward_step, suite.forward_cost, 1),
        (training_step, suite.training_cost, 0),
    )
    for direction, (make_step, cost, first) in zip(options.DIRECTIONS, directions):
        steps = {report.OURS: (make_step(case.bind(suite.ours)), sets)}
        rivals = {**suite.rivals, **suite.parts} if args.rivals else {}
        for name, rival in rivals.items():
            step = make_step(case.bind(rival))
            steps[f"TF {name}"] = step, rival_sets
            steps[f"TF {name}, XLA"] = measure.compiled(step), rival_sets
        chains = {
            name: measure.Chain(step, [s[first:] for s in taken], device)
            for name, (step, taken) in steps.items()
        }
        timings = measure.compare(chains, args.repeat)
        timings |= in_torch.get(direction, {})
        kernel = ""
        if not isinstance(timings[report.OURS], str):
            with tf.device(device), kernels.recorded() as calls:
                steps[report.OURS][0](*sets[0][first:])
            kernel = " + ".join(dict.fromkeys(name for _, name, _ in calls))
        yield direction, cost(case), timings, kernel


def _of_ops(
    args: argparse.Namespace, console: Console, ceilings: list[dict]
) -> Iterator[dict]:
    """Yields the results of the ops, and adds measured rates to `ceilings`."""
    if not {*args.suite} & {*cases.OF_OPS}:
        return
    for kind, dtype in itertools.product(args.device, map(tf.as_dtype, args.dtype)):
        device = f"{kind}:0"
        ceiling: Ceilings = measure_ceilings(device, dtype, args.repeat)
        entry = report.ceilings_entry(device, dtype, ceiling)
        ceilings.append(entry)
        console.print(
            f"{device} {dtype.name}: copy {entry['gigabytes_per_second']:.0f} GB/s,"
            f" matrix product {entry['gigaflops_per_second']:.0f} GFLOP/s,"
            f" TensorFlow {entry['tensorflow_us_per_call']:.1f} us a call"
        )
        for suite in (cases.suites()[op] for op in args.op):
            for case in suite.cases:
                if kind not in case.devices or not {*case.uses} & {*args.suite}:
                    continue
                for direction, cost, timings, kernel in _measure_case(
                    suite, case, dtype, device, args
                ):
                    floor = ceiling.seconds(cost, dtype.size)
                    result = report.result_entry(
                        suite, case, direction, cost, entry, floor, timings, kernel
                    )
                    console.print(report.table(result))
                    yield result


def _of_training(args: argparse.Namespace, console: Console) -> Iterator[dict]:
    """Yields the results of training steps."""
    for result in training.run(args):
        console.print(report.training_table(result))
        if args.start_up:
            console.print(report.start_up_table(result, start_up.PARTS))
        yield result


def _measured(args: argparse.Namespace, console: Console, data: pathlib.Path) -> dict:
    """Measures what the options ask for; prints and writes each result at once."""
    made = {
        "command": report.command(args.command_line),
        "tf32": args.tf32,
        **machine(),
    }
    made |= {"ceilings": [], "results": []}
    for result in itertools.chain(
        _of_ops(args, console, made["ceilings"]),
        _of_training(args, console),
        layers.run(args),
    ):
        if args.threads:
            result["threads"] = args.threads[0]
        made["results"].append(result)
        _write(data, made)
    if len(args.dtype) > 1 or {*args.suite} & {cases.LAYERS, cases.LAYERS_SMOKE}:
        console.print(dtypes.table(made["results"]))
    return made


def _write(data: pathlib.Path, made: dict) -> None:
    data.write_text(json.dumps(made, indent=2) + "\n")


def run(args: argparse.Namespace) -> int:
    """Runs the benchmark; returns 1 if one of our ops or networks failed, else 0."""
    counts = args.threads or []
    args.device = devices(args.device)
    earlier = args.against and against.read(args.against)
    make_directory(args.output)
    data, picture = args.output / "bench.json", args.output / "bench.png"
    written = str(data)
    if len(counts) > 1:
        made = threads.measure(args.command_line, counts, args.output)
        console = prepare(args.tf32)
        for table in threads.tables(made):
            console.print(table)
    else:
        if counts:
            threads.use(*counts)
            args.device = ["CPU"]
        console = prepare(args.tf32)
        made = _measured(args, console, data)
        chart.save(made, picture)
        written += f" and {picture}"
    _write(data, made)
    if earlier:
        console.print(against.table(earlier, made))
    console.print(f"Wrote {written}.")
    ours = (
        method
        for result in made["results"]
        for name, method in result["methods"].items()
        if name.startswith(report.OURS)
    )
    return 1 if any("error" in method for method in ours) else 0
