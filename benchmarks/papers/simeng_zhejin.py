# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The charts of Simeng and Zhejin, "PyTorch Extension": time by batch size.

High-order convolution of images of 3 x 224 x 224 with 5 x 5 filters, forward and
backward, by the paper's three implementations and by ours. On a GPU its CUDA kernels
are timed once more by the host's clock, with and without waiting for them.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping

import tensorflow as tf
from rich import box
from rich.table import Table

import tf_capsops
from benchmarks.papers import outcome, pad_slice_multiply, studies
from benchmarks.papers.simeng_zhejin_chart import draw
from tf_capsops.bench import measure
from tf_capsops.bench.report import OURS

__all__ = ["DEVICES", "OP", "draw", "run", "table"]

OP = "HighOrderConv"
DEVICES = ("CPU", "GPU")
BATCHES = {"CPU": (8, 16, 32, 64, 128), "GPU": (8, 16, 32, 64, 128, 256, 512)}
CHANNELS, IMAGE, KERNEL = 3, (224, 224), (5, 5)
POSITIONS = KERNEL[0] * KERNEL[1]
DIRECTIONS = ("forward", "backward")
# On a Tesla K80 and its host, with a batch of 64: forward, backward, in milliseconds.
PUBLISHED = {
    "CPU": {"python": (1812.80, 18508.86), "cpp": (1797.24, 5207.66)},
    "GPU": {"python": (23.15, 235.66), "cpp": (22.40, 25.87), "cuda": (1.04, 1.29)},
}
PUBLISHED_BATCH = 64
K80_BYTES_PER_SECOND = 240e9  # of one of its two GPUs

_PAPER, _NCHW, _NHWC = "paper", "NCHW", "NHWC"
_SLOW_SECONDS = 2.0  # a call that takes longer is timed once
_SAMPLE_SECONDS = {"CPU": 0.1, "GPU": 0.02}
_HOST_RUNS = 5  # as the paper's


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to compute the convolution.

    Attributes:
        compute: From inputs and weights to the output.
        layout: Of its tensors, a key of `layouts`.
        one_op: Whether it is a single op, whose launch must not count for much.
        xla: Whether it is compiled.
    """

    compute: Callable[..., tf.Tensor]
    layout: str = _PAPER
    one_op: bool = True
    xla: bool = False


def methods(kind: str) -> dict[str, Method]:
    """Returns what is timed on a type of device, by name."""

    def ours(data_format):
        compute = functools.partial(
            tf_capsops.high_order_conv2d, kernel_size=KERNEL, data_format=data_format
        )
        return Method(compute, data_format)

    python = functools.partial(pad_slice_multiply.python, kernel_size=KERNEL)
    cpp = functools.partial(pad_slice_multiply.cpp, kernel_size=KERNEL)
    cuda = functools.partial(studies.high_order_conv2d, kernel_size=KERNEL)
    return {
        "python": Method(python, one_op=False),
        "cpp": Method(cpp, one_op=False),
        **({"cuda": Method(cuda)} if kind == "GPU" else {}),
        "python, XLA": Method(python, xla=True),
        OURS: ours(_NCHW),
        f"{OURS}, NHWC": ours(_NHWC),
    }


def layouts(batch: int) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Returns the shapes of the output's gradient, the input and the weights."""
    first = batch, CHANNELS, *IMAGE
    last = batch, *IMAGE, CHANNELS
    return {
        _PAPER: (first, first, (POSITIONS, batch, 1, *IMAGE)),
        _NCHW: (first, first, (batch, POSITIONS, *IMAGE)),
        _NHWC: (last, last, (batch, *IMAGE, POSITIONS)),
    }


def least_bytes(batch: int, direction: str) -> int:
    """Returns what is read and written if every number is, once."""
    pixels = batch * IMAGE[0] * IMAGE[1]
    images, weights = {"forward": (2, 1), "backward": (3, 2)}[direction]
    return 4 * pixels * (images * CHANNELS + weights * POSITIONS)


def _sets(batch: int, device: str) -> list[dict[str, measure.Arguments]]:
    """Draws sets of tensors; a set's layouts share their memory."""
    shapes = layouts(batch)
    sizes = [tf.TensorShape(shape).num_elements() for shape in shapes[_PAPER]]
    sets = []
    with tf.device(device):
        for _ in range(measure.set_count(device, 4 * sum(sizes))):
            numbers = [tf.random.uniform((size,), -1, 1) for size in sizes]
            sets.append(
                {
                    layout: tuple(map(tf.reshape, numbers, of))
                    for layout, of in shapes.items()
                }
            )
    return sets


def _too_large(name: str, direction: str, batch: int, device: str) -> str:
    """Returns why a method is not tried, or nothing.

    The framework's gradient of a slice is as large as what was sliced, and the sum of
    all kernel positions' needs them at the same time. A GPU says that it has no more
    memory; a CPU would begin to swap, or end the process.
    """
    if (name, direction, measure.device_type(device)) != ("python", "backward", "CPU"):
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


