# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws the bar chart: one panel for each result, a dashed line at the floor."""

from __future__ import annotations

import pathlib
import textwrap
from collections.abc import Mapping

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tf_capsops.bench.report import OURS, title

_COLUMNS = 2
_TITLE_WIDTH = 60


def save(report: Mapping, path: pathlib.Path) -> None:
    """Draws all results of a report to a PNG file."""
    results = report["results"]
    rows = -(-len(results) // _COLUMNS)
    most = max(len(result["methods"]) for result in results)
    height = max(2.6, 0.35 * most) * rows
    figure = Figure(figsize=(7 * _COLUMNS, height), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, _COLUMNS, squeeze=False).flat
    for panel in panels:
        panel.set_axis_off()
    for panel, result in zip(panels[:], results, strict=False):
        _draw(panel, result)
    figure.savefig(path, dpi=120)


def _draw(panel, result: Mapping) -> None:
    panel.set_axis_on()
    timed = {n: m for n, m in result["methods"].items() if "median_us" in m}
    names = list(timed)
    medians = [method["median_us"] for method in timed.values()]
    below = [m["median_us"] - m["quartiles_us"][0] for m in timed.values()]
    above = [m["quartiles_us"][1] - m["median_us"] for m in timed.values()]
    colors = ["tab:blue" if name == OURS else "tab:gray" for name in names]
    bars = panel.barh(names, medians, xerr=[below, above], color=colors)
    panel.bar_label(bars, labels=[f" {median:.1f}" for median in medians])
    if "floor_us" in result:
        panel.axvline(result["floor_us"], color="black", linestyle="--", linewidth=1)
    panel.invert_yaxis()
    panel.margins(x=0.15)
    panel.set_xlabel("microseconds for one call (dashed: floor)")
    panel.set_title(
        textwrap.fill(title(result), _TITLE_WIDTH), fontsize="small", loc="left"
    )
