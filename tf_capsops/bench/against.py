# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compares a report of the benchmark with an earlier one.

Times of two runs also differ because of the machine. The rivals show by how much: their
code is the same, so the median change of their times is attributed to the machine.
Deviations of single rivals from this median show how much changes by chance.
"""

from __future__ import annotations

import json
import pathlib
import statistics
from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from tf_capsops.bench import report
from tf_capsops.errors import CommandError

_ROW = "op", "case", "direction", "device", "dtype"
_STYLES = {"slower": "red", "failed": "red", "faster": "green"}
_FEWEST = 5  # samples in a run; the quartiles of fewer say nothing about its spread
_UNKNOWN = "?"
_MARGIN = 0.05  # smaller differences between two runs are noise
_HEADINGS = "before, us", "now, us", "now / before", "rivals", "without the machine"


def read(path: pathlib.Path) -> dict:
    """Returns the report in a file.

    Raises:
        CommandError: It cannot be read, or is no report of the benchmark.
    """
    try:
        made = json.loads(path.read_text())
        for result in made["results"]:
            _key(result)
            for method in result["methods"].values():
                if "median_us" in method:
                    _times(method)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CommandError(f"{path} is no report of tf-capsops bench") from error
    return made


def _key(result: Mapping) -> tuple:
    return tuple(result[name] for name in _ROW)


def _times(method: Mapping) -> tuple[float, float, float]:
    """Returns lower quartile, median and upper quartile."""
    lower, upper = method["quartiles_us"]
    if not method["median_us"] > 0:
        raise ValueError(f"median_us is {method['median_us']}")
    return float(lower), float(method["median_us"]), float(upper)


def table(earlier: Mapping, made: Mapping) -> Table:
    """Returns a table of our times, for the terminal.

    `mark` decides which rows are marked as slower or faster.
    """
    before = {_key(result): result for result in earlier["results"]}
    shown = Table(title=_title(earlier), title_justify="left", box=box.SIMPLE_HEAD)
    shown.add_column("method")
    for heading in _HEADINGS:
        shown.add_column(heading, justify="right")
    shown.add_column("")
    missing, unknown = 0, False
    for result in made["results"]:
        old = before.get(_key(result), {"methods": {}})["methods"]
        rows = list(_rows(old, result["methods"]))
        if rows:
            shown.add_section()
            shown.add_row(f"{' '.join(map(str, _key(result)))}", style="dim")
        else:
            missing += 1
        for row in rows:
            shown.add_row(*row, style=_STYLES.get(row[-1]))
            unknown = unknown or row[-1] == _UNKNOWN
    notes = [f"{missing} results have nothing to compare with"] if missing else []
    if unknown:
        notes.append(
            f"{_UNKNOWN}: nothing can be said with fewer than {_FEWEST} samples in "
            "each run (--repeat)"
        )
    notes += _differences(earlier, made)
    shown.caption, shown.caption_justify = "\n".join(notes), "left"
    return shown


def _rows(old: Mapping, new: Mapping):
    """Yields a row for each method of ours that worked in the earlier report."""
    for name, method in new.items():
        worked = "median_us" in old.get(name, {})
        if name.startswith(report.OURS) and worked and "error" in method:
            before = f"{old[name]['median_us']:.1f}"
            yield name, before, *[""] * (len(_HEADINGS) - 1), "failed"
    both = [n for n in new if "median_us" in new[n] and "median_us" in old.get(n, {})]
    ours = [name for name in both if name.startswith(report.OURS)]
    rivals = [new[n]["median_us"] / old[n]["median_us"] for n in both if n not in ours]
    machine = statistics.median(rivals) if rivals else 1.0
    for name in ours:
        now = new[name]["median_us"]
        before = old[name]["median_us"]
        yield (
            name,
            f"{before:.1f}",
            f"{now:.1f}",
            f"{now / before:.2f}",
            f"{machine:.2f}" if rivals else "",
            f"{now / before / machine:.2f}",
            mark(old[name], new[name], rivals),
        )


def mark(old: Mapping, new: Mapping, rivals: Sequence[float]) -> str:
    """Says whether a method is slower or faster than in an earlier run.

    Args:
        old: The method's entry in the earlier report.
        new: Its entry in the later report.
        rivals: The ratios by which the times of rivals changed.

    Returns:
        "slower" or "faster" if two conditions hold once the machine's share is taken
        away: the ranges between the quartiles do not overlap, and the medians differ by
        more than 5% and by more than any rival's. "?" if a run has too few samples to
        tell; else "".
    """
    if any(method.get("samples", _FEWEST) < _FEWEST for method in (old, new)):
        return _UNKNOWN
    machine = statistics.median(rivals) if rivals else 1.0
    chance = [max(ratio / machine, machine / ratio) for ratio in rivals]
    margin = max([1 + _MARGIN, *chance])
    low, median, high = _times(old)
    now_low, now, now_high = (time / machine for time in _times(new))
    if now_low > high and now > margin * median:
        return "slower"
    if now_high < low and now * margin < median:
        return "faster"
    return ""


def _title(earlier: Mapping) -> str:
    commit, date = earlier.get("commit", "unknown"), earlier.get("date", "?")
    return f"Against commit {commit[:12]} of {date}"


def _differences(earlier: Mapping, made: Mapping) -> list[str]:
    """Names the differences between the circumstances of two runs."""
    labels = {"cpu": "processor", "cores": "cores", "gpus": "GPUs", "tf32": "TF32"}
    labels["versions"] = "versions"
    return [
        f"{label}: {earlier.get(field)} before, {made.get(field)} now"
        for field, label in labels.items()
        if earlier.get(field) != made.get(field)
    ]
