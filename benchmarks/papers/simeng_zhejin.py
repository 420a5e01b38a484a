# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The charts of Simeng and Zhejin, "PyTorch Extension": time by batch size.

High-order convolution of images of 3 x 224 x 224 with 5 x 5 filters, forward and
backward, by the paper's three implementations and by ours: in the paper's module, and
by itself. The memory of the module, and its share in a network's step. On a GPU the
paper's CUDA kernels are also timed by the host's clock, with and without waiting.
"""

from __future__ import annotations

import functools
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf

from benchmarks.papers import (
    chart,
    outcome,
    report,
    simeng_zhejin_share,
    simeng_zhejin_speedup,
    studies,
)
from benchmarks.papers.simeng_zhejin_methods import (
    CHANNELS,
    IMAGE,
    KERNEL,
    NHWC,
    PAPER,
    POSITIONS,
    Method,
    generator,
    label_of,
    layouts,
    methods,
    module,
)
from tf_capsops.bench import measure
from tf_capsops.bench.report import OURS

OP = "HighOrderConv"
DEVICES = ("CPU", "GPU")
BATCHES = {"CPU": (8, 16, 32, 64, 128), "GPU": (8, 16, 32, 64, 128, 256, 512)}
DIRECTIONS = ("forward", "backward")
CHART_BATCHES = (8, 16, 32, 64, 128)
# On a Tesla K80 and its host, milliseconds of the module: in the charts, by batch, and
# in the text for a batch of 64. The charts' line of `cuda` is a least and a most
# forward, and too near the axis to read backward.
CHARTS = {
    ("CPU", "forward"): {
        "python": (110, 240, 590, 1660, 3430),
        "cpp": (125, 280, 618, 1663, 3496),
    },
    ("CPU", "backward"): {
        "python": (1730, 3570, 7500, 17000, 35000),
        "cpp": (440, 957, 1840, 4890, 10000),
    },
    ("GPU", "forward"): {
        "python": (30, 28, 39, 23, 44),
        "cpp": (5, 6.8, 11, 17, 37),
        "cuda": ((1.0, 1.15),) * 5,
    },
    ("GPU", "backward"): {
        "python": (36, 63, 113, 258, 446),
        "cpp": (6, 8.5, 14, 23, 42),
    },
}
TEXT = {
    ("GPU", "forward"): {"python": 23.15, "cpp": 22.40, "cuda": 1.04},
    ("GPU", "backward"): {"python": 235.66, "cpp": 25.87, "cuda": 1.29},
    ("CPU", "forward"): {"python": 1812.80, "cpp": 1797.24},
    ("CPU", "backward"): {"python": 18508.86, "cpp": 5207.66},
}
LARGEST = {"python": 256, "cpp": 512, "cuda": 512}  # batches that a K80 held
K80_BYTES, K80_BYTES_PER_SECOND = 12 * 2**30, 240e9  # of one of its two GPUs

_SLOW_SECONDS = 2.0  # a call that takes longer is timed once
_SAMPLE_SECONDS = {"CPU": 0.1, "GPU": 0.02}
_HOST_RUNS = 5  # as the paper's


def least_bytes(batch: int, direction: str) -> int:
    """Returns what is read and written if every number is, once."""
    pixels = batch * IMAGE[0] * IMAGE[1]
    images, weights = {"forward": (2, 1), "backward": (3, 2)}[direction]
    return 4 * pixels * (images * CHANNELS + weights * POSITIONS)


def _sets(batch: int, device: str, whole: bool) -> list[dict[str, measure.Arguments]]:
    """Draws sets of arguments by layout, which share their memory.

    They are the output's gradient, the images, and the weights or, for the `whole`
    module, what generates them.
    """
    shapes = layouts(batch)
    sizes = [tf.TensorShape(shape).num_elements() for shape in shapes[PAPER]]
    sizes = sizes[:2] if whole else sizes
    sets = []
    with tf.device(device):
        for _ in range(measure.set_count(device, 4 * sum(sizes))):
            numbers = [tf.random.uniform((size,), -1, 1) for size in sizes]
            more = generator() if whole else ()
            sets.append(
                {
                    layout: (*(tf.reshape(n, s) for n, s in zip(numbers, of)), *more)
                    for layout, of in shapes.items()
                }
            )
    return sets


def _too_large(name: str, batch: int, device: str) -> str:
    """Returns why a method's backward pass is not tried, or nothing.

    The framework's gradient of a slice is as large as what was sliced, and the sum of
    all kernel positions' needs them at the same time. A GPU says that it has no more
    memory; a CPU would begin to swap, or end the process.
    """
    if (name, measure.device_type(device)) != ("python", "CPU"):
        return ""
    pixels = batch * IMAGE[0] * IMAGE[1]
    needed = 4 * pixels * POSITIONS * (POSITIONS + 2 * CHANNELS)
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    free = {k: v.split()[0] for k, v in (line.split(":") for line in lines)}
    available = 1024 * int(free["MemAvailable"])
    if needed < 0.75 * available:
        return ""
    return (
        f"not tried, takes {needed / 1e9:.0f} GB of memory and "
        f"{available / 1e9:.0f} are free"
    )


def _timings(
    found: Mapping[str, tuple[Method, Callable]],
    sets: list,
    many: int,
    device: str,
    repeat: int,
    training: bool,
) -> dict[str, measure.Timing | str]:
    """Times what is `found`, a method and what to compute of each.

    Single ops are called `many` times in a graph, so that its start does not count.
    """
    kind = measure.device_type(device)
    chains = {}
    for name, (method, compute) in found.items():
        step = measure.training_step(compute)
        arguments = [one[method.layout] for one in sets]
        if not training:
            step = measure.forward_step(compute)
            arguments = [of[1:] for of in arguments]
        chains[name] = measure.Chain(
            measure.compiled(step) if method.xla else step,
            arguments,
            device,
            length=many if method.one_op else 1,
            seconds=_SAMPLE_SECONDS[kind],
        )
    return measure.compare(chains, repeat, slow=_SLOW_SECONDS)


def _backward(forward: measure.Timing | str, both: measure.Timing | str) -> dict:
    """Returns a cell: both passes less forward, and the memory of both."""
    if isinstance(both, str) or isinstance(forward, str):
        return outcome.cell(both if isinstance(both, str) else forward)
    return {
        "ms": 1e3 * (both.median - forward.median),
        "both_ms": 1e3 * both.median,
        "samples": both.samples,
        "bytes": both.extra_bytes,
    }


def _by_batch(whole: bool, device: str, repeat: int) -> Iterator[dict]:
    """Yields a result for forward and one for backward."""
    kind = measure.device_type(device)
    found = {
        name: (method, module(method, kind) if whole else method.compute)
        for name, method in methods(kind).items()
    }
    rows: dict[str, dict[str, list]] = {d: {n: [] for n in found} for d in DIRECTIONS}
    for batch in BATCHES[kind]:
        sets = _sets(batch, device, whole)
        on_cpu = max(1, (16 if whole else 64) // batch)
        many = on_cpu if kind == "CPU" else max(4, 256 // batch)
        refused = {name: _too_large(name, batch, device) for name in found}
        tried = {name: one for name, one in found.items() if not refused[name]}
        forward = _timings(found, sets, many, device, repeat, training=False)
        both = refused | _timings(tried, sets, many, device, repeat, training=True)
        for name, timing in forward.items():
            rows["forward"][name].append(outcome.cell(timing))
            rows["backward"][name].append(_backward(timing, both[name]))
        del sets
    for direction, cells in rows.items():
        yield {
            "direction": direction,
            "batches": list(BATCHES[kind]),
            "methods": {
                name: outcome.row("batch", row, BATCHES[kind])
                for name, row in cells.items()
            },
        }


def host_clock(
    compute: Mapping[str, Callable[[], object]], wait: bool
) -> dict[str, float]:
    """Returns the mean milliseconds of five runs by the host's clock, by direction.

    A run is forward, then backward. Without `wait` the clock is read when an op has
    been handed to the GPU, as the paper's program reads it.
    """
    for call in compute.values():
        call()
    tf.test.experimental.sync_devices()
    taken: dict[str, list[float]] = {direction: [] for direction in compute}
    for _ in range(_HOST_RUNS):
        for direction, call in compute.items():
            start = time.perf_counter()
            call()
            if wait:
                tf.test.experimental.sync_devices()
            taken[direction].append(1e3 * (time.perf_counter() - start))
    tf.test.experimental.sync_devices()
    return {direction: statistics.fmean(ms) for direction, ms in taken.items()}


def _launches(device: str, repeat: int) -> Iterator[dict]:
    """Yields the times of the paper's CUDA kernels by the host's clock."""
    if measure.device_type(device) == "CPU":
        return
    ops = studies.load()
    rows: dict[str, list[float]] = {}
    for batch in BATCHES["GPU"]:
        grad, inputs, weights = _sets(batch, device, whole=False)[0][PAPER]
        calls = {
            "forward": functools.partial(
                ops.high_order_conv_study, inputs, weights, kernel_size=KERNEL
            ),
            "backward": functools.partial(
                ops.high_order_conv_study_grad,
                grad,
                inputs,
                weights,
                kernel_size=KERNEL,
            ),
        }
        with tf.device(device):
            for wait in (False, True):
                for direction, ms in host_clock(calls, wait).items():
                    rows.setdefault(f"{direction}, {_WAITED[wait]}", []).append(ms)
        del grad, inputs, weights, calls
    yield {"batches": list(BATCHES["GPU"]), "rows": rows}


_WAITED = {False: "not waited for", True: "waited for"}
PARTS = {
    "module": functools.partial(_by_batch, True),
    "share": simeng_zhejin_share.run,
    "launches": _launches,
    "convolution": functools.partial(_by_batch, False),
}


def _brackets(published: Sequence, count: int) -> list[str]:
    """Returns the chart's times in brackets, "" for batches that it does not have."""
    texts = (f"{ms[0]}-{ms[1]}" if isinstance(ms, tuple) else ms for ms in published)
    found = [f"({text})" if isinstance(text, str) else f"({text:,})" for text in texts]
    return found + [""] * (count - len(found))


