# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The benchmark on a CPU with several numbers of threads.

TensorFlow creates its threads once, so each number of them has a process of its own.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Sequence

import tensorflow as tf
from rich import box
from rich.table import Table

from tf_capsops.bench import report
from tf_capsops.errors import CommandError


def use(count: int) -> None:
    """Lets TensorFlow use `count` threads, and run one operation after the other.

    Raises:
        CommandError: It has created its threads already.
    """
    try:
        tf.config.threading.set_intra_op_parallelism_threads(count)
        # Otherwise two gradients run at the same time, even with one thread each.
        tf.config.threading.set_inter_op_parallelism_threads(1)
    except RuntimeError as error:
        raise CommandError(
            f"--threads comes too late in this process: {error}"
        ) from None


def measure(argv: Sequence[str], counts: Sequence[int], output: pathlib.Path) -> dict:
    """Runs the benchmark with each number of threads.

    Args:
        argv: The command line after `tf-capsops bench`.
        counts: Numbers of threads.
        output: A directory for the directories of the runs.

    Returns:
        A report with the number of `threads` in each result.

    Raises:
        CommandError: One of the runs did not finish.
    """
    made: dict = {}
    for count in counts:
        folder = output / f"threads-{count}"
        more = ["--device", "CPU", "--threads", str(count), "--output", str(folder)]
        command = [sys.executable, "-m", "tf_capsops", "bench", *argv, *more]
        code = subprocess.run(command).returncode
        if code not in (0, 1):  # 1 if one of our methods could not run
            raise CommandError(f"bench with {count} threads ended with status {code}")
        part = json.loads((folder / "bench.json").read_text())
        made = made or {**part, "command": report.command(argv), "results": []}
        made["results"] += part["results"]
    return made


def tables(made: dict) -> list[Table]:
    """Returns a table for each op, case and direction: our time, and how it scales."""
    groups: dict[str, list[dict]] = {}
    for result in made["results"]:
        groups.setdefault(report.title(result), []).append(result)
    return [_table(title, results) for title, results in groups.items()]


def _table(title: str, results: list[dict]) -> Table:
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("threads", "ours, us", "best rival, us", "x ours", "scaling"):
        shown.add_column(heading, justify="right", no_wrap=True)
    first = None
    for result in results:
        times = {
            name: method["median_us"]
            for name, method in result["methods"].items()
            if "median_us" in method
        }
        ours = times.get(report.OURS)
        first = first or ours
        rivals = [t for n, t in times.items() if not n.startswith(report.OURS)]
        best = min(rivals, default=None)
        shown.add_row(
            str(result["threads"]),
            f"{ours:.4g}" if ours else "cannot run",
            f"{best:.4g}" if best else "",
            f"{best / ours:.2f}" if ours and best else "",
            f"{first / ours:.2f}" if ours and first else "",
        )
    return shown
