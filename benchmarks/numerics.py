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
import json
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
from tf_capsops.bench import cases, report  # noqa: E402

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


def errors(device: str) -> Iterator[list]:
    """Yields a row for each op, mode and result, the worst of all cases."""
    for op in descriptions.every():
        for mode, dtype, tf32 in _modes(device):
            worst, ran = {}, set()
            chosen = [
                case
                for case in op.suite.select(cases.CORRECTNESS)
                if case.name not in op.empty
            ]
            for case in chosen:
                tensors = op.draw(case, dtype)
                tf.config.experimental.enable_tensor_float_32_execution(tf32)
                with tf.device(device), kernels.recorded() as calls:
                    ours = op.ours(case, tensors)
                ran |= {kernel for _, kernel, _ in calls}
                with tf.device(device):
                    plain = op.results(case.bind(op.plain), *tensors)
                arrays = descriptions.exact(tensors)
                truths = case.bind(op.reference)(*arrays)
                sizes = case.bind(op.magnitude)(*arrays)
                names = _names(op, len(ours))
                for name, *one in zip(names, ours, plain, truths, sizes, strict=True):
                    mine, theirs, truth, size = one
                    before = worst.get(name, (0.0, 0.0))
                    found = _error(mine, truth, size), _error(theirs, truth, size)
                    worst[name] = tuple(map(max, before, found))
            for name, (mine, theirs) in worst.items():
                row = [f"{op.suite.op}: {name}", mode, f"{mine:.2g}", f"{theirs:.2g}"]
                yield [*row, len(chosen), ", ".join(sorted(ran))]


def _kinds(results) -> list[np.ndarray]:
    """Says of each number whether it is finite (0), an infinity (1, -1) or NaN (2)."""
    kinds = []
    for result in results:
        array = result.numpy()
        kinds.append(np.where(np.isnan(array), 2, np.isinf(array) * np.sign(array)))
    return kinds


def special_values(device: str) -> tuple[list[list], int]:
    """Returns a row for each difference from plain TensorFlow, and how many inputs."""
    rows, tried = [], 0
    for op in descriptions.every():
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
                both = zip(names, _kinds(ours), _kinds(plain), strict=True)
                for name, mine, theirs in both:
                    differ = mine != theirs
                    if not differ.any():
                        continue
                    words = {0: "finite", 1: "inf", -1: "-inf", 2: "NaN"}
                    pairs = sorted({*zip(mine[differ], theirs[differ], strict=True)})
                    said = "; ".join(f"{words[a]}, plain {words[b]}" for a, b in pairs)
                    count = f"{differ.sum()} of {differ.size}"
                    rows.append(
                        [op.suite.op, f"input {index}: {what}", name, count, said]
                    )
    return rows, tried


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["CPU", "GPU"], default="CPU")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--processor", help="the processor's name")
    options = parser.parse_args()
    device = f"{options.device}:0"
    rows = list(errors(device))
    tf.config.experimental.enable_tensor_float_32_execution(False)
    special, tried = special_values(device)
    name = options.device.lower()
    here = report.machine()
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
                "columns": ["", "type", "ours", "plain", "cases", "kernels"],
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
