# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Finds runs and results in docs/measured, and writes them as Markdown."""

from __future__ import annotations

import json
import pathlib
import re
import textwrap
from collections.abc import Sequence


class Wrong(Exception):
    """One sentence for the user."""


def load(path: pathlib.Path) -> dict:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Wrong(f"{path}: {error}") from None


def read_runs(root: pathlib.Path) -> list[dict]:
    """Returns all runs, the oldest first."""
    runs = []
    for path in sorted((root / "docs/measured").glob("*.json")):
        if path.name != "tables.json":
            runs.append({**load(path), "name": path.stem})
    return sorted(runs, key=lambda run: run["date"] or "")


def machine_of(run: dict, device: str) -> str:
    """Names a run's GPU, or its processor."""
    if device.startswith("GPU"):
        return run["gpus"][0]["device_name"].removeprefix("NVIDIA ")
    cpu = re.sub(r"\((R|TM)\)| CPU\b.*| Processor\b", "", run["cpu"])
    cores = "1 core" if run["cores"] == 1 else f"{run['cores']} cores"
    return f"{cores} of {cpu}"


def matches(run: dict, result: dict, wanted: dict) -> bool:
    fields = ("op", "case", "direction", "dtype")
    if any(result[field] != wanted[field] for field in fields if field in wanted):
        return False
    if "method" in wanted and wanted["method"] not in result["methods"]:
        return False
    on_gpu = result["device"].startswith("GPU")
    return (
        wanted.get("device", result["device"]).partition(":")[0]
        == result["device"].partition(":")[0]
    ) and (not on_gpu or run["tf32"] == wanted.get("tf32", True))


def select(runs: Sequence[dict], wanted: dict) -> list[tuple[dict, dict]]:
    """Returns the newest run and result of each machine."""
    found = {}
    for run in runs:
        for result in run.get("results", ()):
            if matches(run, result, wanted):
                found[machine_of(run, result["device"])] = run, result
    return [found[machine] for machine in sorted(found)]


def runs_of(table: dict, run: dict) -> list[tuple[dict, str]]:
    """Returns where a table's numbers come from, each with its device."""
    if "runs" in table:
        return [(each, each["device"]) for each in table["runs"]]
    return [(run, table["device"])] if table.get("source", True) else []


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{float(f'{value:.3g}'):g}"


def source_of(run: dict, machine: str) -> str:
    """Returns where numbers come from, as one line."""
    parts = [machine]
    if machine in (gpu["device_name"].removeprefix("NVIDIA ") for gpu in run["gpus"]):
        parts.append({True: "TF32", False: "no TF32"}.get(run["tf32"], ""))
    if "versions" in run:
        parts.append(f"TensorFlow {run['versions']['tensorflow']}")
    state = " with changes" if run.get("modified") else ""
    parts.append(run["commit"][:12] + state)
    parts += [run["date"] or "", run.get("note", "")]
    text = ", ".join(part for part in parts if part)
    return f"{text}: `{run['command']}`" if run["command"] else text


def markdown(headings: Sequence, rows: Sequence, right: bool = True) -> str:
    rule = ["--", *(["-:" if right else "--"] * (len(headings) - 1))]
    lines = [headings, rule, *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def bullets(lines: Sequence[str]) -> str:
    """Returns a list as mdformat lays it out: 100 columns, code in one piece."""
    wrap = textwrap.TextWrapper(
        100, "- ", "  ", break_long_words=False, break_on_hyphens=False
    )
    text = ""
    for line in dict.fromkeys(lines):
        whole = re.sub("`.*?`", lambda code: code[0].replace(" ", "\0"), line)
        text += wrap.fill(whole).replace("\0", " ") + "\n"
    return text
