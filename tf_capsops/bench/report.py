# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The benchmark's report: a dictionary, and what is made of it for people.

The report is written as JSON as it is. `results` has one entry for each case, device,
dtype and direction; times are in microseconds for one call, memory in bytes.
"""

from __future__ import annotations

import os
import pathlib
import platform
import shlex
from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf
from rich import box
from rich.table import Table

import tf_capsops
from tf_capsops import _library
from tf_capsops.bench.cases import Case, Cost, OpSuite
from tf_capsops.bench.floor import Ceilings
from tf_capsops.bench.measure import Timing

OURS = "tf_capsops"
_HEADINGS = ("median us", "spread", "x ours", "GB/s", "GFLOP/s", "of floor", "extra MB")


def machine() -> dict:
    """Describes the machine and the versions everything ran with."""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    gpus = tf.config.list_physical_devices("GPU")
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": [tf.config.experimental.get_device_details(gpu) for gpu in gpus],
        "system": platform.platform(),
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "tf_capsops": tf_capsops.__version__,
        },
        "library": _library.build_info(),
    }


def command(argv: Sequence[str]) -> str:
    """Returns the command line that gives this report again."""
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


def _method_entry(timing: Timing | str, ours: Timing | str) -> dict:
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
) -> dict:
    """Returns the entry of `results` for one case, device, dtype and direction."""
    itemsize = tf.as_dtype(ceilings["dtype"]).size
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
        "methods": {
            name: _method_entry(timing, timings[OURS])
            for name, timing in timings.items()
        },
    }


def title(result: Mapping) -> str:
    """Returns one line that says what was measured."""
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
    for name, method in result["methods"].items():
        if "error" in method:
            shown.add_row(name, "cannot run")
            continue
        median, (lower, upper) = method["median_us"], method["quartiles_us"]
        extra = method["extra_bytes"]
        shown.add_row(
            name,
            f"{median:.1f}",
            f"± {(upper - lower) / 2 / median:.0%}",
            f"{method['times_ours']:.2f}" if "times_ours" in method else "",
            f"{result['bytes'] / median / 1e3:.1f}",
            f"{result['flops'] / median / 1e3:.1f}",
            f"{result['floor_us'] / median:.0%}",
            "" if extra is None else f"{extra / 1e6:.1f}",
        )
    notes = [f"{n}: {m['error']}" for n, m in result["methods"].items() if "error" in m]
    floor = (
        f"floor {result['floor_us']:.1f} us: {result['bytes'] / 1e6:.1f} MB, "
        f"{result['flops'] / 1e9:.3f} GFLOP at the rates measured"
    )
    shown.caption, shown.caption_justify = "\n".join([floor, *notes]), "left"
    return shown
