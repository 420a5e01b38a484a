# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The command `tf-capsops bench`."""

from __future__ import annotations

import argparse
import functools
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
    pytorch,
    report,
    start_up,
    threads,
    training,
)
from tf_capsops.bench.cases import Case, OpSuite
from tf_capsops.bench.floor import Ceilings, measure_ceilings
from tf_capsops.cli import arguments
from tf_capsops.cli.errors import make_directory
from tf_capsops.machine import machine

_DTYPES = ("float32", "float64", "float16", "bfloat16")
_SEED = 20180211
_DIRECTIONS = "forward", "forward+backward"
_WIDTH = 100  # columns, where the output is no terminal


def parser_of_options(
    prog: str, description: str, output: str, files: str
) -> arguments.Parser:
    """Makes a parser of the options that the papers' benchmarks have, too."""
    parser = arguments.Parser(
        prog=prog,
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    devices = sorted({d.device_type for d in tf.config.list_physical_devices()})
    parser.add_argument("--device", choices=devices, nargs="+", default=devices)
    parser.add_argument(
        "--repeat",
        type=arguments.int_from(2),
        default=15,
        help="samples of each method (at least 2)",
    )
    parser.add_argument(
        "--tf32",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="allow TensorFloat-32 on GPU, as TensorFlow does unless told otherwise",
    )
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path(output),
        help=f"directory for {files}",
    )
    return parser


def prepare(options: argparse.Namespace) -> Console:
    """Sets TensorFlow up as the options say, and returns where to print."""
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.experimental.enable_tensor_float_32_execution(options.tf32)
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


def _parser() -> arguments.Parser:
    parser = parser_of_options(
        "tf-capsops bench",
        "Time the ops against plain TensorFlow, all in one run.",
        "runs/bench",
        "bench.json and bench.png",
    )
    ops = sorted(cases.suites())
    parser.add_argument("--op", choices=ops, nargs="+", default=ops)
    parser.add_argument("--dtype", choices=_DTYPES, nargs="+", default=["float32"])
    parser.add_argument(
        "--suite",
        choices=cases.BENCH_SUITES,
        nargs="+",
        default=[cases.ANCHORS],
        help="ops at the sizes of the speed claims, of layers of published networks, "
        "or at tiny ones that only show that the benchmark works; whole training steps "
        "of networks, or of tiny ones; every layer, or tiny ones",
    )
    parser.add_argument(
        "--rivals",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="measure rivals, too",
    )
    parser.add_argument(
        "--against",
        type=pathlib.Path,
        metavar="BENCH_JSON",
        help="compare with an earlier bench.json, and mark what has become slower",
    )
    threads.add_argument(parser)
    pytorch.add_argument(parser)
    training.add_arguments(parser)
    layers.add_arguments(parser)
    return parser


def _argument_sets(
    suite: OpSuite, case: Case, dtype: tf.DType, device: str
) -> list[measure.Arguments]:
    """Makes sets of the output's gradient and the inputs, on the device."""
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
    suite: OpSuite, case: Case, dtype: tf.DType, device: str, options
) -> dict[str, dict[str, measure.Timing | str]]:
    """Returns timings in PyTorch, where it is installed, by direction and method."""
    found: dict[str, dict[str, measure.Timing | str]] = {}
    script = suite.torch
    if script is None or dtype != tf.float32 or not pytorch.has_script(script):
        return found
    if not options.rivals or not pytorch.interpreter(options):
        return found
    drawn = pytorch.described(case)
    kind = measure.device_type(device)
    for row in pytorch.rows(script, kind, options, "--case", drawn):
        timing = row.get("error") or measure.summary(row["samples"], row["peak_bytes"])
        for direction in [row["direction"]] if "direction" in row else _DIRECTIONS:
            found.setdefault(direction, {})[row["method"]] = timing
    return found


