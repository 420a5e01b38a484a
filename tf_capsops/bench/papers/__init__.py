# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables of other papers on capsule convolution, measured beside ours on one GPU."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence

from rich.console import Console

from tf_capsops.bench import report
from tf_capsops.bench.papers import chen, vaidya

DEVICE = "GPU:0"


def run(
    argv: Sequence[str], repeat: int, tf32: bool, output: pathlib.Path, console: Console
) -> int:
    """Measures and shows every table, and writes them to papers.json.

    Returns:
        0, or 1 where one of our own ops could not be run.
    """
    made = {"command": report.command(argv), "tf32": tf32, **report.machine()}
    for paper, results in (
        (vaidya, vaidya.run(DEVICE, repeat, tf32)),
        (chen, chen.run(DEVICE, repeat)),
    ):
        name = paper.__name__.rpartition(".")[2]
        made[name] = []
        for result in results:
            made[name].append(result)
            console.print(paper.table(result))
    output.mkdir(parents=True, exist_ok=True)
    data = output / "papers.json"
    data.write_text(json.dumps(made, indent=2) + "\n")
    console.print(f"Wrote {data}.")
    ours = [r["methods"][report.OURS] for n in ("vaidya", "chen") for r in made[n]]
    return 1 if any("error" in row for row in ours) else 0
