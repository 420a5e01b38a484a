# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Counts kernels' loads from and stores to global memory, by Nsight Compute.

Counted are sectors of 32 bytes that warps ask for, whatever cache answers: what nvprof
calls transactions. `main` is what runs under the profiler.
"""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable

import tensorflow as tf

from benchmarks.papers import studies
from tf_capsops.bench.suites import capsule_conv

OURS = "tf_capsops"
CHANNELS = (3, 16)

_STORES = ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",)
_LOADS = (  # and those of asynchronous copies; no paper's kernel has any
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_access.sum",
    "sm__sass_l1tex_m_xbar2l1tex_read_sectors_mem_global_op_ldgsts_cache_bypass.sum",
)
_SECONDS = 600

Counts = dict[tuple[int, str], dict[str, int]]


def methods() -> dict:
    """Returns what is counted, by name, in the order in which it is launched."""
    found = {
        name: lambda i, w, name=name: studies.capsule_conv2d(i, w, name)
        for name in studies.VAIDYA
    }
    return {**found, OURS: capsule_conv.SUITE.ours}


def tensors(channels: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns input and weights of Vaidya's Table 1, with these input channels."""
    return (
        tf.random.uniform((1, 128, 128, channels, 4, 4), -1, 1),
        tf.random.uniform((5, 5, channels, 1, 4, 4), -1, 1),
    )


def read(lines: Iterable[str]) -> Counts:
    """Sums the profiler's CSV by input channels and method.

    Kernels come in the order of `CHANNELS` and `methods`. The papers' are known by
    name, and any kernel between two of them is ours.
    """
    found: Counts = {}
    channels, kernel, launches = -1, None, None
    for row in csv.DictReader(line for line in lines if line.startswith('"')):
        named = re.search(r"RowKernel<.*\b(\w+)>\(", row["Kernel Name"])
        if row["ID"] != kernel:
            kernel = row["ID"]
            if named and named[1] == studies.VAIDYA[0]:
                channels += 1
        name = named[1] if named else OURS
        launches = found.setdefault(
            (CHANNELS[channels], name), {"stores": 0, "loads": 0}
        )
        value = row["Metric Value"].replace(",", "")
        for key, metrics in (("stores", _STORES), ("loads", _LOADS)):
            if row["Metric Name"] in metrics and value.isdigit():
                launches[key] += int(value)
    return found


def count(tf32: bool) -> Counts | str:
    """Runs this module under the profiler; returns the reason where that fails."""
    profiler = shutil.which("ncu")
    if profiler is None:
        return "not counted: Nsight Compute (ncu) is not on PATH"
    command = [profiler, "--clock-control", "none", "--csv"]
    command += ["--kernel-name-base", "demangled", "--kernel-name", "regex:capsops"]
    command += ["--metrics", ",".join([*_STORES, *_LOADS])]
    command += [sys.executable, "-c", f"from {__name__} import main; main({tf32})"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return f"not counted: ncu took more than {_SECONDS} s"
    found = read(done.stdout.splitlines())
    if done.returncode or len(found) != len(CHANNELS) * len(methods()):
        said = [line for line in done.stdout.splitlines() if line.startswith("==ERROR")]
        said = said or done.stderr.splitlines() or ["kernels are missing"]
        return f"not counted: {said[-1]}"
    return found


def main(tf32: bool) -> None:
    """Calls each method once for each number of channels."""
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    with tf.device("GPU:0"):
        for channels in CHANNELS:
            inputs, weights = tensors(channels)
            for method in methods().values():
                method(inputs, weights)
        tf.test.experimental.sync_devices()
