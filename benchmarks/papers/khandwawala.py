# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The charts of Khandwawala, "Weight Sharing on CNN": time by size of image and kernel.

Convolution of one image of 4 channels with 128 kernels whose weights are 2, 4 and 8 and
their negatives, by the report's programs, by ours, and by plain TensorFlow, which has
cuDNN do it. The report's serial program is timed on a CPU.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import tensorflow as tf
from rich import box
from rich.table import Table

import tf_capsops
from benchmarks.papers import outcome, studies
from benchmarks.papers.khandwawala_chart import draw
from tf_capsops.bench import measure
from tf_capsops.bench.report import OURS

__all__ = ["DEVICES", "OP", "draw", "run", "table"]

OP = "InqConv"
DEVICES = ("CPU", "GPU")
CHANNELS, KERNELS = 4, 128
POWERS, TOP_EXPONENT, BITS = 3, 3, 4  # n1 = 3, n2 = 1; a book of 4 powers has those 3
IMAGE, KERNEL = 1024, 3  # where the other is varied
SIZES = {
    "CPU": {"image": (128, 256)},
    "GPU": {"image": (128, 256, 512, 1024, 2048), "kernel": (3, 5, 7, 9, 11)},
}
SERIAL, CONV2D = "serial", "conv2d"
FLOAT32 = "float32"  # after a name: without TF32

_CALL_PRODUCTS = 2**35  # as many products in a chain of calls, about
_MOST_CALLS = 16
_SAMPLE_SECONDS = {"CPU": 0.1, "GPU": 0.02}
_SLOW_SECONDS = 0.25  # a call that takes longer is timed once


def sizes_at(varied: str, size: int) -> tuple[int, int]:
    """Returns the edges of image and kernel where one of them is varied."""
    return {"image": (size, KERNEL), "kernel": (IMAGE, size)}[varied]


def work(image: int, kernel: int) -> dict[str, int]:
    """Returns what there is to compute, read and write.

    `products` are those of numbers; `bytes` if every number is read or written once,
    the weights as codes of a byte; `saved` are the multiplications that sums by weight
    save, as the report counts them.
    """
    outputs = KERNELS * (image - kernel + 1) ** 2
    reads = kernel * kernel * CHANNELS
    images = image * image * CHANNELS
    return {
        "outputs": outputs,
        "products": outputs * reads,
        "bytes": 4 * (outputs + images) + KERNELS * reads,
        "saved": outputs * (reads - POWERS),
    }


def methods(kind: str) -> dict[str, Callable[..., tf.Tensor]]:
    """Returns what is timed on a type of device, from image, codes and weights."""
    programs = studies.KHANDWAWALA if kind == "GPU" else (SERIAL,)

    def program(name, image, codes, weights):
        attributes = {"bits": BITS, "powers": POWERS}
        return studies.inq_conv2d(image, codes, TOP_EXPONENT, name, **attributes)

    def ours(image, codes, weights):
        return tf_capsops.inq_conv2d(image, codes, TOP_EXPONENT, BITS, padding="VALID")

    def conv2d(image, codes, weights):
        return tf.nn.conv2d(image, weights, 1, "VALID")

    found = {name: functools.partial(program, name) for name in programs}
    return {**found, OURS: ours, CONV2D: conv2d}


