# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cells and rows of papers.json, and how tables show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tf_capsops.bench import measure
from tf_capsops.bench.report import OURS

NO_MEMORY = "out of memory"
# Names of methods as the pages' tables show them.
_SHOWN = {"TF fold": "fold", "TF fold, XLA": "fold, XLA"}
# Columns of a table of training steps: a method's field, and what to divide it by.
STEP_COLUMNS = {
    "ms a step": ("median_us", 1e3),
    "GPU busy, ms": ("busy_us", 1e3),
    "launches": ("launches", 1),
    "peak MB": ("extra_bytes", 1e6),
}


def cell(timing: measure.Timing | str) -> dict:
    """Returns a timing in milliseconds, or `error`, why there is none."""
    if isinstance(timing, str):
        full = "oom" in timing.lower() or "out of memory" in timing.lower()
        return {"error": NO_MEMORY if full else timing}
    quartiles = [timing.lower_quartile, timing.upper_quartile]
    return {
        "ms": timing.median * 1e3,
        "quartiles_ms": [seconds * 1e3 for seconds in quartiles],
        "samples": timing.samples,
    }


def row(varied: str, cells: Sequence[Mapping], sizes: Sequence[int]) -> dict:
    """Returns a method's cells; `error` where it failed for any size of `varied`."""
    made: dict = {"cells": cells}
    failed = [
        f"{varied} {size}: {one['error']}"
        for size, one in zip(sizes, cells, strict=True)
        if "error" in one
    ]
    return made | ({"error": "; ".join(failed)} if failed else {})


def number(ms: float | None) -> str:
    """Returns milliseconds, or any number, in three digits or four."""
    if ms is None:
        return ""
    return f"{ms:.3f}" if ms < 10 else f"{ms:.1f}" if ms < 100 else f"{ms:,.0f}"


def fixed(values: Sequence[float | None]) -> list[str]:
    """Returns a column's numbers with the same decimals; "" where one is None."""
    known = [value for value in values if value is not None]
    largest = max(known, default=0)
    decimals = 3 if largest < 10 else 2 if largest < 100 else 0
    return ["" if value is None else f"{value:,.{decimals}f}" for value in values]


def shown(one: Mapping) -> str:
    """Returns a cell as a table shows it."""
    if "error" in one:
        return "no memory" if one["error"] == NO_MEMORY else "cannot run"
    return number(one["ms"])


def name(method: str, op: str) -> str:
    """Returns a method's name as the pages' tables show it: ours by the op's."""
    plain, _, way = method.partition(", ")
    if plain == OURS:
        return ", ".join([op, way]) if way else op
    return _SHOWN.get(method, f"`{plain}`" + (f", {way}" if way else ""))


def bold_least(rows: Sequence[list[str]], columns: Iterable[int]) -> None:
    """Makes the least number of each column bold, in place; not those in brackets.

    Numbers that print alike are bold together.
    """
    for column in columns:
        numbers = {}
        for place, line in enumerate(rows):
            first, _, rest = line[column].partition(" ")
            if first.replace(",", "").replace(".", "").isdigit():
                numbers[place] = float(first.replace(",", "")), first, rest
        least = min(numbers.values(), default=(0.0, "", ""))[0]
        for place, (number, first, rest) in numbers.items():
            if number == least:
                rows[place][column] = f"**{first}** {rest}".strip()


def steps(
    names: Sequence[str],
    methods: Iterable[Mapping],
    columns: Mapping[str, tuple[str, float]] = STEP_COLUMNS,
) -> tuple[list[str], list[list[str]]]:
    """Returns columns and rows of a table of training steps, the fastest one bold.

    Args:
        names: The methods as the table names them.
        methods: As `tf-capsops bench` measured them.
        columns: As `STEP_COLUMNS`. Those without any number are left out, unless it
            is the first.
    """
    methods = list(methods)
    found = {
        heading: [
            None if method.get(field) is None else method[field] / unit
            for method in methods
        ]
        for heading, (field, unit) in columns.items()
    }
    first, *_ = columns
    found = {
        heading: values
        for heading, values in found.items()
        if heading == first or values.count(None) < len(methods) or not methods
    }
    rows = [list(line) for line in zip(names, *map(fixed, found.values()))]
    for line in rows:
        line[1] = line[1] or "cannot run"
    bold_least(rows, (1,))
    return ["training step", *found], rows
