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
results has our times in several types. Of two runs that measured the same on the same
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
    matches,
    number,
    read_runs,
    runs_of,
    select,
    source_of,
)

OURS = "tf_capsops"
_MARKED = re.compile(
    r"(<!-- measured: ([\w.-]+) -->\n)(.*?)(<!-- /measured -->)", re.DOTALL
)
# Columns of a table of training steps: a method's field, and what to divide it by.
_TRAINING = {
    "ms a step": ("median_us", 1e3),
    "images a second": ("images_per_second", 1),
    "GPU busy, ms": ("busy_us", 1e3),
    "launches": ("launches", 1),
    "peak MB": ("extra_bytes", 1e6),
}
# Columns of a table of first steps, with their fields and units.
_START_UP = {
    "seconds": ("start_up_s", 1),
    "Python and imports": ("import_s", 1),
    "building": ("build_s", 1),
    "first step": ("first_s", 1),
}
_DTYPES = "float32", "bfloat16", "float16"
_DROPPED = ("extremes_us", "samples", "times_ours")  # by --add, of each method


def _cells(spec: dict, row: dict, result: dict, unit: str) -> list[str]:
    """Returns what the table shows of one result: ours, rivals, floor, kernel."""
    memory = row.get("value") == "memory"
    key, scale = ("extra_bytes", 1e6) if memory else ("median_us", 1)
    if not memory and result["device"].startswith("CPU"):
        scale = 1e3
    taken = {}
    for name, method in result["methods"].items():
        if method.get(key) is not None:
            taken[name] = method[key] / scale
    columns = {OURS: OURS, **spec["columns"]}
    shown = {}
    for heading, methods in columns.items():
        methods = [methods] if isinstance(methods, str) else methods
        values = [taken[method] for method in methods if method in taken]
        if values:
            shown[heading] = min(values)
    if OURS not in shown:
        raise Wrong(f"{result['op']} {result['case']}: there is no result of ours")
    # A part of a rival's work, such as "fold: conv alone", is in no contest.
    rivals = {
        h: v for h, v in shown.items() if h != OURS and ": " not in str(columns[h])
    }
    best = min([shown[OURS], *rivals.values()])
    cells = []
    for heading in columns:
        text = ""
        if heading in shown:
            value = shown[heading]
            contends = heading == OURS or heading in rivals
            text = number(value) + unit
            text = f"**{text}**" if contends and value == best else text
            if spec.get("ratios") and heading in rivals:
                text += f" ({value / shown[OURS]:.2f})"
        cells.append(text)
    if spec.get("best"):
        quickest = min(rivals.values(), default=0)
        cells.insert(1, f"{quickest / shown[OURS]:.2g}x" if rivals else "")
    if spec.get("floor"):
        floor = result.get("floor_us")
        cells.append("" if memory or floor is None else number(floor / scale) + unit)
    return cells


def _rows(spec: dict, runs: Sequence[dict]) -> Iterator[tuple[dict, dict, dict]]:
    for row in spec["rows"] if "rows" in spec else _every_row(spec, runs):
        wanted = {"op": spec["op"], "dtype": "float32", **spec.get("where", {}), **row}
        found = select(runs, wanted)
        if not found:
            raise Wrong(f"no run in docs/measured has {wanted}")
        for run, result in found:
            yield row, run, result


def _every_row(spec: dict, runs: Sequence[dict]) -> list[dict]:
    """Returns a row for each case and direction of an op that any run has."""
    wanted = {"op": spec["op"], **spec.get("where", {})}
    found = {
        (result["case"], result["direction"]): None
        for run in runs
        for result in run.get("results", ())
        if matches(run, result, wanted)
    }
    if not found:
        raise Wrong(f"no run in docs/measured has {wanted}")
    return [
        {"label": f"{case}, {direction}", "case": case, "direction": direction}
        for case, direction in found
    ]


def _bench_table(spec: dict, runs: Sequence[dict]) -> str:
    chosen = list(_rows(spec, runs))
    devices = {result["device"].partition(":")[0] for _, _, result in chosen}
    units = {"GPU": "us", "CPU": "ms"}
    kernels = [result["methods"][OURS].get("kernel", "") for _, _, result in chosen]
    rows, sources = [], []
    machines = {machine_of(run, result["device"]) for _, run, result in chosen}
    for (row, run, result), kernel in zip(chosen, kernels, strict=True):
        device = result["device"].partition(":")[0]
        machine = machine_of(run, device)
        memory = row.get("value") == "memory"
        unit = " MB" if memory else f" {units[device]}" if len(devices) > 1 else ""
        label = f"{machine}: {row['label']}" if len(machines) > 1 else row["label"]
        cells = _cells(spec, row, result, unit)
        rows.append([label, *cells, *([kernel] if any(kernels) else [])])
        sources.append(source_of(run, machine))
    headings = ["" if len(devices) > 1 else f"in {units[devices.pop()]}", OURS]
    headings += ["best rival"] if spec.get("best") else []
    headings += spec["columns"]
    headings += ["floor"] if spec.get("floor") else []
    headings += ["kernel"] if any(kernels) else []
    return f"{markdown(headings, rows)}\n{bullets(sources)}"


