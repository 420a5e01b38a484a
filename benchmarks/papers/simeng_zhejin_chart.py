# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The paper's four charts, a panel for each device and direction."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tf_capsops.bench.report import OURS

_COLUMNS = 2
_COLORS = {"python": "tab:gray", "cpp": "tab:olive", "cuda": "tab:red"}


def _style(name: str) -> dict:
    method, _, way = name.partition(", ")
    style = {"color": "tab:blue" if method == OURS else _COLORS[method], "marker": "o"}
    return style | ({"linestyle": "--", "marker": "x"} if way else {})


def _draw(panel, result: Mapping) -> None:
    for name, row in result["methods"].items():
        if name.endswith(", waited for"):
            continue  # where "cuda" is
        points = [
            (batch, cell["ms"])
            for batch, cell in zip(result["batches"], row["cells"], strict=True)
            if "ms" in cell
        ]
        if points:
            panel.plot(*zip(*points), label=name, **_style(name))
    if "k80_least_ms" in result:
        least = result["batches"], result["k80_least_ms"]
        panel.plot(*least, label="K80: least", color="black", linestyle=":")
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks(result["batches"], [str(batch) for batch in result["batches"]])
    panel.set_xlabel("batch")
    panel.set_ylabel("milliseconds")
    panel.set_title(f"{result['device']}, {result['direction']}", fontsize="medium")
    panel.grid(alpha=0.3)
    panel.legend(fontsize="x-small")


def draw(results: Sequence[Mapping], path: pathlib.Path) -> None:
    """Draws all results to a PNG file."""
    rows = -(-len(results) // _COLUMNS)
    figure = Figure(figsize=(6 * _COLUMNS, 4.5 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, _COLUMNS, squeeze=False).flat
    for panel in panels:
        panel.set_axis_off()
    for panel, result in zip(panels[:], results, strict=False):
        panel.set_axis_on()
        _draw(panel, result)
    figure.savefig(path, dpi=120)
