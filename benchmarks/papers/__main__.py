# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measures the papers' tables: `python -m benchmarks.papers`, in the source tree."""

from __future__ import annotations

import argparse
import json
import pathlib
import shlex
import sys
import types
from collections.abc import Iterable, Sequence

import tensorflow as tf
from rich.console import Console

from benchmarks.papers import chen, khandwawala, simeng_zhejin, studies, vaidya
from tf_capsops.bench import report

PAPERS = (vaidya, chen, simeng_zhejin, khandwawala)
_OPS = sorted({paper.OP for paper in PAPERS})
_WIDTH = 100  # columns, where the output is no terminal


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.papers",
        description="Time other papers' kernels beside ours and plain TensorFlow.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    devices = sorted({d.device_type for d in tf.config.list_physical_devices()})
    parser.add_argument(
        "--op",
        choices=_OPS,
        nargs="+",
        default=argparse.SUPPRESS,
        help="the papers on these ops (default: all that the devices allow)",
    )
    parser.add_argument("--device", choices=devices, nargs="+", default=devices)
    parser.add_argument(
        "--repeat", type=int, default=15, help="samples of each method (at least 2)"
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
        default=pathlib.Path("runs/papers"),
        help="directory for papers.json and charts",
    )
    return parser


def _refuse(options: argparse.Namespace) -> str:
    """Returns why the papers cannot be measured as asked, or nothing."""
    if options.repeat < 2:
        return f"--repeat must be at least 2, got {options.repeat}"
    if "GPU" in options.device:
        try:
            studies.library_path()
        except ImportError as error:
            return str(error)
    measurable = {paper.OP for paper in _selected(_OPS, options.device)}
    for op in getattr(options, "op", []):
        if op not in measurable:
            return f"--op {op} is measured on a GPU, got --device CPU"
    return ""


def _selected(ops: Sequence[str], devices: Iterable[str]) -> list[types.ModuleType]:
    return [p for p in PAPERS if p.OP in ops and {*p.DEVICES} & {*devices}]


def main(argv: Sequence[str]) -> int:
    """Measures every table, and shows it and writes it to papers.json as it comes.

    Args:
        argv: The command line after `python -m benchmarks.papers`.

    Returns:
        0, or 1 where one of our own ops could not be run.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    if reason := _refuse(options):
        parser.error(reason)
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.experimental.enable_tensor_float_32_execution(options.tf32)
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)

    command = shlex.join(["python", "-m", "benchmarks.papers", *argv])
    made = {"command": command, "tf32": options.tf32, **report.machine()}
    options.output.mkdir(parents=True, exist_ok=True)
    failed, written = False, [options.output / "papers.json"]
    for paper in _selected(getattr(options, "op", _OPS), options.device):
        name = paper.__name__.rpartition(".")[2]
        made[name] = []
        for kind in options.device:
            if kind not in paper.DEVICES:
                continue
            for result in paper.run(f"{kind}:0", options.repeat):
                made[name].append(result)
                written[0].write_text(json.dumps(made, indent=2) + "\n")
                console.print(paper.table(result))
                failed |= "error" in result["methods"][report.OURS]
        if hasattr(paper, "draw"):
            written.append(options.output / f"{name}.png")
            paper.draw(made[name], written[-1])
    console.print(f"Wrote {' and '.join(map(str, written))}.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
