# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The rows of papers.json and of the tables in which a size varies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tf_capsops.bench import measure

_NO_MEMORY = "out of memory"


def cell(timing: measure.Timing | str) -> dict:
    """Returns a timing in milliseconds, or `error`, why there is none."""
    if isinstance(timing, str):
        full = "oom" in timing.lower() or "out of memory" in timing.lower()
        return {"error": _NO_MEMORY if full else timing}
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


def shown(one: Mapping) -> str:
    """Returns a cell as a table shows it."""
    if "error" in one:
        return "no memory" if one["error"] == _NO_MEMORY else "cannot run"
    ms = one["ms"]
    return f"{ms:.3f}" if ms < 10 else f"{ms:.1f}" if ms < 100 else f"{ms:.0f}"
