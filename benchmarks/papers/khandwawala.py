# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The charts of Khandwawala, "Weight Sharing on CNN".

Time by the number of channels and by the size of image and kernel, for a convolution
of one image with 128 kernels whose weights are 2, 4 and 8 and their negatives: by the
report's programs, by ours, and by plain TensorFlow, which has cuDNN do it. The report's
serial program is timed on a CPU.
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

import tf_capsops
from benchmarks.papers import chart, outcome, report, studies
from tf_capsops.bench import measure
from tf_capsops.bench.report import OURS

OP = "InqConv"
DEVICES = ("CPU", "GPU")
KERNELS = 128
POWERS, TOP_EXPONENT, BITS = 3, 3, 4  # n1 = 3, n2 = 1; a book of 4 powers has those 3
# Sizes of what is not varied. The report's table has 4 channels. But at 1024 its
# output-stationary chart by image equals the chart by channels at 3 channels. The
# input-stationary charts do not agree with each other.
FIXED = {"channels": 3, "image": 1024, "kernel": 3}
SIZES = {
    "CPU": {"image": (128, 256)},
    "GPU": {
        "channels": (1, 2, 3, 4, 5, 6),
        "image": (64, 128, 256, 512, 1024),
        "kernel": (3, 5, 7),
    },
}
# Milliseconds on a GeForce 940MX, read off the charts: by way of tiling, what is
# varied, and program.
PUBLISHED = {
    "output": {
        "channels": {
            "output_basic": (99, 165, 216, 263, 377, 482),
            "output_3": (234, 374, 570, 772, 1251, 1225),
            "output_5": (317, 590, 898, 1192, 1584, 1826),
            "output_6": (180, 461, 575, 695, 916, 1138),
        },
        "image": {
            "output_basic": (None, None, 12, 50, 215),
            "output_3": (None, None, None, None, 560),
            "output_5": (None, None, 52, 228, 896),
            "output_6": (None, None, None, 153, 576),
        },
        "kernel": {
            "output_basic": (0.42, 0.74, 1.97),
            "output_3": (1.55, 3.0, 6.7),
            "output_5": (2.3, 4.5, 10.5),
            "output_6": (0.78, 1.35, 4.7),
        },
    },
    "input": {
        "channels": {
            "input_basic": (142, 509, 335, 405, 519, 616),
            "input_1": (593, 1092, 2623, 4921, 10750, 18690),
        },
        "image": {
            "input_basic": (None, 5, 21, 83, 122),
            "input_1": (None, 43, 170, 648, 986),
        },
        "kernel": {
            "input_basic": (115, 322, 644),
            "input_1": (980, 2585, 5263),
        },
    },
}
_SAME_LINE = {"input_2": "input_1"}  # they share a line in the charts
SERIAL, CONV2D = "serial", "conv2d"
FLOAT32 = "float32"  # after a name: without TF32
# The basic program as it is, then without its multiplication.
WITHOUT = ("output_basic", "output_unread", "output_unused")
_WITHOUT_IMAGES, _WITHOUT_CHANNELS = (256, 512, 1024, 2048), 4

_CALL_PRODUCTS = 2**35  # as many products in a chain of calls, about
_MOST_CALLS = 16
_SAMPLE_SECONDS = {"CPU": 0.1, "GPU": 0.02}
_SLOW_SECONDS = 0.25  # a call that takes longer is timed once
Sizes = Mapping[str, int]  # of channels, image and kernel


def sizes_at(varied: str, size: int) -> dict[str, int]:
    """Returns channels and the edges of image and kernel where one is varied."""
    return {**FIXED, varied: size}


def work(channels: int, image: int, kernel: int) -> dict[str, int]:
    """Returns what there is to compute, read and write.

    `products` are those of numbers; `bytes` if every number is read or written once,
    the weights as codes of a byte; `saved` are the multiplications that sums by weight
    save, as the report counts them.
    """
    outputs = KERNELS * (image - kernel + 1) ** 2
    reads = kernel * kernel * channels
    images = image * image * channels
    return {
        "outputs": outputs,
        "products": outputs * reads,
        "bytes": 4 * (outputs + images) + KERNELS * reads,
        "saved": outputs * (reads - POWERS),
    }


def program(name: str) -> Callable[..., tf.Tensor]:
    """Returns one of the report's programs, from image, codes and weights."""

    def compute(image, codes, weights):
        attributes = {"bits": BITS, "powers": POWERS}
        return studies.inq_conv2d(image, codes, TOP_EXPONENT, name, **attributes)

    return compute