def _times(results: Sequence[Mapping], kind: str, part: str, direction: str) -> dict:
    """Returns the table of a device and a direction, with the charts for the module."""
    batches, key = BATCHES[kind], (kind, direction)
    found = report.on(kind, results)
    result = report.newest(found, part=part, direction=direction)
    is_module = part == "module"
    charts, text = (CHARTS[key], TEXT[key]) if is_module else ({}, {})
    rows = []
    for name in result["methods"] if result else text:
        line = _brackets(charts.get(name, ()), len(batches))
        if result:
            cells = map(outcome.shown, result["methods"][name]["cells"])
            line = [f"{ours} {theirs}".strip() for ours, theirs in zip(cells, line)]
        label = label_of(name)
        theirs = f"{text[name]:,.2f}" if name in text else ""
        rows.append([label, *line, *([theirs] * is_module)])
    outcome.bold_least(rows, range(1, 1 + len(batches)))
    columns = [f"{direction}, batch", *map(str, batches)]
    return report.table(columns + ["text, 64"] * is_module, rows, [result], OP)


def _memory(results: Sequence[Mapping]) -> dict:
    """Returns the memory of both passes by batch, arguments included."""
    batches = BATCHES["GPU"]
    found = report.on("GPU", results)
    result = report.newest(found, part="module", direction="backward")
    rows = []
    for name in result["methods"] if result else LARGEST:
        line, fits = [""] * len(batches), ""
        if result:
            cells = result["methods"][name]["cells"]
            needed = [
                None
                if "bytes" not in cell
                else cell["bytes"] + 2 * 4 * batch * CHANNELS * IMAGE[0] * IMAGE[1]
                for batch, cell in zip(batches, cells, strict=True)
            ]
            line = [
                outcome.shown(cell) if size is None else f"{size / 1e9:.2f}"
                for cell, size in zip(cells, needed, strict=True)
            ]
            fitting = [b for b, n in zip(batches, needed) if n and n <= K80_BYTES]
            fits = str(max(fitting, default="none"))
        rows.append([label_of(name), *line, fits, str(LARGEST.get(name, ""))])
    columns = ["GB, batch", *map(str, batches), "largest in 12 GB", "on a K80"]
    return report.table(columns, rows, [result], OP)


