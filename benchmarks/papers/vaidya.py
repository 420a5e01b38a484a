# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Vaidya, "Speeding up Capsules": Table 2, Figure 1 and the layouts of future work.

One image of 128x128 pixels and one output channel, 5x5, in poses of 4x4.
"""

from __future__ import annotations

import functools
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf

from benchmarks.papers import chart, compile_times, counts, outcome, report, studies
from tf_capsops.bench import measure
from tf_capsops.bench.report import OURS
from tf_capsops.bench.suites import capsule_conv

OP = "CapsuleConv"
DEVICES = ("CPU", "GPU")
# Table 2, on a Tesla V100: milliseconds, global stores, global loads.
PUBLISHED = {
    "B": (24.693, 393625600, 488843700),
    "I1": (8.3399, 98406400, 488470968),
    "I2": (6.9763, 98406400, 392512360),
    "I3": (4.9513, 98406400, 97851359),
}
# Figure 1b, of Barham and Isard: compiling and running capsules of a size that the
# paper does not say; in milliseconds where no other unit is named.
FIGURE_1 = (
    ("gcc, 1 core", "500 ms", 64.3),
    ("gcc, 6 cores", "500 ms", 11.7),
    ("PlaidML, GTX 1080", "560 ms", 604),
    ("Tensor Comp., GTX 1080", "3.2 s", 225),
    ("Tensor Comp., GTX 1080", "64 s", 18.3),
    ("Tensor Comp., GTX 1080", "1002 s", 1.8),
    ("CUDA, GTX 1080", "48 h", 1.9),
)
# Memory layouts of an image [height, width, channels, 4, 4], by the name of the kernel
# that takes them: the axes of input and of output in the order of memory, and what else
# computes in that layout without a transpose.
_AXES = ("y", "x", "channel", "row", "column")
LAYOUTS = {
    "pcrk": ((0, 1, 2, 3, 4), " (the paper's, `CapsuleConv`'s)"),
    "prkc": ((0, 1, 3, 4, 2), ""),
    "crkp": ((2, 3, 4, 0, 1), ""),
    "rpck": ((3, 0, 1, 2, 4), " (`conv2d`'s NHWC)"),
    "rckp": ((3, 2, 4, 0, 1), " (`conv2d`'s NCHW)"),
}
_FOLD, _FOLD_XLA = "TF fold", "TF fold, XLA"
_VALID = {"strides": (1, 1), "padding": "VALID", "dilations": (1, 1)}


def methods(kind: str) -> dict[str, Callable]:
    """Returns the paper's kernels, ours and the fold as steps, by name."""
    fold = functools.partial(capsule_conv.SUITE.rivals["fold"], **_VALID)
    found = counts.methods() if kind == "GPU" else {OURS: capsule_conv.SUITE.ours}
    found = {name: measure.forward_step(f) for name, f in found.items()}
    step = measure.forward_step(fold)
    return {**found, _FOLD: step, _FOLD_XLA: measure.compiled(step)}


def _sets(channels: int, device: str) -> list[tuple[tf.Tensor, ...]]:
    with tf.device(device):
        first = counts.tensors(channels)
        size = 4 * sum(tensor.shape.num_elements() for tensor in first)
        more = measure.set_count(device, size) - 1
        return [first, *(counts.tensors(channels) for _ in range(more))]


def _compare(steps: Mapping, sets: Sequence, device: str, repeat: int) -> dict:
    chains = {n: measure.Chain(s, sets, device) for n, s in steps.items()}
    timings = measure.compare(chains, repeat)
    return {name: outcome.cell(timing) for name, timing in timings.items()}


def _first_call(step: Callable, arguments: tuple, device: str) -> float | None:
    """Returns the seconds of a step's first call, in which XLA compiles it."""
    try:
        with tf.device(device):
            start = time.perf_counter()
            step(*arguments)
            tf.test.experimental.sync_devices()
            return time.perf_counter() - start
    except tf.errors.OpError:
        return None  # its timing will say why


def _table_2(device: str, repeat: int) -> Iterator[dict]:
    """Yields a result for each number of input channels."""
    kind = measure.device_type(device)
    counted = "not counted on a CPU"
    if kind == "GPU":
        tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
        counted = counts.count(tf32)
    for channels in counts.CHANNELS:
        steps, sets = methods(kind), _sets(channels, device)
        compiled = _first_call(steps[_FOLD_XLA], sets[0], device)
        rows = _compare(steps, sets, device, repeat)
        rows[_FOLD_XLA]["compile_s"] = compiled
        for name in rows:
            if not isinstance(counted, str):
                rows[name] |= counted.get((channels, name), {})
        result = {"in_channels": channels, "methods": rows}
        if isinstance(counted, str):
            result["counts"] = counted
        yield result


