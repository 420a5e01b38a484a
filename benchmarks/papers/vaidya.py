# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Table 2 of Vaidya, "Speeding up Capsules", and the same of ours and of the fold."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import tensorflow as tf
from rich import box
from rich.table import Table

from benchmarks.papers import counts
from tf_capsops.bench import measure
from tf_capsops.bench.suites import capsule_conv

OP = "CapsuleConv"
DEVICES = ("GPU",)
# On a Tesla V100: milliseconds, global stores, global loads.
PUBLISHED = {
    "B": (24.693, 393625600, 488843700),
    "I1": (8.3399, 98406400, 488470968),
    "I2": (6.9763, 98406400, 392512360),
    "I3": (4.9513, 98406400, 97851359),
}
_KEYS = ("ms", "stores", "loads")


def methods() -> dict:
    """Returns the paper's kernels, ours and the fold, by name."""
    fold = functools.partial(
        capsule_conv.SUITE.rivals["fold"],
        strides=(1, 1),
        padding="VALID",
        dilations=(1, 1),
    )
    found = {n: measure.forward_step(f) for n, f in counts.methods().items()}
    step = measure.forward_step(fold)
    return {**found, "TF fold": step, "TF fold, XLA": measure.compiled(step)}


def run(device: str, repeat: int) -> Iterator[dict]:
    """Yields a result for each number of input channels."""
    counted = counts.count(tf.config.experimental.tensor_float_32_execution_enabled())
    for channels in counts.CHANNELS:
        with tf.device(device):
            first = counts.tensors(channels)
            size = 4 * sum(tensor.shape.num_elements() for tensor in first)
            more = measure.set_count(device, size) - 1
            sets = [first, *(counts.tensors(channels) for _ in range(more))]
        chains = {n: measure.Chain(s, sets, device) for n, s in methods().items()}
        timings = measure.compare(chains, repeat)
        rows = {}
        for name, timing in timings.items():
            if isinstance(timing, str):
                rows[name] = {"error": timing}
                continue
            rows[name] = {
                "ms": timing.median * 1e3,
                "quartiles_ms": [
                    timing.lower_quartile * 1e3,
                    timing.upper_quartile * 1e3,
                ],
                "samples": timing.samples,
            }
            if not isinstance(counted, str):
                rows[name] |= counted.get((channels, name), {})
            if name in PUBLISHED:
                rows[name]["published"] = dict(zip(_KEYS, PUBLISHED[name]))
        result = {"in_channels": channels, "methods": rows}
        if isinstance(counted, str):
            result["counts"] = counted
        yield result


def _with_ratio(row: Mapping, base: Mapping, key: str) -> tuple[str, str]:
    """Returns a cell, counts in millions, and its quotient with the baseline's."""
    if key not in row:
        return "", ""
    shown = f"{row[key]:.3f}" if key == "ms" else f"{row[key] / 1e6:.1f}"
    return shown, f"{row[key] / base[key]:.2f}" if key in base else ""


def table(result: Mapping) -> Table:
    """Returns a result as a table."""
    shown = Table(
        title='Vaidya, "Speeding up Capsules", Table 2: 128x128, 5x5, '
        f"{result['in_channels']} channels",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    shown.add_column("", no_wrap=True)
    for whose in ("", "V100"):
        for heading in ("ms", "M stores", "M loads"):
            shown.add_column(f"{whose}\n{heading}", justify="right", no_wrap=True)
            shown.add_column("\nof B", justify="right", no_wrap=True)
    rows = result["methods"]
    for name, row in rows.items():
        if "error" in row:
            shown.add_row(name, "cannot run")
            continue
        cells = [c for key in _KEYS for c in _with_ratio(row, rows["B"], key)]
        theirs, base = row.get("published", {}), rows["B"].get("published", {})
        cells += [c for key in _KEYS for c in _with_ratio(theirs, base, key)]
        shown.add_row(name, *cells)
    notes = ["V100: as published"]
    notes += [f"{n}: {row['error']}" for n, row in rows.items() if "error" in row]
    notes += [result["counts"]] if "counts" in result else []
    shown.caption, shown.caption_justify = "\n".join(notes), "left"
    return shown
