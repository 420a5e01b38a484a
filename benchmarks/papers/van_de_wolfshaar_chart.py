# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training steps of the paper's network, a panel for each device."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def _draw(panel, result: Mapping) -> None:
    methods = {n: m for n, m in result["methods"].items() if "median_us" in m}
    steps = [method["median_us"] / 1e3 for method in methods.values()]
    bars = panel.barh(list(methods), steps, color="tab:blue", alpha=0.4, label="a step")
    panel.bar_label(bars, [f"{ms:.3g}" for ms in steps], padding=3, fontsize="small")
    if all("busy_us" in method for method in methods.values()):
        busy = [method["busy_us"] / 1e3 for method in methods.values()]
        panel.barh(list(methods), busy, color="tab:blue", label="the GPU computes")
        panel.legend(fontsize="small")
    panel.invert_yaxis()
    panel.set_xlabel("milliseconds")
    panel.set_title(f"{result['device']}, batch {result['sizes']['batch']}")
    panel.margins(x=0.15)


def draw(results: Sequence[Mapping], path: pathlib.Path) -> None:
    """Draws the training steps among the results to a PNG file."""
    steps = [result for result in results if result["part"] == "training"]
    figure = Figure(figsize=(7 * max(1, len(steps)), 4), layout="constrained")
    FigureCanvasAgg(figure)
    for place, result in enumerate(steps, 1):
        _draw(figure.add_subplot(1, len(steps), place), result)
    figure.savefig(path, dpi=120)
