# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Files that `python -m benchmarks.papers` writes: papers.json, and the charts.

papers.json has the results of each paper under `papers`, and under `tables` the tables
that docs/papers.md shows, which tools/measured.py reads. Both say where their numbers
come from, so that files of several runs can be merged.
"""

from __future__ import annotations

import json
import pathlib
import shlex
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rich import box
from rich.table import Table

from tf_capsops.errors import CommandError
from tf_capsops.machine import machine

_COMMAND = ("python", "-m", "benchmarks.papers")
# The fields of `machine` that a table keeps of its run.
_KEPT = ("commit", "modified", "date", "cpu", "cores", "gpus")


def name_of(paper: types.ModuleType) -> str:
    return paper.__name__.rpartition(".")[2]


def parts_of(paper: types.ModuleType) -> dict[str, Callable[[str, int], Iterator]]:
    """Returns what a paper measures by the names of its parts, "" if it has none."""
    return getattr(paper, "PARTS", None) or {"": paper.run}


def provenance(tf32: bool) -> dict:
    """Describes the run that this process is."""
    here = machine()
    made = {key: here[key] for key in _KEPT if key in here}
    made["gpus"] = [{"device_name": gpu["device_name"]} for gpu in here["gpus"]]
    return made | {"tf32": tf32, "versions": here["versions"]}


def command(paper: str, part: str, device: str, repeat: int, tf32: bool) -> str:
    """Returns the command that measures a part of a paper again."""
    words = [*_COMMAND, "--paper", paper]
    words += ["--part", part] if part else []
    words += ["--device", device.partition(":")[0], "--repeat", str(repeat)]
    return shlex.join([*words, *([] if tf32 else ["--no-tf32"])])


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence],
    of: Iterable[Mapping | None],
    op: str | None = None,
) -> dict:
    """Returns a table as tools/measured.py reads it.

    Args:
        columns: Its headings.
        rows: Its rows, of texts and numbers.
        of: The results that it shows, those that there are.
        op: The op whose kernels it measures, if any.
    """
    runs = [
        {**result["run"], "device": result["device"].partition(":")[0]}
        for result in of
        if result
    ]
    return {
        "op": op,
        "columns": list(columns),
        "rows": [list(row) for row in rows],
        "runs": [run for place, run in enumerate(runs) if run not in runs[:place]],
    }


def newest(results: Iterable[Mapping], **wanted) -> dict | None:
    """Returns the last result with these values, or None."""
    found = None
    for result in results:
        if all(result.get(key) == value for key, value in wanted.items()):
            found = result
    return found


def on(kind: str, results: Iterable[Mapping]) -> list[Mapping]:
    """Returns the results of a type of device."""
    return [r for r in results if r["device"].partition(":")[0] == kind]


def assemble(made: dict, papers: Sequence[types.ModuleType]) -> dict:
    """Adds the tables to a report's results."""
    made["tables"] = {}
    for paper in papers:
        if hasattr(paper, "tables"):
            made["tables"] |= dict(paper.tables(made["papers"].get(name_of(paper), [])))
    return made


def write(made: Mapping, path: pathlib.Path) -> None:
    path.write_text(json.dumps(made, indent=1) + "\n")


def draw(made: Mapping, papers: Sequence[types.ModuleType], output: pathlib.Path):
    """Draws the charts of papers, and yields where they are."""
    for paper in papers:
        results = made["papers"].get(name_of(paper), [])
        if hasattr(paper, "draw"):
            path = output / f"papers_{name_of(paper)}.png"
            paper.draw(results, path)
            yield path


def _read(path: pathlib.Path) -> dict:
    try:
        read = json.loads(path.read_text())
        for results in read["papers"].values():
            for result in results:
                result["part"], result["device"], result["run"]["date"]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        reason = str(error) if isinstance(error, OSError) else "is no papers.json"
        raise CommandError(f"--from {path}: {reason}") from None
    return read


def merge(paths: Iterable[pathlib.Path]) -> dict:
    """Returns the results of several files as one report.

    Where several files measured the same part of a paper on the same type of device,
    the last one counts.

    Raises:
        CommandError: A file cannot be read, or is none that this command wrote.
    """
    found: dict[str, dict[tuple, list[dict]]] = {}
    for path in paths:
        for paper, results in _read(path)["papers"].items():
            units: dict[tuple, list[dict]] = {}
            for result in results:
                kind = result["device"].partition(":")[0]
                units.setdefault((result["part"], kind), []).append(result)
            found.setdefault(paper, {}).update(units)
    papers = {
        paper: [result for unit in units.values() for result in unit]
        for paper, units in found.items()
    }
    dates = [r["run"]["date"] for results in papers.values() for r in results]
    return {
        "command": shlex.join(_COMMAND),
        "date": max(dates, default=""),
        "papers": papers,
    }


def name_checkout(made: dict, commit: str, processor: str) -> None:
    """Names the commit and the processor of results from outside a checkout.

    Raises:
        CommandError: There are such results, and no commit.
    """
    for paper, results in made["papers"].items():
        for run in (result["run"] for result in results):
            if run.get("commit") != "unknown":
                continue
            if not commit:
                raise CommandError(
                    f"--from: {paper} was not measured in a checkout: name its --commit"
                )
            run |= {"commit": commit, "cpu": processor or run["cpu"]}


def rendered(name: str, made: Mapping) -> Table:
    """Returns a table of a page for the terminal."""
    shown = Table(title=name, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    for place, column in enumerate(made["columns"]):
        shown.add_column(
            column.replace("`", ""), justify="right" if place else "left", no_wrap=True
        )
    for row in made["rows"]:
        cells = (str(cell).replace("`", "").replace("**", "") for cell in row)
        shown.add_row(*cells)
    return shown
