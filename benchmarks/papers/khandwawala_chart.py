# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The report's charts, a panel for each size that is varied and each way to tile."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tf_capsops.bench.report import OURS

_COLUMNS = 2
_TILINGS = ("output", "input")
_COLORS = {  # as far as the report names them, its own: basic is blue
    "basic": "tab:blue",
    "1": "tab:orange",
    "2": "tab:green",
    "3": "tab:orange",
    "5": "tab:green",
    "6": "tab:purple",
    "serial": "tab:gray",
    "conv2d": "black",
    OURS: "tab:red",
}


def _style(name: str) -> dict:
    method, _, without = name.partition(", ")
    _, _, version = method.rpartition("_")
    color = _COLORS[method] if method in _COLORS else _COLORS[version]
    style = {"color": color, "marker": "o"}
    return style | ({"linestyle": "--", "marker": "x"} if without else {})


def _tiling(name: str) -> str:
    tiling = name.partition("_")[0]
    return tiling if tiling in _TILINGS else ""


def _draw(panel, result: Mapping, tiling: str) -> None:
    for name, row in result["methods"].items():
        if _tiling(name) not in ("", tiling):
            continue
        points = [
            (size, cell["ms"])
            for size, cell in zip(result["sizes"], row["cells"], strict=True)
            if "ms" in cell
        ]
        if points:
            panel.plot(*zip(*points), label=name, **_style(name))
    if result["varied"] == "image":
        panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks(result["sizes"], [str(size) for size in result["sizes"]])
    panel.set_xlabel(f"{result['varied']} size")
    panel.set_ylabel("milliseconds")
    title = f"{tiling} stationary, {result['device']}" if tiling else result["device"]
    panel.set_title(title, fontsize="medium")
    panel.grid(alpha=0.3)
    panel.legend(fontsize="x-small")


def draw(results: Sequence[Mapping], path: pathlib.Path) -> None:
    """Draws all results to a PNG file."""
    drawn = []
    for result in results:
        tilings = {_tiling(name) for name in result["methods"]} - {""}
        drawn += [(result, tiling) for tiling in sorted(tilings, reverse=True) or [""]]
    rows = -(-len(drawn) // _COLUMNS)
    figure = Figure(figsize=(6 * _COLUMNS, 4.5 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(rows, _COLUMNS, squeeze=False).flat)
    for panel in panels[len(drawn) :]:
        panel.set_axis_off()
    for panel, one in zip(panels, drawn, strict=False):
        _draw(panel, *one)
    figure.savefig(path, dpi=120)