def _compile(device: str, repeat: int) -> Iterator[dict]:
    """Yields nvcc's seconds for each kernel of the paper, and for ours."""
    if measure.device_type(device) == "CPU":
        yield {"seconds": compile_times.measure()}


def _in_memory(order: str, tensor: tf.Tensor) -> tf.Tensor:
    """Returns an image [1, ..., 4, 4] as a layout has it in memory."""
    return tf.transpose(tensor[0], LAYOUTS[order][0])


def _out_of_memory(order: str, tensor: tf.Tensor) -> tf.Tensor:
    """Returns an image that a layout has as [1, ..., 4, 4]."""
    axes = LAYOUTS[order][0]
    return tf.transpose(tensor, [axes.index(axis) for axis in range(5)])[tf.newaxis]


def in_layout(order: str) -> Callable[..., tf.Tensor]:
    """Returns the layouts' kernel, from the image as `order` has it to the same."""

    def compute(image, weights):
        sizes = [image.shape[LAYOUTS[order][0].index(axis)] for axis in range(5)]
        height, width = (
            max(0, size - kernel + 1) for size, kernel in zip(sizes, weights.shape[:2])
        )
        output = studies.capsule_conv2d(
            tf.reshape(image, (1, *sizes)), weights, f"layout_{order}"
        )
        made = (height, width, 1, 4, 4)
        return tf.reshape(output, [made[axis] for axis in LAYOUTS[order][0]])

    return compute


def _with_transposes(order: str, compute: Callable) -> Callable[..., tf.Tensor]:
    """Returns what takes [1, ..., 4, 4] with transposes to and from a layout."""

    def transposed(image, weights):
        return _in_memory(order, compute(_out_of_memory(order, image), weights))

    return transposed if order != "pcrk" else lambda i, w: compute(i[tf.newaxis], w)[0]


def _conv2d(order: str) -> Callable[..., tf.Tensor] | None:
    """Returns the fold's convolution alone, where a layout needs no transpose."""
    if order not in ("rpck", "rckp"):
        return None

    def compute(image, weights):
        _, _, channels, _, inner, columns = weights.shape
        filters = tf.reshape(
            weights[:, :, :, 0],
            (*weights.shape[:2], channels * inner, columns),
        )
        if order == "rpck":
            folded = tf.reshape(image, (*image.shape[:3], channels * inner))
            return tf.nn.conv2d(folded, filters, 1, "VALID")
        folded = tf.reshape(image, (4, channels * inner, *image.shape[3:]))
        return tf.nn.conv2d(folded, filters, 1, "VALID", data_format="NCHW")

    return compute


def _layouts(device: str, repeat: int) -> Iterator[dict]:
    """Yields a result for each number of channels, a row for each layout."""
    if measure.device_type(device) == "CPU":
        return
    fold = functools.partial(capsule_conv.SUITE.rivals["fold"], **_VALID)
    for channels in counts.CHANNELS:
        sets, rows = _sets(channels, device), {}
        for order in LAYOUTS:
            with tf.device(device):
                own = [(_in_memory(order, image), w) for image, w in sets]
            conv2d = _conv2d(order) or _with_transposes(order, fold)
            steps = {
                "kernel": in_layout(order),
                OURS: _with_transposes(order, capsule_conv.SUITE.ours),
                "conv2d": conv2d,
            }
            steps = {name: measure.forward_step(f) for name, f in steps.items()}
            rows[order] = _compare(steps, own, device, repeat)
        yield {"in_channels": channels, "rows": rows}


PARTS = {"table_2": _table_2, "compile": _compile, "layouts": _layouts}


def _table_2_results(results: Sequence[Mapping], kind: str) -> dict[int, Mapping]:
    found = report.on(kind, results)
    return {r["in_channels"]: r for r in found if r["part"] == "table_2"}


def _times(results: Sequence[Mapping]) -> dict:
    found = _table_2_results(results, "GPU")
    rows = []
    for name in next(iter(found.values()))["methods"] if found else PUBLISHED:
        line = [outcome.name(name, OP)]
        for channels in counts.CHANNELS:
            text = ""
            if channels in found:
                cells = found[channels]["methods"]
                text, base = outcome.shown(cells[name]), cells["B"]
                if name != "B" and "ms" in cells[name] and "ms" in base:
                    text += f" ({cells[name]['ms'] / base['ms']:.2f})"
            line.append(text)
        theirs = PUBLISHED[name][0] if name in PUBLISHED else ""
        if name in PUBLISHED and name != "B":
            theirs = f"{theirs} ({theirs / PUBLISHED['B'][0]:.2f})"
        rows.append([*line, str(theirs)])
    outcome.bold_least(rows, range(1, 1 + len(counts.CHANNELS)))
    columns = ["ms (of `B`)", *(f"{c} channels" for c in counts.CHANNELS), "V100"]
    return report.table(columns, rows, found.values(), OP)