def _chain(
    method: Method, direction: str, sets: list, batch: int, device: str
) -> measure.Chain:
    make = {"forward": measure.forward_step, "backward": measure.gradient_step}
    step = make[direction](method.compute)
    arguments = [one[method.layout] for one in sets]
    if direction == "forward":
        arguments = [of[1:] for of in arguments]
    kind = measure.device_type(device)
    many = {"CPU": max(1, 64 // batch), "GPU": max(4, 256 // batch)}[kind]
    return measure.Chain(
        measure.compiled(step) if method.xla else step,
        arguments,
        device,
        length=many if method.one_op else 1,
        seconds=_SAMPLE_SECONDS[kind],
    )


def _measure(
    direction: str, batch: int, sets: list, device: str, repeat: int
) -> dict[str, dict]:
    """Returns a cell for each method."""
    found = methods(measure.device_type(device))
    refused = {name: _too_large(name, direction, batch, device) for name in found}
    chains = {
        name: _chain(method, direction, sets, batch, device)
        for name, method in found.items()
        if not refused[name]
    }
    timings = measure.compare(chains, repeat, slow=_SLOW_SECONDS)
    return {name: outcome.cell(timings.get(name, refused[name])) for name in found}


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


def _host_cells(one_set: dict, device: str) -> dict[str, dict[str, dict]]:
    """Returns cells of the paper's kernels by the host's clock, by direction."""
    grad, inputs, weights = one_set[_PAPER]
    ops = studies.load()
    calls = {
        "forward": lambda: ops.high_order_conv_study(
            inputs, weights, kernel_size=KERNEL
        ),
        "backward": lambda: ops.high_order_conv_study_grad(
            grad, inputs, weights, kernel_size=KERNEL
        ),
    }
    cells: dict[str, dict[str, dict]] = {direction: {} for direction in DIRECTIONS}
    with tf.device(device):
        for name, wait in (("not waited for", False), ("waited for", True)):
            for direction, ms in host_clock(calls, wait).items():
                cells[direction][f"cuda, {name}"] = {"ms": ms, "samples": _HOST_RUNS}
    return cells


def run(device: str, repeat: int) -> Iterator[dict]:
    """Yields a result for forward and one for backward."""
    kind = measure.device_type(device)
    found: dict[str, dict[str, list]] = {direction: {} for direction in DIRECTIONS}
    for batch in BATCHES[kind]:
        sets = _sets(batch, device)
        host = _host_cells(sets[0], device) if kind == "GPU" else {}
        for direction, rows in found.items():
            cells = _measure(direction, batch, sets, device, repeat)
            for name, cell in {**cells, **host.get(direction, {})}.items():
                rows.setdefault(name, []).append(cell)
        del sets
    for place, direction in enumerate(DIRECTIONS):
        least = [least_bytes(batch, direction) for batch in BATCHES[kind]]
        result = {
            "device": device,
            "direction": direction,
            "batches": list(BATCHES[kind]),
            "bytes": least,
            "methods": {
                name: outcome.row("batch", cells, BATCHES[kind])
                for name, cells in found[direction].items()
            },
            "published_ms": {n: ms[place] for n, ms in PUBLISHED[kind].items()},
        }
        if kind == "GPU":
            result["k80_least_ms"] = [1e3 * b / K80_BYTES_PER_SECOND for b in least]
        yield result


def table(result: Mapping) -> Table:
    """Returns a result as a table, a column for each batch size."""
    shown = Table(
        title='Simeng and Zhejin, "PyTorch Extension": '
        f"{CHANNELS}x{IMAGE[0]}x{IMAGE[1]}, {KERNEL[0]}x{KERNEL[1]}, "
        f"{result['direction']}, {result['device']}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    shown.add_column("batch", no_wrap=True)
    for batch in result["batches"]:
        shown.add_column(str(batch), justify="right", no_wrap=True)
    shown.add_column(f"published, {PUBLISHED_BATCH}", justify="right")
    rows = result["methods"]
    for name, row in rows.items():
        published = result["published_ms"].get(name)
        cells = [outcome.shown(cell) for cell in row["cells"]]
        shown.add_row(name, *cells, "" if published is None else f"{published:.2f}")
    if "k80_least_ms" in result:
        least = [outcome.shown({"ms": ms}) for ms in result["k80_least_ms"]]
        shown.add_row("K80: least", *least)
    notes = ["milliseconds; published: of a Tesla K80 and its host, the whole module"]
    if "k80_least_ms" in result:
        notes += [
            "(not) waited for: the paper's kernels by the host's clock",
            "K80: least: each number once at 240 GB/s, the peak of one of its GPUs",
        ]
    notes += [f"{n}: {row['error']}" for n, row in rows.items() if "error" in row]
    shown.caption, shown.caption_justify = "\n".join(notes), "left"
    return shown