def methods(kind: str) -> dict[str, Callable[..., tf.Tensor]]:
    """Returns what is timed on a type of device, from image, codes and weights."""
    programs = studies.KHANDWAWALA if kind == "GPU" else (SERIAL,)

    def ours(image, codes, weights):
        return tf_capsops.inq_conv2d(image, codes, TOP_EXPONENT, BITS, padding="VALID")

    def conv2d(image, codes, weights):
        return tf.nn.conv2d(image, weights, 1, "VALID")

    return {**{n: program(n) for n in programs}, OURS: ours, CONV2D: conv2d}


def tensors(
    sizes: Sizes, rng: np.random.Generator, more_rows: int = 0
) -> tuple[tf.Tensor, ...]:
    """Draws an image, codes, and the weights that these encode; none is 0."""
    channels, image, kernel = (sizes[name] for name in FIXED)
    shape = 1, image + more_rows, image, channels
    codes = rng.integers(1, 2 * POWERS, (kernel, kernel, channels, KERNELS), endpoint=1)
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
    sizes: Sizes,
    device: str,
    repeat: int,
    more_rows: int = 0,
) -> dict[str, dict]:
    kind = measure.device_type(device)
    cost = work(**sizes)
    calls = max(1, min(_MOST_CALLS, _CALL_PRODUCTS // cost["products"]))
    calls = calls if kind == "GPU" else 1
    rng = np.random.default_rng(0)
    with tf.device(device):
        number = min(max(2, calls), measure.set_count(device, cost["bytes"]))
        sets = [tensors(sizes, rng, more_rows) for _ in range(number)]
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


def _measure(sizes: Sizes, device: str, repeat: int) -> dict[str, dict]:
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
        return missing | _compare(found, sizes, device, repeat)
    with _tf32(True):
        cells = _compare(found, sizes, device, repeat)
    found = {f"{name}, {FLOAT32}": found[name] for name in (OURS, CONV2D)}
    with _tf32(False):
        return cells | _compare(found, sizes, device, repeat, more_rows=1)


def _chart(varied: str, device: str, repeat: int) -> Iterator[dict]:
    """Yields a result with a row for each method and a cell for each size."""
    sizes = SIZES[measure.device_type(device)].get(varied, ())
    rows: dict[str, list[dict]] = {}
    for size in sizes:
        for name, cell in _measure(sizes_at(varied, size), device, repeat).items():
            rows.setdefault(name, []).append(cell)
    if rows:
        yield {
            "varied": varied,
            "sizes": list(sizes),
            "work": [work(**sizes_at(varied, size)) for size in sizes],
            "methods": {n: outcome.row(varied, c, sizes) for n, c in rows.items()},
        }


def _without(device: str, repeat: int) -> Iterator[dict]:
    """Yields the basic program's times with and without its multiplication."""
    if measure.device_type(device) == "CPU":
        return
    found = {name: program(name) for name in WITHOUT}
    rows: dict[str, list[dict]] = {name: [] for name in WITHOUT}
    for image in _WITHOUT_IMAGES:
        sizes = {**FIXED, "image": image, "channels": _WITHOUT_CHANNELS}
        for name, cell in _compare(found, sizes, device, repeat).items():
            rows[name].append(cell)
    yield {
        "varied": "image",
        "sizes": list(_WITHOUT_IMAGES),
        "methods": {
            n: outcome.row("image", cells, _WITHOUT_IMAGES) for n, cells in rows.items()
        },
    }


PARTS = {
    **{varied: functools.partial(_chart, varied) for varied in FIXED},
    "without": _without,
}
_HEADINGS = {
    "channels": "channels, 1024x1024, 3x3",
    "image": "image, 3 channels, 3x3",
    "kernel": "kernel, 1024x1024, 3 channels",
}


def _published(varied: str, name: str) -> Sequence[float | None]:
    tiling, line = name.partition("_")[0], _SAME_LINE.get(name, name)
    return PUBLISHED.get(tiling, {}).get(varied, {}).get(line, ())


def _pair(ours: str, published: float | None) -> str:
    """Returns our time and, in brackets, that of the chart."""
    return " ".join([ours, f"({published:,})" if published else ""]).strip()


def _chart_table(results: Sequence[Mapping], varied: str) -> dict:
    sizes = SIZES["GPU"][varied]
    result = report.newest(report.on("GPU", results), part=varied)
    names = [*methods("GPU"), f"{OURS}, {FLOAT32}", f"{CONV2D}, {FLOAT32}"]
    rows = []
    for name in names if result else studies.KHANDWAWALA:
        cells = [""] * len(sizes)
        if result:
            cells = [outcome.shown(cell) for cell in result["methods"][name]["cells"]]
        theirs = _published(varied, name) or [None] * len(sizes)
        if any(cells) or any(theirs):
            way = "" if FLOAT32 in name or name in studies.KHANDWAWALA else ", TF32"
            label = outcome.name(name, OP).replace(f", {FLOAT32}", "") + way
            rows.append([label, *map(_pair, cells, theirs)])
    outcome.bold_least(rows, range(1, 1 + len(sizes)))
    columns = [_HEADINGS[varied]]
    columns += [str(s) if varied == "channels" else f"{s}x{s}" for s in sizes]
    return report.table(columns, rows, [result], OP)


def _against(cell: Mapping, base: Mapping) -> str:
    """Returns a time and, in brackets, by how much it differs from another."""
    text = outcome.shown(cell)
    if cell is not base and "ms" in cell and "ms" in base:
        text += f" ({cell['ms'] / base['ms'] - 1:+.0%})"
    return text


def tables(results: Sequence[Mapping]) -> Iterator[tuple[str, dict]]:
    """Yields the charts as tables, what the multiplication costs, and the CPU's."""
    for varied in FIXED:
        yield f"papers_khandwawala_{varied}", _chart_table(results, varied)
    result = report.newest(results, part="without")
    rows = []
    for name in WITHOUT if result else ():
        cells = result["methods"][name]["cells"]
        base = result["methods"][WITHOUT[0]]["cells"]
        rows.append([f"`{name}`", *map(_against, cells, base)])
    outcome.bold_least(rows, range(1, 1 + len(_WITHOUT_IMAGES)))
    columns = ["image, 4 channels, 3x3", *(f"{s}x{s}" for s in _WITHOUT_IMAGES)]
    yield "papers_khandwawala_without", report.table(columns, rows, [result])
    result = report.newest(report.on("CPU", results), part="image")
    columns = ["image, 3 channels, 3x3", *(f"{s}x{s}" for s in SIZES["CPU"]["image"])]
    rows = [
        [outcome.name(name, OP), *map(outcome.shown, row["cells"])]
        for name, row in (result["methods"] if result else {}).items()
    ]
    outcome.bold_least(rows, range(1, len(columns)))
    yield "papers_khandwawala_cpu", report.table(columns, rows, [result], OP)


_COLORS = {  # the report has basic in blue
    "output_basic": "tab:blue",
    "output_3": "tab:orange",
    "output_5": "tab:green",
    "output_6": "tab:purple",
    "input_basic": "tab:cyan",
    "input_1": "tab:brown",
    "input_2": "tab:olive",
    OURS: "tab:red",
    CONV2D: "black",
}
_LEGEND = {OURS: f"{OP}, TF32", CONV2D: f"{CONV2D}, TF32"}


def _draw(panel, result: Mapping | None, tiling: str, varied: str) -> None:
    sizes = SIZES["GPU"][varied]
    rows = result["methods"] if result else {}
    for name, color in _COLORS.items():
        if name in rows and (name in _LEGEND or name.startswith(f"{tiling}_")):
            chart.line(panel, sizes, chart.times(rows[name]), name, color=color)
    for name, times in PUBLISHED[tiling][varied].items():
        chart.published(panel, sizes, times, f"{name}, 940MX", _COLORS[name])
    chart.axes(panel, sizes, varied, f"{tiling} stationary, by {varied}")


def draw(results: Sequence[Mapping], path: pathlib.Path) -> None:
    """Draws our times and the published ones to a PNG file."""
    figure, panels = chart.figure(len(PUBLISHED), len(FIXED))
    for tiling, line in zip(PUBLISHED, panels, strict=True):
        for varied, panel in zip(FIXED, line, strict=True):
            result = report.newest(report.on("GPU", results), part=varied)
            _draw(panel, result, tiling, varied)
    colors = {_LEGEND.get(name, name): color for name, color in _COLORS.items()}
    chart.legend(figure, colors, "GeForce 940MX (input_1 and input_2 share a line)")
    figure.savefig(path, dpi=chart.DPI)