def _counts(results: Sequence[Mapping]) -> dict:
    """Returns the counts with 16 channels, which the published ones are of."""
    result = _table_2_results(results, "GPU").get(max(counts.CHANNELS))
    rows = []
    for name, (_, *published) in PUBLISHED.items():
        line = [f"`{name}`"]
        for key, theirs in zip(("stores", "loads"), published):
            ours = result["methods"][name].get(key) if result else None
            line += ["" if ours is None else f"{ours:,}", f"{theirs:,}"]
        rows.append(line)
    columns = ["16 channels", "stores", "V100", "loads", "V100"]
    return report.table(columns, rows, [result])


def _figure_1(results: Sequence[Mapping]) -> dict:
    """Returns compile time next to run time, of Figure 1 and of ours."""
    rows = [[name, took, f"{ms:g}"] for name, took, ms in FIGURE_1]
    compiled = report.newest(results, part="compile")
    seconds = compiled["seconds"] if compiled else {}
    few = min(counts.CHANNELS)
    gpu = _table_2_results(results, "GPU").get(few)
    cpu = _table_2_results(results, "CPU").get(few)

    def add(label, took, result, name):
        cell = result["methods"][name] if result else {}
        if took is not None and "ms" in cell:
            rows.append([label, f"{took:.1f} s", outcome.shown(cell)])

    for name in PUBLISHED:
        add(f"`{name}`, nvcc", seconds.get(name), gpu, name)
    add("`CapsuleConv`, nvcc", seconds.get(OURS), gpu, OURS)
    add("`CapsuleConv`, gcc", seconds.get(f"{OURS}, CPU"), cpu, OURS)
    for result, where in ((gpu, "GPU"), (cpu, "CPU")):
        took = result and result["methods"][_FOLD_XLA].get("compile_s")
        add(f"fold, XLA, {where}", took, result, _FOLD_XLA)
    return report.table(["", "compile", "run, ms"], rows, [compiled, gpu, cpu])


def _layout_table(results: Sequence[Mapping]) -> dict:
    found = {r["in_channels"]: r for r in results if r["part"] == "layouts"}
    rows = []
    for order, (axes, whose) in LAYOUTS.items():
        line = [", ".join(_AXES[axis] for axis in axes) + whose]
        for channels in counts.CHANNELS:
            cells = found[channels]["rows"][order] if channels in found else {}
            line += [
                outcome.shown(cells[name]) if name in cells else ""
                for name in ("kernel", OURS, "conv2d")
            ]
        rows.append(line)
    outcome.bold_least(rows, range(1, 1 + 3 * len(counts.CHANNELS)))
    columns = ["axes, the outermost first"]
    for channels in counts.CHANNELS:
        columns += [f"{channels} channels: `I3`, summed in registers"]
        columns += ["`CapsuleConv`", "`conv2d`"]
    return report.table(columns, rows, found.values(), OP)


def tables(results: Sequence[Mapping]) -> Iterator[tuple[str, dict]]:
    """Yields Table 2 (times and counts), Figure 1 and the layouts."""
    yield "papers_vaidya", _times(results)
    yield "papers_vaidya_counts", _counts(results)
    yield "papers_vaidya_compile", _figure_1(results)
    yield "papers_vaidya_layouts", _layout_table(results)


def draw(results: Sequence[Mapping], path: pathlib.Path) -> None:
    """Draws compile time and run time, published and ours, to a PNG file."""
    made = _figure_1(results)
    figure, [[panel]] = chart.figure(1, 1, width=7.0)
    factors = {"ms": 1e-3, "s": 1, "h": 3600}
    series: dict[tuple[bool, str], list[tuple[float, float]]] = {}
    for place, (name, took, ms) in enumerate(made["rows"]):
        value, unit = took.split()
        at = float(value) * factors[unit], float(ms.replace(",", ""))
        series.setdefault((place < len(FIGURE_1), name), []).append(at)
    for (is_theirs, name), points in series.items():
        marker = {"marker": "x" if is_theirs else "o", "alpha": 0.8}
        panel.scatter(*zip(*points), label=name.replace("`", ""), s=45, **marker)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel("seconds to compile")
    panel.set_ylabel("milliseconds to run")
    panel.set_title("crosses: Barham and Isard; dots: ours", fontsize="medium")
    panel.grid(alpha=0.3)
    figure.legend(loc="outside right center", fontsize="small")
    figure.savefig(path, dpi=chart.DPI)
