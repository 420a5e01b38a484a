# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measures the papers' tables: `python -m benchmarks.papers`, in the source tree."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import types
from collections.abc import Iterable, Sequence

from benchmarks.papers import (
    chen,
    khandwawala,
    simeng_zhejin,
    studies,
    vaidya,
    van_de_wolfshaar,
)
from tf_capsops import options
from tf_capsops.bench import command, report
from tf_capsops.bench.options import add_shared
from tf_capsops.errors import CommandError
from tf_capsops.machine import machine

PAPERS = (vaidya, chen, van_de_wolfshaar, simeng_zhejin, khandwawala)
_OPS = sorted({paper.OP for paper in PAPERS})


def _parser() -> argparse.ArgumentParser:
    parser = options.Parser(
        prog="python -m benchmarks.papers",
        description="Time other papers' kernels beside ours and plain TensorFlow.",
    )
    add_shared(parser, "runs/papers", "papers.json and charts")
    parser.add_argument(
        "--op",
        choices=_OPS,
        nargs="+",
        default=argparse.SUPPRESS,
        help="the papers on these ops (default: all that the devices allow)",
    )
    return parser


def _refuse(args: argparse.Namespace) -> str:
    """Returns why the papers cannot be measured as asked, or nothing."""
    if "GPU" in args.device:
        try:
            studies.library_path()
        except ImportError as error:
            return str(error)
    measurable = {paper.OP for paper in _selected(_OPS, args.device)}
    for op in getattr(args, "op", []):
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
    args = parser.parse_args(argv)
    try:
        args.device = command.devices(args.device)
    except CommandError as error:
        parser.error(str(error))
    if reason := _refuse(args):
        parser.error(reason)
    console = command.prepare(args.tf32)
    line = shlex.join(["python", "-m", "benchmarks.papers", *argv])
    made = {"command": line, "tf32": args.tf32, **machine()}
    args.output.mkdir(parents=True, exist_ok=True)
    failed, written = False, [args.output / "papers.json"]
    for paper in _selected(getattr(args, "op", _OPS), args.device):
        name = paper.__name__.rpartition(".")[2]
        made[name] = []
        for kind in args.device:
            if kind not in paper.DEVICES:
                continue
            for result in paper.run(f"{kind}:0", args.repeat):
                made[name].append(result)
                written[0].write_text(json.dumps(made, indent=2) + "\n")
                console.print(paper.table(result))
                failed |= any(
                    "error" in row
                    for method, row in result["methods"].items()
                    if method.startswith(report.OURS)
                )
        if hasattr(paper, "draw"):
            written.append(args.output / f"{name}.png")
            paper.draw(made[name], written[-1])
    console.print(f"Wrote {' and '.join(map(str, written))}.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
