# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Charts of milliseconds by some size: ours solid, published numbers dashed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

DPI = 110
_MEASURED = {"marker": "o"}
_PUBLISHED = {"linestyle": "--", "marker": "x", "alpha": 0.7}


def figure(rows: int, columns: int, width: float = 4.4) -> tuple[Figure, list[list]]:
    """Returns a figure and its panels, by row; `width` is a panel's, in inches."""
    made = Figure(figsize=(width * columns, 3.7 * rows), layout="constrained")
    FigureCanvasAgg(made)
    return made, [list(line) for line in made.subplots(rows, columns, squeeze=False)]


def times(row: Mapping) -> list[float | None]:
    """Returns a row's milliseconds, None where there are none."""
    return [cell.get("ms") for cell in row["cells"]]


def line(panel, sizes: Sequence, values: Sequence, label: str, **style) -> None:
    """Draws what there is of a line."""
    points = [(x, y) for x, y in zip(sizes, values, strict=True) if y is not None]
    if points:
        panel.plot(*zip(*points), label=label, **{**_MEASURED, **style})


def published(panel, sizes: Sequence, values: Sequence, label: str, color: str) -> None:
    """Draws a line of published numbers, or a band where each is a least and a most."""
    if isinstance(values[0], tuple):
        panel.fill_between(sizes, *zip(*values), label=label, color=color, alpha=0.3)
        values = [most for _, most in values]
    line(panel, sizes, values, label, color=color, **_PUBLISHED)


def legend(figure: Figure, colors: Mapping[str, str], theirs: str) -> None:
    """Adds a legend for all panels below them.

    Args:
        figure: As `figure` returns it.
        colors: The colors of lines by what they stand for.
        theirs: Which machines the published numbers are of.
    """
    lines = {name: Line2D([], [], color=c, **_MEASURED) for name, c in colors.items()}
    lines[f"published: {theirs}"] = Line2D([], [], color="gray", **_PUBLISHED)
    columns = -(-len(lines) // 2)
    place = "outside lower center"
    figure.legend(lines.values(), lines, loc=place, ncols=columns, fontsize="small")


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
