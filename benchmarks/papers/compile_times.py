# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compile times of each kernel of Vaidya, and of all of CapsuleConv.

Each is a compiler's process: the seconds that it and its children computed. Processes
that share a machine with others are slower by the clock, but hardly by this measure.
"""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence

from benchmarks.papers import studies
from tf_capsops.bench.report import OURS

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_MOST_SECONDS = 200  # by the clock, for one process
_FLAGS = ("-std=c++17", "-O3", "-DNDEBUG", "-I.")
_NVCC = ("--expt-relaxed-constexpr", "-arch=sm_90a")
_SOURCE = """#include "cuda/studies/vaidya.cuh"
namespace capsops::studies::capsule_conv {
template __global__ void RowKernel<%s>(Filter, int, float*, float*, float*);
}
"""
_CPU = ("-fPIC", "-march=x86-64-v4", "-DCAPSOPS_ISA=v4", "-Wno-psabi")


def _seconds(command: Sequence[str]) -> float | None:
    """Returns the processor's seconds of a command, or None where it fails."""
    process = subprocess.Popen(
        command, cwd=_ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    timer = threading.Timer(_MOST_SECONDS, process.kill)
    timer.start()
    _, status, usage = os.wait4(process.pid, 0)
    timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return None if process.returncode else usage.ru_utime + usage.ru_stime


def _together(commands: Sequence[Sequence[str]]) -> float | None:
    """Returns the sum over commands that run at the same time, or None."""
    threads = len(os.sched_getaffinity(0))
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        taken = list(pool.map(_seconds, commands))
    return None if None in taken or not taken else sum(taken)


def measure() -> dict[str, float]:
    """Returns seconds by method; those are missing whose compiler is not there."""
    found: dict[str, float | None] = {}
    nvcc, gcc = shutil.which("nvcc"), shutil.which("g++")
    with tempfile.TemporaryDirectory() as folder:
        out, own = f"{folder}/object", (*_FLAGS, *_NVCC)
        if gcc:
            source = "cc/cpu/capsule_conv.cc"
            found[f"{OURS}, CPU"] = _seconds(
                [gcc, *_FLAGS, *_CPU, source, "-c", "-o", out]
            )
        for name in studies.VAIDYA if nvcc else ():
            path = pathlib.Path(folder, f"{name}.cu")
            path.write_text(_SOURCE % name)
            found[name] = _seconds([nvcc, *own, str(path), "-c", "-o", out])
        if nvcc:
            units = sorted(_ROOT.glob("cuda/capsule_conv/**/*.cu.cc"))
            found[OURS] = _together(
                [
                    [nvcc, *own, "-x", "cu", str(unit), "-c", "-o", f"{out}{place}"]
                    for place, unit in enumerate(units)
                ]
            )
    return {name: seconds for name, seconds in found.items() if seconds is not None}
