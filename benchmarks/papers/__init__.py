# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables and charts of other papers, measured beside ours.

A paper is a module with `OP`, the op that it computes; `DEVICES`, the types of device
that it is measured on; `run(device, repeat)`, which yields results; `table(result)`;
and `draw(results, path)` if it has charts.
"""

from __future__ import annotations

import argparse
import json
import types
from collections.abc import Sequence

from rich.console import Console

from benchmarks.papers import chen, khandwawala, simeng_zhejin, studies, vaidya
from tf_capsops.bench import report

PAPERS = (vaidya, chen, simeng_zhejin, khandwawala)


def _selected(ops: Sequence[str]) -> list[types.ModuleType]:
    return [paper for paper in PAPERS if paper.OP in ops]


def refuse(ops: Sequence[str], devices: Sequence[str]) -> str:
    """Returns why the papers on these ops cannot be measured, or nothing."""
    selected = _selected(ops)
    if not selected:
        known = ", ".join(sorted({paper.OP for paper in PAPERS}))
        return f"--suite papers has papers on {known} only"
    for paper in selected:
        if not {*paper.DEVICES} & {*devices}:
            anywhere = {p.OP for p in PAPERS if "CPU" in p.DEVICES}
            return (
                "--suite papers needs a GPU that TensorFlow sees, but for --op "
                + " ".join(sorted(anywhere))
            )
    if "GPU" in devices:
        try:
            studies.library_path()
        except ImportError as error:
            return str(error)
    return ""


def run(argv: Sequence[str], options: argparse.Namespace, console: Console) -> int:
    """Measures every table, and shows it and writes it to papers.json as it comes.

    Args:
        argv: The command line after `tf-capsops bench`.
        options: What was made of it.
        console: Where to show tables.

    Returns:
        0, or 1 where one of our own ops could not be run.
    """
    made = {"command": report.command(argv), "tf32": options.tf32, **report.machine()}
    options.output.mkdir(parents=True, exist_ok=True)
    failed, written = False, [options.output / "papers.json"]
    for paper in _selected(options.op):
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