def _training_table(spec: dict, runs: Sequence[dict]) -> str:
    """Shows every method of each row's network that was measured."""
    columns = _START_UP if spec.get("show") == "start-up" else _TRAINING
    first, _ = next(iter(columns.values()))
    chosen = list(_rows(spec, runs))
    machines = {machine_of(run, result["device"]) for _, run, result in chosen}
    rows, sources = [], []
    for row, run, result in chosen:
        machine = machine_of(run, result["device"])
        label = f"{machine}: {row['label']}" if len(machines) > 1 else row["label"]
        methods = {n: _with_sum(m) for n, m in result["methods"].items()}
        methods = {n: m for n, m in methods.items() if first in m}
        if not methods:
            raise Wrong(f"{result['op']} {result['case']}: no method has {first}")
        best = min(method[first] for method in methods.values())
        for name, method in methods.items():
            cells = [
                number(method[field] / scale) if method.get(field) is not None else ""
                for field, scale in columns.values()
            ]
            if method[first] == best:
                cells[0] = f"**{cells[0]}**"
            rows.append([f"{label}: {name}", *cells])
        sources.append(source_of(run, machine))
    empty = [not any(each) for each in zip(*rows, strict=True)]
    headings, *rows = (
        [cell for cell, dropped in zip(line, empty, strict=True) if not dropped]
        for line in [["", *columns], *rows]
    )
    return f"{markdown(headings, rows)}\n{bullets(sources)}"


def _with_sum(method: dict) -> dict:
    """Adds up the parts of a first step, where a method has them."""
    parts = [method.get(field) for field, _ in list(_START_UP.values())[1:]]
    return method if None in parts else {**method, "start_up_s": sum(parts)}


def _dtype_table(spec: dict, runs: Sequence[dict]) -> str:
    """Shows our times in several types, with the ratios to float32.

    A row names one of our methods, or the quickest of each type is shown.
    """
    dtypes = spec.get("dtypes", _DTYPES)
    chosen = list(_rows(spec, runs))
    machines = {machine_of(run, result["device"]) for _, run, result in chosen}
    rows, sources = [], []
    for row, run, result in chosen:
        machine = machine_of(run, result["device"])
        label = f"{machine}: {row['label']}" if len(machines) > 1 else row["label"]
        cells, first = [], None
        for dtype in dtypes:
            wanted = {"op": spec["op"], **spec.get("where", {}), **row, "dtype": dtype}
            time, source = _our_time(select(runs, wanted), machine, row)
            text = "" if time is None else number(time)
            if time and first:
                text += f" ({time / first:.2f})"
            first = time if dtype == "float32" else first
            cells.append(text)
            sources += [source] if source else []
        rows.append([label, *cells])
    return f"{markdown(['in us', *dtypes], rows)}\n{bullets(sources)}"


def _our_time(found: Sequence, machine: str, row: dict) -> tuple[float | None, str]:
    """Returns our time on a machine in microseconds, and where it comes from."""
    for run, result in found:
        times = [
            method["median_us"]
            for name, method in result["methods"].items()
            if name.startswith(OURS) and row.get("method", name) == name
            if "median_us" in method
        ]
        if machine_of(run, result["device"]) == machine and times:
            return min(times), source_of(run, machine)
    return None, ""


def _part(table: dict, spec: dict) -> dict:
    """Returns a table's rows `where` columns have a text, and some of its columns."""
    names = table["columns"]
    where = {names.index(name): text for name, text in spec.get("where", {}).items()}
    rows = [
        row
        for row in table["rows"]
        if all(row[place] == text for place, text in where.items())
    ]
    if columns := spec.get("columns"):
        places = [names.index(name) for name in columns.values()]
        rows = [[row[place] for place in places] for row in rows]
        names = list(columns)
    return {**table, "columns": names, "rows": rows}


def _given_table(table: dict, run: dict) -> str:
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
        table = _training_table if spec["op"] == "training" else _bench_table
        table = _dtype_table if spec.get("show") == "dtypes" else table
        return table(spec, runs)
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
            for row, run, result in _rows(spec, runs):
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
