# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measures the papers' tables: `python -m benchmarks.papers`, in the source tree."""

from __future__ import annotations

import argparse
import pathlib
import sys
import types
from collections.abc import Sequence

from rich.console import Console

from benchmarks.papers import (
    chen,
    khandwawala,
    report,
    simeng_zhejin,
    studies,
    vaidya,
    van_de_wolfshaar,
)
from tf_capsops import options
from tf_capsops.bench import command
from tf_capsops.bench.options import add_shared
from tf_capsops.bench.report import OURS
from tf_capsops.errors import CommandError

PAPERS = (vaidya, chen, van_de_wolfshaar, simeng_zhejin, khandwawala)
_BY_NAME = {report.name_of(paper): paper for paper in PAPERS}
_PARTS = dict.fromkeys(part for p in PAPERS for part in report.parts_of(p) if part)


def _parser() -> argparse.ArgumentParser:
    parser = options.Parser(
        prog="python -m benchmarks.papers",
        description="Time other papers' kernels next to ours and plain TensorFlow.",
    )
    add_shared(parser, "runs/papers", "papers.json and charts")
    parser.add_argument(
        "--paper",
        choices=_BY_NAME,
        nargs="+",
        default=list(_BY_NAME),
        help="these papers (default: all that the devices allow)",
    )
    parser.add_argument(
        "--part",
        choices=_PARTS,
        nargs="+",
        default=argparse.SUPPRESS,
        help="these parts of them (default: all)",
    )
    parser.add_argument(
        "--from",
        dest="files",
        metavar="FILE",
        type=pathlib.Path,
        nargs="+",
        default=argparse.SUPPRESS,
        help="measure nothing: merge these papers.json",
    )
    parser.add_argument(
        "--commit", default="", help="with --from: what was measured without a checkout"
    )
    parser.add_argument(
        "--processor", default="", help="with --commit: the processor's name"
    )
    return parser


def _selected(args: argparse.Namespace) -> list[tuple[types.ModuleType, list[str]]]:
    """Returns the papers to measure, each with its parts, or says what is wrong."""
    found = []
    wanted = dict.fromkeys(getattr(args, "part", []))
    for name in args.paper:
        paper = _BY_NAME[name]
        parts = [p for p in report.parts_of(paper) if not wanted or p in wanted]
        if {*paper.DEVICES} & {*args.device}:
            found.append((paper, parts))
        elif len(args.paper) < len(PAPERS):
            raise CommandError(
                f"--paper {name} is measured on a {' and a '.join(paper.DEVICES)}, "
                f"got --device {' '.join(args.device)}"
            )
    for part in wanted:
        if not any(part in parts for _, parts in found):
            raise CommandError(
                f"--part {part} is no part of --paper {' '.join(args.paper)}"
            )
    if "GPU" in args.device:
        try:
            studies.library_path()
        except ImportError as error:
            raise CommandError(str(error)) from None
    return [(paper, parts) for paper, parts in found if parts]


def _measure(args: argparse.Namespace, selected, console: Console) -> bool:
    """Measures, writing and showing results as they come; returns whether ours ran."""
    run = report.provenance(args.tf32)
    path, succeeded = args.output / "papers.json", True
    made: dict = {"date": run["date"], "papers": {}}
    for paper, parts in selected:
        name = report.name_of(paper)
        results = made["papers"].setdefault(name, [])
        for part in parts:
            for kind in args.device:
                if kind not in paper.DEVICES:
                    continue
                device = f"{kind}:0"
                line = report.command(name, part, device, args.repeat, args.tf32)
                new = []
                for result in report.parts_of(paper)[part](device, args.repeat):
                    result |= {"part": part, "device": device}
                    result["run"] = {**run, "command": line}
                    results.append(result)
                    new.append(result)
                    report.write(report.assemble(made, PAPERS), path)
                    succeeded &= not any(
                        "error" in row
                        for method, row in result.get("methods", {}).items()
                        if method.startswith(OURS)
                    )
                _show(paper, new, console)
    return succeeded


def _show(paper: types.ModuleType, results: Sequence[dict], console: Console) -> None:
    """Prints the tables that have numbers of these results."""
    for name, table in paper.tables(results):
        if table["runs"]:
            console.print(report.rendered(name, table))


def main(argv: Sequence[str]) -> int:
    """Measures every table, and shows it and writes it to papers.json as it comes.

    Args:
        argv: The command line after `python -m benchmarks.papers`.

    Returns:
        0, or 1 where one of our own ops could not be run.
    """
    parser = _parser()
    args = parser.parse_args(argv)
    succeeded, drawn = True, PAPERS
    path = args.output / "papers.json"
    try:
        if hasattr(args, "files"):
            made, console = report.merge(args.files), Console()
            report.name_checkout(made, args.commit, args.processor)
            args.output.mkdir(parents=True, exist_ok=True)
            report.write(report.assemble(made, PAPERS), path)
        else:
            args.device = command.devices(args.device)
            selected = _selected(args)
            console = command.prepare(args.tf32)
            args.output.mkdir(parents=True, exist_ok=True)
            succeeded = _measure(args, selected, console)
            made, drawn = report.merge([path]), [paper for paper, _ in selected]
    except CommandError as error:
        parser.error(str(error))
    written = [path, *report.draw(made, drawn, args.output)]
    console.print(f"Wrote {' and '.join(map(str, written))}.")
    return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
