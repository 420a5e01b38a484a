# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compares our times in several types with those in float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from tf_capsops.bench import report

_FIRST = "float32"
_ROW = "op", "case", "direction", "device"


def table(results: Sequence[Mapping]) -> Table:
    """Returns a table of our methods, with the ratios to float32, for the terminal.

    A type is marked as slower if its lower quartile is above float32's upper one.
    """
    dtypes = [*dict.fromkeys(result["dtype"] for result in results)]
    dtypes.sort(key=lambda dtype: dtype != _FIRST)
    rows: dict[tuple, dict[str, Mapping]] = {}
    for result in results:
        for name, method in result["methods"].items():
            if name.startswith(report.OURS):
                key = *(result[field] for field in _ROW), name
                rows.setdefault(key, {})[result["dtype"]] = method
    shown = Table(
        title="Ours by type, in us (times float32)",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    several = len({result["device"] for result in results}) > 1
    shown.add_column("")
    for dtype in dtypes:
        shown.add_column(dtype, justify="right", no_wrap=True)
    notes = []
    for (op, case, direction, device, name), methods in rows.items():
        label = f"{op} {case} {direction}" + (f", {device}" if several else "")
        label += name.removeprefix(report.OURS)
        first = methods.get(_FIRST, {})
        cells, slow = [], False
        for dtype in dtypes:
            method = methods.get(dtype, {})
            cells.append(_cell(method, first if dtype != _FIRST else {}))
            slow = slow or is_slower(method, first)
            if "error" in method:
                notes.append(f"{label}, {dtype}: {method['error']}")
        shown.add_row(label, *cells, style="red" if slow else None)
    shown.caption, shown.caption_justify = "\n".join(notes), "left"
    return shown


def is_slower(method: Mapping, first: Mapping) -> bool:
    """Tells whether a method's lower quartile is above another's upper quartile."""
    if "median_us" not in method or "median_us" not in first:
        return False
    return method["quartiles_us"][0] > first["quartiles_us"][1]


def _cell(method: Mapping, first: Mapping) -> str:
    if "median_us" not in method:
        return "cannot run" if "error" in method else ""
    text = f"{method['median_us']:.1f}"
    if "median_us" in first:
        text += f" ({method['median_us'] / first['median_us']:.2f})"
    return f"{text} slower" if is_slower(method, first) else text