def _measure_case(
    suite: OpSuite, case: Case, dtype: tf.DType, device: str, options
) -> Iterator[tuple[str, cases.Cost, dict, str]]:
    """Yields direction, least cost, timings of all methods, and our kernels' names."""
    sets = _argument_sets(suite, case, dtype, device)
    prepare = case.bind(suite.prepare)
    with tf.device(device):
        rival_sets = [(grad, *prepare(*inputs)) for grad, *inputs in sets]
    training_step = functools.partial(measure.training_step, sources=suite.sources)
    in_torch = _in_torch(suite, case, dtype, device, options)
    directions = (
        (measure.forward_step, suite.forward_cost, 1),
        (training_step, suite.training_cost, 0),
    )
    for direction, (make_step, cost, first) in zip(_DIRECTIONS, directions):
        steps = {report.OURS: (make_step(case.bind(suite.ours)), sets)}
        rivals = {**suite.rivals, **suite.parts} if options.rivals else {}
        for name, rival in rivals.items():
            step = make_step(case.bind(rival))
            steps[f"TF {name}"] = step, rival_sets
            steps[f"TF {name}, XLA"] = measure.compiled(step), rival_sets
        chains = {
            name: measure.Chain(step, [s[first:] for s in taken], device)
            for name, (step, taken) in steps.items()
        }
        timings = measure.compare(chains, options.repeat)
        timings |= in_torch.get(direction, {})
        kernel = ""
        if not isinstance(timings[report.OURS], str):
            with tf.device(device), kernels.recorded() as calls:
                steps[report.OURS][0](*sets[0][first:])
            kernel = " + ".join(dict.fromkeys(name for _, name, _ in calls))
        yield direction, cost(case), timings, kernel


def _run(options: argparse.Namespace, console: Console) -> Iterator[tuple[dict, list]]:
    """Yields the ceilings and the results of each device and dtype, for the ops."""
    if not {*options.suite} & {*cases.OF_OPS}:
        return
    for kind in options.device:
        device = f"{kind}:0"
        for dtype in map(tf.as_dtype, options.dtype):
            ceilings: Ceilings = measure_ceilings(device, dtype, options.repeat)
            entry = report.ceilings_entry(device, dtype, ceilings)
            console.print(
                f"{device} {dtype.name}: copy {entry['gigabytes_per_second']:.0f} GB/s,"
                f" matrix product {entry['gigaflops_per_second']:.0f} GFLOP/s,"
                f" TensorFlow {entry['tensorflow_us_per_call']:.1f} us a call"
            )
            results = []
            for suite in (cases.suites()[op] for op in options.op):
                for case in suite.cases:
                    if kind not in case.devices or not {*case.uses} & {*options.suite}:
                        continue
                    for direction, cost, timings, kernel in _measure_case(
                        suite, case, dtype, device, options
                    ):
                        floor = ceilings.seconds(cost, dtype.size)
                        results.append(
                            report.result_entry(
                                suite,
                                case,
                                direction,
                                cost,
                                entry,
                                floor,
                                timings,
                                kernel,
                            )
                        )
                        console.print(report.table(results[-1]))
            yield entry, results


def _measured(argv: Sequence[str], options, console: Console) -> dict:
    """Returns the report of what the options ask for, and prints it on the way."""
    made = {"command": report.command(argv), "tf32": options.tf32, **machine()}
    made |= {"ceilings": [], "results": []}
    for ceilings, results in _run(options, console):
        made["ceilings"].append(ceilings)
        made["results"] += results
    for result in training.run(options):
        made["results"].append(result)
        console.print(report.training_table(result))
        if options.start_up:
            console.print(report.start_up_table(result, start_up.PARTS))
    made["results"] += layers.run(options)
    if len(options.dtype) > 1 or {*options.suite} & {cases.LAYERS, cases.LAYERS_SMOKE}:
        console.print(dtypes.table(made["results"]))
    for result in made["results"] if options.threads else ():
        result["threads"] = options.threads[0]
    return made


def main(argv: Sequence[str]) -> int:
    """Runs the benchmark.

    Args:
        argv: The command line after `tf-capsops bench`.

    Returns:
        0, or 1 where one of our own ops or networks could not be run.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    counts = options.threads or []
    if len(counts) > 1 and options.against:
        parser.error("--against compares with one number of --threads")
    earlier = options.against and against.read(options.against)
    make_directory(options.output)
    data, picture = options.output / "bench.json", options.output / "bench.png"
    written = str(data)
    if len(counts) > 1:
        made = threads.measure(argv, counts, options.output)
        console = prepare(options)
        for table in threads.tables(made):
            console.print(table)
    else:
        if counts:
            threads.use(*counts)
            options.device = ["CPU"]
        console = prepare(options)
        made = _measured(argv, options, console)
        chart.save(made, picture)
        written += f" and {picture}"
    data.write_text(json.dumps(made, indent=2) + "\n")
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
