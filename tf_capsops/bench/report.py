# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The benchmark's report: a dictionary, and its tables for the terminal.

The report is written as JSON without changes; tools/measured.py generates tables of the
documentation from it. `results` has one entry for each case, device, dtype and
direction. Times are in microseconds for one call, memory is in bytes. If the name of
the kernel that ran is known, the entry of our own method has it as `kernel`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf
from rich import box
from rich.table import Table

from tf_capsops.bench.cases import Case, Cost, OpSuite
from tf_capsops.bench.floor import Ceilings
from tf_capsops.bench.measure import Timing

OURS = "tf_capsops"
_HEADINGS = ("median us", "spread", "x ours", "GB/s", "GFLOP/s", "of floor", "extra MB")


def command(argv: Sequence[str]) -> str:
    """Returns the command line that produces this report again."""
    return shlex.join(["tf-capsops", "bench", *argv])


def ceilings_entry(device: str, dtype: tf.DType, ceilings: Ceilings) -> dict:
    """Returns the entry of `ceilings` for one device and dtype."""
    return {
        "device": device,
        "dtype": dtype.name,
        "gigabytes_per_second": ceilings.bytes_per_second / 1e9,
        "gigaflops_per_second": ceilings.flops_per_second / 1e9,
        "tensorflow_us_per_call": ceilings.seconds_per_call * 1e6,
    }


def method_entry(timing: Timing | str, ours: Timing | str = "") -> dict:
    """Returns a report's entry for a method, compared with ours if that ran."""
    if isinstance(timing, str):
        return {"error": timing}
    entry = {
        "median_us": timing.median * 1e6,
        "quartiles_us": [timing.lower_quartile * 1e6, timing.upper_quartile * 1e6],
        "extremes_us": [timing.minimum * 1e6, timing.maximum * 1e6],
        "samples": timing.samples,
        "extra_bytes": timing.extra_bytes,
    }
    if isinstance(ours, Timing):
        entry["times_ours"] = timing.median / ours.median
    return entry


def result_entry(
    suite: OpSuite,
    case: Case,
    direction: str,
    cost: Cost,
    ceilings: dict,
    floor_seconds: float,
    timings: Mapping[str, Timing | str],
    kernel: str | None = None,
) -> dict:
    """Returns the entry of `results` for one case, device, dtype and direction.

    `kernel` is the name of the kernel that ran our own method, if that is known.
    """
    itemsize = tf.as_dtype(ceilings["dtype"]).size
    methods = {name: method_entry(t, timings[OURS]) for name, t in timings.items()}
    if kernel:
        methods[OURS]["kernel"] = kernel
    return {
        "op": suite.op,
        "case": case.name,
        "sizes": dict(case.sizes),
        "attributes": dict(case.attributes),
        "direction": direction,
        "device": ceilings["device"],
        "dtype": ceilings["dtype"],
        "bytes": cost.bytes(itemsize),
        "flops": cost.flops,
        "floor_us": floor_seconds * 1e6,
        "methods": methods,
    }


def _spread(method: Mapping) -> float:
    """Returns half the distance between the quartiles, as a share of the median."""
    lower, upper = method["quartiles_us"]
    return (upper - lower) / 2 / method["median_us"]


def title(result: Mapping) -> str:
    """Returns a line that names the op, the case and the device of a result."""
    sizes = {**result["sizes"], **result["attributes"]}
    sizes = ", ".join(f"{name} {size}" for name, size in sizes.items())
    return (
        f"{result['op']} {result['direction']}, {result['case']} ({sizes}), "
        f"{result['dtype']}, {result['device']}"
    )


def table(result: Mapping) -> Table:
    """Returns one result as a table for the terminal."""
    shown = Table(title=title(result), title_justify="left", box=box.SIMPLE_HEAD)
    shown.add_column("method", no_wrap=True)
    for heading in _HEADINGS:
        shown.add_column(heading, justify="right", no_wrap=True)
    named = any("kernel" in method for method in result["methods"].values())
    if named:
        shown.add_column("kernel", no_wrap=True)
    for name, method in result["methods"].items():
        if "error" in method:
            shown.add_row(name, "cannot run")
            continue
        median, extra = method["median_us"], method["extra_bytes"]
        shown.add_row(
            name,
            f"{median:.1f}",
            f"± {_spread(method):.0%}",
            f"{method['times_ours']:.2f}" if "times_ours" in method else "",
            f"{result['bytes'] / median / 1e3:.1f}",
            f"{result['flops'] / median / 1e3:.1f}",
            f"{result['floor_us'] / median:.0%}",
            "" if extra is None else f"{extra / 1e6:.1f}",
            *([method.get("kernel", "")] if named else []),
        )
    notes = [f"{n}: {m['error']}" for n, m in result["methods"].items() if "error" in m]
    floor = (
        f"floor {result['floor_us']:.1f} us: {result['bytes'] / 1e6:.1f} MB, "
        f"{result['flops'] / 1e9:.3f} GFLOP at the rates measured"
    )
    shown.caption, shown.caption_justify = "\n".join([floor, *notes]), "left"
    return shown


def training_table(result: Mapping) -> Table:
    """Returns the training steps of one network as a table for the terminal."""
    measured = {n: m for n, m in result["methods"].items() if "median_us" in m}
    columns: dict[str, Callable[[dict], str]] = {
        "ms a step": lambda m: f"{m['median_us'] / 1e3:.2f}",
        "spread": lambda m: f"± {_spread(m):.0%}",
        "images a second": lambda m: f"{m['images_per_second']:.0f}",
    }
    where_known: dict[str, tuple[str, Callable[[float], str]]] = {
        "GPU busy ms": ("busy_us", lambda busy: f"{busy / 1e3:.2f}"),
        "launches": ("launches", lambda launches: f"{launches:.0f}"),
        "peak MB": ("extra_bytes", lambda peak: f"{peak / 1e6:.0f}"),
        "parameters": ("parameters", lambda count: f"{count:,}"),
    }
    shown = Table(title=title(result), title_justify="left", box=box.SIMPLE_HEAD)
    shown.add_column("method", no_wrap=True)
    for heading, (field, text) in where_known.items():
        if any(method.get(field) is not None for method in measured.values()):
            columns[heading] = lambda method, field=field, text=text: (
                "" if method.get(field) is None else text(method[field])
            )
    for heading in columns:
        shown.add_column(heading, justify="right", no_wrap=True)
    for name, method in measured.items():
        shown.add_row(name, *(cell(method) for cell in columns.values()))
    reasons = {
        name: method.get("error") or f"left out: {method['left_out']}"
        for name, method in result["methods"].items()
        if name not in measured
    }
    shown.caption = "\n".join(f"{name}: {why}" for name, why in reasons.items())
    shown.caption_justify = "left"
    return shown


def start_up_table(result: Mapping, parts: Mapping[str, str]) -> Table:
    """Returns a table of the time of each method's first step, for the terminal.

    Args:
        result: An entry of `results`.
        parts: Headings by the methods' fields.
    """
    shown = Table(
        title=f"Start-up, in seconds: {title(result)}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    shown.add_column("method", no_wrap=True)
    for heading in (*parts.values(), "sum"):
        shown.add_column(heading, justify="right", no_wrap=True)
    notes = []
    for name, method in result["methods"].items():
        if "start_up_error" in method:
            notes.append(f"{name}: {method['start_up_error']}")
        seconds = [method[field] for field in parts if field in method]
        if seconds:
            shown.add_row(name, *(f"{each:.2f}" for each in (*seconds, sum(seconds))))
    shown.caption, shown.caption_justify = "\n".join(notes), "left"
    return shown
