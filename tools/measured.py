# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes the tables of measured numbers in README.md and docs/ from docs/measured.

A table is between `<!-- measured: NAME -->` and `<!-- /measured -->`, laid out as
mdformat does it. Each JSON file but tables.json is one run: where it came from
(command, commit, date, machine), and `results`, as `tf-capsops bench` writes them, or
`tables` that were measured in some other way; each of these may have `runs` of its own.
tables.json says which results each table shows, or which columns of such a table; a
table of training steps has a row for each method. With `"show": "start-up"` it says how
long the first step of a process took, and with `"show": "dtypes"` a table of any
results has our times in several types. With `"show": "methods"` one of training steps
has a column for each method, and with `"show": "codes"` one of layers compares those
with codes, for several batches. Of two runs that measured the same on the same
machine, the one with the later date counts.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # as a script, it has this folder there alone

from tools.measured_runs import (  # noqa: E402
    Wrong,
    bullets,
    load,
    machine_of,
    markdown,
    read_runs,
    runs_of,
    source_of,
)
from tools.measured_tables import rows_of, table_of  # noqa: E402

_MARKED = re.compile(
    r"(<!-- measured: ([\w.-]+) -->\n)(.*?)(<!-- /measured -->)", re.DOTALL
)
_DROPPED = ("extremes_us", "samples", "times_ours")  # by --add, of each method


def _part(table: dict, spec: dict) -> dict:
    """Returns a table's rows `where` columns have a text, and some of its columns.

    Where it has a list of texts, the rows have one of them.
    """
    names = table["columns"]
    where = {
        names.index(name): text if isinstance(text, list) else [text]
        for name, text in spec.get("where", {}).items()
    }
    rows = [
        row
        for row in table["rows"]
        if all(row[place] in texts for place, texts in where.items())
    ]
    if columns := spec.get("columns"):
        places = [names.index(name) for name in columns.values()]
        rows = [[row[place] for place in places] for row in rows]
        names = list(columns)
    return {**table, "columns": names, "rows": rows}


def _given_table(table: dict, run: dict) -> str:
    if not table["rows"]:
        return "Not measured yet.\n"
    text = markdown(table["columns"], table["rows"], table.get("right", True))
    runs = runs_of(table, run)
    sources = [source_of(each, machine_of(each, device)) for each, device in runs]
    return f"{text}\n{bullets(sources)}" if sources else text


def make(name: str, root: pathlib.Path) -> str:
    """Returns the Markdown of one table."""
    runs = read_runs(root)
    specs = load(root / "docs/measured/tables.json")
    spec = specs.get(name, {"of": name})
    if "op" in spec:
        return table_of(spec, runs)
    for run in reversed(runs):
        if table := run.get("tables", {}).get(spec["of"]):
            return _given_table(_part(table, spec), run)
    raise Wrong(f"docs/measured has no table '{name}'")


def pages(root: pathlib.Path) -> Iterator[tuple[pathlib.Path, str, str]]:
    """Yields each page, its text, and its text with all tables made again."""

    def made(match):
        return f"{match[1]}\n{make(match[2], root)}\n{match[4]}"

    for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        text = path.read_text()
        yield path, text, _MARKED.sub(made, text)


def sources(op: str, device: str) -> list[str]:
    """Returns where the kernels of an op are, as patterns of git."""
    if op in ("training", "layers"):
        return ["cuda" if device.startswith("GPU") else "cc/cpu"]
    names = [re.sub(r"(?<!^)(?=[A-Z])", "_", op).lower()]
    if op == "InqConv":
        names.append("capsule_conv")  # whose products it uses
    if device.startswith("GPU"):
        return ["cuda/common", *(f"cuda/{name}" for name in names)]
    return [f"cc/cpu/{d}{name}*" for name in names for d in ("", "dispatch/")]


def _shown(root: pathlib.Path) -> Iterator[tuple[str, str, str, dict]]:
    """Yields label, op, device and run of every row that a page shows."""
    runs = read_runs(root)
    specs = load(root / "docs/measured/tables.json")
    names = dict.fromkeys(
        m[2] for _, text, _ in pages(root) for m in _MARKED.finditer(text)
    )
    for name in names:
        spec = specs.get(name, {"of": name})
        if "op" in spec:
            for row, run, result in rows_of(spec, runs):
                machine = machine_of(run, result["device"])
                label = f"{name}: {row['label']} ({machine})"
                yield label, result["op"], result["device"], run
            continue
        for run in runs:
            if table := run.get("tables", {}).get(spec["of"]):
                for each, device in runs_of(table, run):
                    yield name, table["op"], device, each


def stale(root: pathlib.Path) -> list[str]:
    """Returns a line for each row that is older than its kernel's sources."""
    found = []
    for label, op, device, run in _shown(root):
        if not op:
            continue
        command = ["git", "log", "--oneline", f"{run['commit']}..HEAD", "--"]
        log = subprocess.run(
            [*command, *sources(op, device)], cwd=root, capture_output=True, text=True
        )
        if log.returncode:
            found.append(f"{label}: commit {run['commit']} is not in this repository")
        elif log.stdout:
            last = log.stdout.splitlines()[0]
            found.append(
                f"{label}: measured at {run['commit']}, kernel changed: {last}"
            )
    return found


def add(report: pathlib.Path, name: str, options, root: pathlib.Path) -> None:
    """Brings what `tf-capsops bench` wrote to docs/measured/NAME.json."""
    run = load(report)
    run["commit"] = options.commit or run["commit"]
    run["cpu"] = options.processor or run["cpu"]
    if run["commit"] == "unknown":
        raise Wrong(f"{report} was not written in a checkout: name its --commit")
    run.pop("library", None)
    for result in run["results"]:
        for method in result["methods"].values():
            for field in _DROPPED:
                method.pop(field, None)
    (root / f"docs/measured/{name}.json").write_text(json.dumps(run, indent=1) + "\n")


def main(argv: Sequence[str] | None = None, root: pathlib.Path = ROOT) -> int:
    """Writes the tables, or does what an option says; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--check", action="store_true", help="exit 1 where a table is not as made here"
    )
    what.add_argument(
        "--stale", action="store_true", help="list rows older than their kernels"
    )
    what.add_argument(
        "--add",
        nargs=2,
        metavar=("BENCH_JSON", "NAME"),
        help="bring in a run, then write",
    )
    parser.add_argument("--commit", help="with --add: the commit that was measured")
    parser.add_argument("--processor", help="with --add: the processor's name")
    options = parser.parse_args(argv)
    try:
        if options.stale:
            print("\n".join(stale(root)) or "no row is older than its kernel")
            return 0
        if options.add:
            add(pathlib.Path(options.add[0]), options.add[1], options, root)
        differ = [(path, made) for path, text, made in pages(root) if text != made]
        for path, made in differ:
            if options.check:
                print(
                    f"{path}: a table is not that of docs/measured; run {sys.argv[0]}"
                )
            else:
                path.write_text(made)
        return 1 if options.check and differ else 0
    except Wrong as error:
        print(f"measured.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