def _launch_table(results: Sequence[Mapping]) -> dict:
    result = report.newest(results, part="launches")
    rows = []
    for direction in DIRECTIONS:
        for waited in _WAITED.values():
            name = f"{direction}, {waited}"
            line = map(outcome.number, result["rows"][name]) if result else ()
            rows += [[name, *line]] if result else []
        least = [
            1e3 * least_bytes(batch, direction) / K80_BYTES_PER_SECOND
            for batch in BATCHES["GPU"]
        ]
        rows.append([f"{direction}, least on a K80", *map(outcome.number, least)])
    return report.table(["batch", *map(str, BATCHES["GPU"])], rows, [result])


def tables(results: Sequence[Mapping]) -> Iterator[tuple[str, dict]]:
    """Yields the speedups, the charts as tables, memory, share and launches."""
    speedups = simeng_zhejin_speedup.table(results, TEXT)
    yield "papers_simeng_zhejin_speedup", speedups
    for part in ("module", "convolution"):
        for kind in ("GPU", "CPU"):
            for direction in DIRECTIONS:
                name = f"papers_simeng_zhejin_{part}_{kind.lower()}_{direction}"
                yield name, _times(results, kind, part, direction)
    yield "papers_simeng_zhejin_memory", _memory(results)
    yield "papers_simeng_zhejin_share", simeng_zhejin_share.table(results)
    yield "papers_simeng_zhejin_launches", _launch_table(results)


_COLORS = {
    "python": "tab:gray",
    "cpp": "tab:olive",
    "cuda": "tab:red",
    "python, XLA": "tab:purple",
    OURS: "tab:cyan",
    f"{OURS}, {NHWC}": "tab:blue",
    f"{OURS}, {NHWC}, XLA": "tab:green",
}


def draw(results: Sequence[Mapping], path: pathlib.Path) -> None:
    """Draws the four charts, ours and the published, to a PNG file."""
    figure, panels = chart.figure(2, len(DIRECTIONS))
    for kind, line in zip(("GPU", "CPU"), panels, strict=True):
        for direction, panel in zip(DIRECTIONS, line, strict=True):
            found, batches = report.on(kind, results), BATCHES[kind]
            result = report.newest(found, part="module", direction=direction)
            for name, row in result["methods"].items() if result else ():
                times = chart.times(row)
                chart.line(panel, batches, times, name, color=_COLORS[name])
            for name, times in CHARTS[kind, direction].items():
                label = f"{name}, published"
                chart.published(panel, CHART_BATCHES, times, label, _COLORS[name])
            chart.axes(panel, batches, "batch", f"{kind}, {direction}")
    colors = {label_of(name).replace("`", ""): color for name, color in _COLORS.items()}
    chart.legend(figure, colors, "Tesla K80 and its host")
    figure.savefig(path, dpi=chart.DPI)
