# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables of what `tf-capsops bench` has measured, as tables.json describes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tools.measured_runs import (
    Wrong,
    bullets,
    machine_of,
    markdown,
    matches,
    number,
    select,
    source_of,
)

OURS = "tf_capsops"
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
_KINDS = "start-up", "threads"
_DTYPES = "float32", "bfloat16", "float16"


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


def _of_the_kind(spec: dict, runs: Sequence[dict]) -> Iterator[dict]:
    """Yields runs without the results that only other tables show.

    Those are of first steps, and of several numbers of threads.
    """
    for run in runs:
        results = [
            result
            for result in run.get("results", ())
            if _kind(result) == (spec.get("show") in _KINDS and spec["show"])
        ]
        yield {**run, "results": results}


def _kind(result: dict) -> str | bool:
    if "threads" in result:
        return "threads"
    first = any("first_s" in each for each in result["methods"].values())
    return first and "start-up"


def rows_of(spec: dict, runs: Sequence[dict]) -> Iterator[tuple[dict, dict, dict]]:
    """Yields rows of a table's spec, each with a run and a result that it shows."""
    runs = [*_of_the_kind(spec, runs)]
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
    chosen = list(rows_of(spec, runs))
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


def _labeled(spec: dict, runs: Sequence[dict]) -> Iterator[tuple]:
    """Yields label, machine, row, run and result; labels tell machines apart."""
    chosen = [
        (machine_of(run, result["device"]), row, run, result)
        for row, run, result in rows_of(spec, runs)
    ]
    several = len({machine for machine, *_ in chosen}) > 1
    for machine, row, *found in chosen:
        label = f"{machine}: {row['label']}" if several else row["label"]
        yield label, machine, row, *found


def _training_table(spec: dict, runs: Sequence[dict]) -> str:
    """Shows every method of each row's network that was measured."""
    columns = _START_UP if spec.get("show") == "start-up" else _TRAINING
    first, _ = next(iter(columns.values()))
    rows, sources = [], []
    for label, machine, _row, run, result in _labeled(spec, runs):
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


def _threads_table(spec: dict, runs: Sequence[dict]) -> str:
    """Shows our milliseconds by number of threads, and how much faster the most are."""
    by_row, sources, counts = {}, [], {}
    for label, machine, row, run, _result in _labeled(spec, runs):
        wanted = {"op": spec["op"], **spec.get("where", {}), **row}
        found = {
            result["threads"]: result["methods"][OURS]["median_us"] / 1e3
            for result in run["results"]
            if "threads" in result and matches(run, result, wanted)
        }
        counts |= dict.fromkeys(found)
        by_row[label] = found
        sources.append(source_of(run, machine))
    least, most = min(counts), max(counts)
    rows = [
        [
            label,
            *(number(found[n]) for n in counts),
            f"{found[least] / found[most]:.1f}",
        ]
        for label, found in by_row.items()
    ]
    headings = ["ms, by threads", *map(str, counts), f"{least} to {most}"]
    return f"{markdown(headings, rows)}\n{bullets(sources)}"


def _dtype_table(spec: dict, runs: Sequence[dict]) -> str:
    """Shows our times in several types, with the ratios to float32.

    A row names one of our methods, or the quickest of each type is shown. What was
    measured in one type only is left out.
    """
    dtypes = spec.get("dtypes", _DTYPES)
    rows, sources = [], []
    for label, machine, row, _run, _result in _labeled(spec, runs):
        cells, own, first = [], [], None
        for dtype in dtypes:
            wanted = {"op": spec["op"], **spec.get("where", {}), **row, "dtype": dtype}
            time, source = _our_time(select(runs, wanted), machine, row)
            text = "" if time is None else number(time)
            if time and first:
                text += f" ({time / first:.2f})"
            first = time if dtype == "float32" else first
            cells.append(text)
            own += [source] if source else []
        if len(own) > 1:
            rows.append([label, *cells])
            sources += own
    return f"{markdown(['in us', *dtypes], rows)}\n{bullets(sources)}"


def _codes_table(spec: dict, runs: Sequence[dict]) -> str:
    """Shows layers with codes next to those with numbers.

    There are columns for each of the spec's batches, and of its methods by headings. A
    row names the case of the first batch.
    """
    methods = spec.get("methods", {"": OURS})
    wanted = {"op": spec["op"], **spec.get("where", {})}
    rows, sources, headings = [], [], ["in ms"]
    for label, machine, row, _run, _result in _labeled(spec, runs):
        case, cells = row["case"].rpartition(", batch ")[0], []
        for batch in spec["batches"]:
            for method in methods.values():
                name = f"{case}, batch {batch}"
                codes = method.replace(OURS, f"{OURS}, codes")
                run, result = _measured(
                    runs, machine, {**wanted, **row, "case": name, "method": codes}
                )
                ours, coded = (
                    result["methods"][each]["median_us"] for each in (method, codes)
                )
                cells += [number(ours / 1e3), number(coded / 1e3)]
                cells.append(f"{coded / ours:.2f}")
                sources.append(source_of(run, machine))
        rows.append([label, *cells])
    for batch in spec["batches"]:
        for heading in methods:
            headings += [f"batch {batch}{heading}", "with codes", "ratio"]
    return f"{markdown(headings, rows)}\n{bullets(sources)}"


def _measured(runs: Sequence[dict], machine: str, wanted: dict) -> tuple[dict, dict]:
    """Returns the newest run and result of a machine."""
    for run, result in select(runs, wanted):
        if machine_of(run, result["device"]) == machine:
            return run, result
    raise Wrong(f"no run of {machine} has {wanted}")


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


def _method_table(spec: dict, runs: Sequence[dict]) -> str:
    """Shows one number of training steps, with a column for each method."""
    unit = spec.get("unit", "ms a step")
    field, scale = _TRAINING[unit]
    rows, sources = [], []
    for label, machine, _row, run, result in _labeled(spec, runs):
        taken = [
            result["methods"].get(method, {}).get(field)
            for method in spec["columns"].values()
        ]
        if not any(taken):
            raise Wrong(f"{result['op']} {result['case']}: no method has {unit}")
        choose = max if unit == "images a second" else min
        best = choose(filter(None, taken))
        cells = ["" if each is None else number(each / scale) for each in taken]
        rows.append(
            [label, *(f"**{c}**" if t == best else c for c, t in zip(cells, taken))]
        )
        sources.append(source_of(run, machine))
    return f"{markdown([unit, *spec['columns']], rows)}\n{bullets(sources)}"


def table_of(spec: dict, runs: Sequence[dict]) -> str:
    """Returns the Markdown of a table of results."""
    if spec.get("show") == "threads":
        return _threads_table(spec, runs)
    if spec.get("show") == "dtypes":
        return _dtype_table(spec, runs)
    if spec.get("show") == "codes":
        return _codes_table(spec, runs)
    if spec["op"] != "training":
        return _bench_table(spec, runs)
    if spec.get("show") == "methods":
        return _method_table(spec, runs)
    return _training_table(spec, runs)