def tensors(
    image: int, kernel: int, rng: np.random.Generator, more_rows: int = 0
) -> tuple[tf.Tensor, ...]:
    """Draws an image, codes and the weights they stand for; as there, none is 0."""
    shape = 1, image + more_rows, image, CHANNELS
    codes = rng.integers(1, 2 * POWERS, (kernel, kernel, CHANNELS, KERNELS), endpoint=1)
    weights = np.ldexp(1 - 2.0 * (codes % 2 == 0), TOP_EXPONENT - (codes - 1) // 2)
    return (
        tf.random.uniform(shape, -1, 1),
        tf.constant(codes, tf.uint8),
        tf.constant(weights, tf.float32),
    )


@contextlib.contextmanager
def _tf32(on: bool) -> Iterator[None]:
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(on)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def _compare(
    found: Mapping[str, Callable],
    sizes: tuple[int, int],
    device: str,
    repeat: int,
    more_rows: int,
) -> dict[str, dict]:
    kind = measure.device_type(device)
    cost = work(*sizes)
    calls = max(1, min(_MOST_CALLS, _CALL_PRODUCTS // cost["products"]))
    calls = calls if kind == "GPU" else 1
    rng = np.random.default_rng(0)
    with tf.device(device):
        number = min(max(2, calls), measure.set_count(device, cost["bytes"]))
        sets = [tensors(*sizes, rng, more_rows) for _ in range(number)]
    chains = {
        name: measure.Chain(
            measure.forward_step(compute),
            sets,
            device,
            length=calls,
            seconds=_SAMPLE_SECONDS[kind],
        )
        for name, compute in found.items()
    }
    timings = measure.compare(chains, repeat, slow=_SLOW_SECONDS)
    return {name: outcome.cell(timing) for name, timing in timings.items()}


def _measure(sizes: tuple[int, int], device: str, repeat: int) -> dict[str, dict]:
    """Returns a cell for each method.

    TensorFlow remembers for each shape which of cuDNN's algorithms was fastest, whether
    it uses TF32 or not. So without TF32 the image has one row more.
    """
    kind = measure.device_type(device)
    found = methods(kind)
    if kind == "CPU":
        missing = {}
        try:
            studies.library_path()
        except ImportError as error:
            missing[SERIAL] = outcome.cell(str(error))
            del found[SERIAL]
        return missing | _compare(found, sizes, device, repeat, more_rows=0)
    with _tf32(True):
        cells = _compare(found, sizes, device, repeat, more_rows=0)
    found = {f"{name}, {FLOAT32}": found[name] for name in (OURS, CONV2D)}
    with _tf32(False):
        return cells | _compare(found, sizes, device, repeat, more_rows=1)


def run(device: str, repeat: int) -> Iterator[dict]:
    """Yields a result for the image's size, and on a GPU one for the kernel's."""
    measured: dict[tuple[int, int], dict[str, dict]] = {}  # one is in both
    for varied, sizes in SIZES[measure.device_type(device)].items():
        rows: dict[str, list[dict]] = {}
        for size in sizes:
            both = sizes_at(varied, size)
            if both not in measured:
                measured[both] = _measure(both, device, repeat)
            for name, cell in measured[both].items():
                rows.setdefault(name, []).append(cell)
        yield {
            "device": device,
            "varied": varied,
            "sizes": list(sizes),
            "work": [work(*sizes_at(varied, size)) for size in sizes],
            "methods": {n: outcome.row(varied, c, sizes) for n, c in rows.items()},
        }


def table(result: Mapping) -> Table:
    """Returns a result as a table, a column for each size."""
    fixed = {"image": f"kernels of {KERNEL}x{KERNEL}", "kernel": f"{IMAGE}x{IMAGE}"}
    shown = Table(
        title='Khandwawala, "Weight Sharing on CNN": '
        f"{fixed[result['varied']]}, {result['device']}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    shown.add_column(result["varied"], no_wrap=True)
    for size in result["sizes"]:
        shown.add_column(f"{size}x{size}", justify="right", no_wrap=True)
    rows = result["methods"]
    for name, row in rows.items():
        shown.add_row(name, *map(outcome.shown, row["cells"]))
    for name, unit in (("products", 1e9), ("bytes", 1e6)):
        amounts = (f"{work[name] / unit:.3g}" for work in result["work"])
        shown.add_row(name, *amounts, style="dim")
    notes = [
        f"milliseconds; {CHANNELS} channels, {KERNELS} kernels, {POWERS} powers",
        "products in 10^9; bytes in 10^6: every number once",
        "output, input: what is stationary",
    ]
    if any(name.endswith(FLOAT32) for name in rows):
        notes.append(f"{FLOAT32}: without TF32, an image of one row more")
    notes += [f"{n}: {row['error']}" for n, row in rows.items() if "error" in row]
    shown.caption, shown.caption_justify = "\n".join(notes), "left"
    return shown
