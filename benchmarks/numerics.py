# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measures how exact the ops are, beside plain TensorFlow.

    python -m benchmarks.numerics --device CPU --output docs/measured/NAME.json

The cases, the float64 references and the formulas in plain TensorFlow are those of the
tests. An error is the largest of a result, in units of the last place of its type, of
the largest sum of absolute values of terms (a result itself may cancel). A second table
has the numbers that are not finite where the other's are, for inputs that hold very
small and very large numbers, infinities or NaN.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import os
import pathlib
import sys
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import descriptions  # noqa: E402
import tolerances  # noqa: E402

from tf_capsops import kernels  # noqa: E402
from tf_capsops.bench import cases  # noqa: E402
from tf_capsops.machine import machine  # noqa: E402

_SCALES = {"all times 1e-40": 1e-40, "all times 1e30": 1e30}
_PLANTED = {"an infinity": np.inf, "a negative infinity": -np.inf, "a NaN": np.nan}


def _modes(device: str) -> Iterator[tuple[str, tf.DType, bool]]:
    """Yields name, type and whether TF32 is allowed."""
    for dtype in descriptions.DTYPES:
        yield dtype.name, dtype, False
        if dtype == tf.float32 and device.startswith("GPU"):
            yield "float32, TF32", dtype, True


def _names(op: descriptions.Description, count: int) -> list[str]:
    return ["output", *(f"gradient {i}" for i in range(1, count))]


def _error(result, truth: np.ndarray, magnitude: np.ndarray) -> float:
    """In units of the last place; infinite where a result is not finite."""
    largest = np.abs(magnitude).max(initial=0)
    if not largest:
        return 0.0
    off = np.abs(result.numpy().astype(np.float64) - truth).max()
    ulp = tolerances.ulp(result.numpy().dtype)
    return float(off / largest / ulp) if np.isfinite(off) else np.inf


def _kernels(calls: list, op: str, count: int) -> list[str]:
    """Returns which kernel made each of `count` results: the output, gradients."""
    (forward,) = {kernel for name, kernel, _ in calls if name == op}
    backward = [kernel for name, kernel, _ in calls if name != op]
    backward += backward[-1:] * (count - 1 - len(backward))  # one op makes them all
    return [forward, *backward]


def errors(op: descriptions.Description, device: str) -> Iterator[list]:
    """Yields a row for each result, mode and kernel, the worst of all cases."""
    for mode, dtype, tf32 in _modes(device):
        worst, count = {}, collections.Counter()
        for case in op.suite.select(cases.CORRECTNESS):
            if case.name in op.empty:
                continue
            tensors = op.draw(case, dtype)
            tf.config.experimental.enable_tensor_float_32_execution(tf32)
            with tf.device(device), kernels.recorded() as calls:
                ours = op.ours(case, tensors)
            with tf.device(device):
                plain = op.results(case.bind(op.plain), *tensors)
            arrays = descriptions.exact(tensors)
            truths = case.bind(op.reference)(*arrays)
            sizes = case.bind(op.magnitude)(*arrays)
            ran = _kernels(calls, op.suite.op, len(ours))
            names = _names(op, len(ours))
            for name, kernel, mine, theirs, truth, size in zip(
                names, ran, ours, plain, truths, sizes, strict=True
            ):
                key = name, kernel
                found = _error(mine, truth, size), _error(theirs, truth, size)
                worst[key] = tuple(map(max, worst.get(key, (0.0, 0.0)), found))
                count[key] += 1
        for (name, kernel), (mine, theirs) in sorted(
            worst.items(), key=lambda item: names.index(item[0][0])
        ):
            row = [f"{op.suite.op}: {name}", kernel, mode, f"{mine:.2g}"]
            yield [*row, f"{theirs:.2g}", count[name, kernel]]


def _kinds(results) -> list[np.ndarray]:
    """Says of each number whether it is finite (0), an infinity (1, -1) or NaN (2)."""
    kinds = []
    for result in results:
        array = result.numpy()
        kinds.append(np.where(np.isnan(array), 2, np.isinf(array) * np.sign(array)))
    return kinds


def special_values(op: descriptions.Description, device: str) -> tuple[list[list], int]:
    """Returns a row for each difference from plain TensorFlow, and how many inputs."""
    rows, tried = [], 0
    tf.config.experimental.enable_tensor_float_32_execution(False)
    (case, *_) = op.suite.select(cases.SMOKE)
    given = op.draw(case, tf.float32)
    real = [i for i, each in enumerate(given) if i and each.dtype == tf.float32]
    for index in real:
        for what in (*_SCALES, *_PLANTED):
            array = given[index].numpy().copy()
            if what in _SCALES:
                array = (array * np.float64(_SCALES[what])).astype(np.float32)
            else:
                array.flat[array.size // 2] = _PLANTED[what]
            tensors = [*given[:index], tf.constant(array), *given[index + 1 :]]
            with tf.device(device):
                ours = op.ours(case, tensors)
                plain = op.results(case.bind(op.plain), *tensors)
            tried += 1
            names = _names(op, len(ours))
            for name, mine, theirs in zip(
                names, _kinds(ours), _kinds(plain), strict=True
            ):
                differ = mine != theirs
                if not differ.any():
                    continue
                words = {0: "finite", 1: "inf", -1: "-inf", 2: "NaN"}
                pairs = sorted({*zip(mine[differ], theirs[differ], strict=True)})
                said = "; ".join(f"{words[a]}, plain {words[b]}" for a, b in pairs)
                row = [op.suite.op, f"input {index}: {what}", name]
                rows.append([*row, f"{differ.sum()} of {differ.size}", said])
    return rows, tried


def _measure(number: int, device: str) -> tuple[list[list], list[list], int]:
    """Measures one op, in a process of its own."""
    op = descriptions.every()[number]
    return [*errors(op, device)], *special_values(op, device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["CPU", "GPU"], default="CPU")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--processor", help="the processor's name")
    options = parser.parse_args()
    device = f"{options.device}:0"
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"  # for processes side by side
    count = len(descriptions.every())
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(count, os.cpu_count())) as pool:
        measured = pool.starmap(
            _measure, [(i, device) for i in range(count)], chunksize=1
        )
    rows = [row for found, _, _ in measured for row in found]
    special = [row for _, found, _ in measured for row in found]
    tried = sum(number for _, _, number in measured)
    name = options.device.lower()
    here = machine()
    run = {
        **here,
        "cpu": options.processor or here["cpu"],
        "command": f"python -m benchmarks.numerics --device {options.device}",
        "tf32": None,
        "note": f"{tried} inputs with special numbers",
        "tables": {
            f"numerics_{name}": {
                "op": "",
                "device": options.device,
                "columns": ["", "kernel", "type", "ours", "plain", "cases"],
                "rows": rows,
            },
            f"special_values_{name}": {
                "op": "",
                "device": options.device,
                "right": False,
                "columns": ["op", "input", "result", "numbers", "ours"],
                "rows": special,
            },
        },
    }
    options.output.write_text(json.dumps(run, indent=1) + "\n")


if __name__ == "__main__":
    main()
