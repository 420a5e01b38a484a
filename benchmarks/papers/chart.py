# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Charts of milliseconds by some size: ours solid, published numbers dashed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

DPI = 110


def figure(rows: int, columns: int) -> tuple[Figure, list[list]]:
    """Returns a figure and its panels, by row."""
    made = Figure(figsize=(4.4 * columns, 3.7 * rows), layout="constrained")
    FigureCanvasAgg(made)
    return made, [list(line) for line in made.subplots(rows, columns, squeeze=False)]


def times(row: Mapping) -> list[float | None]:
    """Returns a row's milliseconds, None where there are none."""
    return [cell.get("ms") for cell in row["cells"]]


def line(panel, sizes: Sequence, values: Sequence, label: str, **style) -> None:
    """Draws what there is of a line."""
    points = [(x, y) for x, y in zip(sizes, values, strict=True) if y is not None]
    if points:
        panel.plot(*zip(*points), label=label, **{"marker": "o", **style})


def published(panel, sizes: Sequence, values: Sequence, label: str, color: str) -> None:
    """Draws a line of published numbers."""
    style = {"linestyle": "--", "marker": "x", "alpha": 0.7}
    line(panel, sizes, values, label, color=color, **style)


def axes(panel, sizes: Sequence[int], varied: str, title: str) -> None:
    """Labels a panel whose axes are logarithmic."""
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks(sizes, [str(size) for size in sizes])
    panel.minorticks_off()
    panel.set_xlabel(varied)
    panel.set_ylabel("milliseconds")
    panel.set_title(title, fontsize="medium")
    panel.grid(alpha=0.3)
    if panel.get_legend_handles_labels()[0]:
        panel.legend(fontsize="xx-small")
