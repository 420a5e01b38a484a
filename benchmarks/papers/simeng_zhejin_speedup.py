# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Speedups over the Python implementation of Simeng and Zhejin, theirs and ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.papers import report
from benchmarks.papers.simeng_zhejin_methods import label_of

BATCH = 64  # the only one in the text
_BASE = "python"


def _times(result: Mapping) -> dict[str, float | None]:
    """Returns milliseconds by method, None where there are none."""
    found = {}
    for name, row in result["methods"].items():
        by_batch = dict(zip(result["batches"], row["cells"], strict=True))
        found[name] = by_batch.get(BATCH, {}).get("ms")
    return found


def _factor(times: Mapping[str, float | None], name: str) -> str:
    """Returns how many times as fast as Python a method is, "" where not known."""
    if not (times.get(_BASE) and times.get(name)):
        return ""
    factor = times[_BASE] / times[name]
    return f"{factor:.2f}" if factor < 10 else f"{factor:.0f}"


def table(
    results: Sequence[Mapping],
    text: Mapping[tuple[str, str], Mapping[str, float]],
) -> dict:
    """Returns our speedups of the whole module, those of the text in brackets.

    Args:
        results: Those of the paper.
        text: Published milliseconds by method, for each device and direction.
    """
    found, columns = [], []
    for (kind, direction), theirs in text.items():
        on_kind = report.on(kind, results)
        result = report.newest(on_kind, part="module", direction=direction)
        ours, cells = _times(result) if result else {}, {}
        for name in (*theirs, *ours):
            published = _factor(theirs, name)
            brackets = f"({published})" if published else ""
            cells[name] = f"{_factor(ours, name)} {brackets}".strip()
        found.append(result)
        columns.append(cells)
    names = dict.fromkeys(name for cells in columns for name in cells)
    rows = [
        [label_of(name), *(cells.get(name, "") for cells in columns)]
        for name in names
        if name != _BASE
    ]
    headings = [f"{kind}, {direction}" for kind, direction in text]
    headings = [f"speedup over `{_BASE}`, batch {BATCH}", *headings]
    return report.table(headings, rows, found, "HighOrderConv")
