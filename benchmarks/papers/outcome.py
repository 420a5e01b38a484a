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
    """Makes the least number of each column bold, in place; not those in brackets."""
    for column in columns:
        numbers = {}
        for place, line in enumerate(rows):
            first, _, rest = line[column].partition(" ")
            if first.replace(",", "").replace(".", "").isdigit():
                numbers[place] = float(first.replace(",", "")), first, rest
        if numbers:
            best = min(numbers, key=numbers.get)
            _, first, rest = numbers[best]
            rows[best][column] = f"**{first}** {rest}".strip()
