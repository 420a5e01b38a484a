# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Describes what numbers were measured on: machine, versions and commit."""

from __future__ import annotations

import datetime
import os
import pathlib
import platform
import re
import subprocess

import keras
import numpy as np
import tensorflow as tf

from tf_capsops import _library
from tf_capsops._version import __version__


def _commit() -> dict:
    """Returns the commit of the checkout that this package is in, if it is in one."""
    package = pathlib.Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        if pathlib.Path(git("rev-parse", "--show-toplevel")) != package.parent:
            return {"commit": "unknown"}
        changed = git("status", "--porcelain", "--untracked-files=no")
        return {"commit": git("rev-parse", "HEAD"), "modified": bool(changed)}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "unknown"}


def _processor() -> str:
    """Names the processor, with its widest instructions for vectors and matrices."""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    facts = {}
    for key, _, value in (line.partition(":") for line in lines):
        facts.setdefault(key.strip(), value.strip())
    name = facts.get("model name") or platform.processor() or platform.machine()
    flags = facts.get("flags", "").split()
    for flag, label in (("amx_tile", "AMX"), ("avx512f", "AVX-512"), ("avx2", "AVX2")):
        if flag in flags:
            return f"{name} ({label})"
    return name


def machine() -> dict:
    """Describes the machine, the commit and the versions everything ran with."""
    gpus = tf.config.list_physical_devices("GPU")
    return {
        **_commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": [tf.config.experimental.get_device_details(gpu) for gpu in gpus],
        "system": platform.platform(),
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "tf_capsops": __version__,
        },
        "library": _library.build_info(),
    }


def label(measured_on: dict) -> str:
    """Names what `machine` described: its GPU, or its processor.

    >>> from tf_capsops.machine import label
    >>> label({"gpus": [], "cores": 2, "cpu": "Intel(R) Xeon(R) CPU @ 2GHz (AMX)"})
    '2 cores of Intel Xeon (AMX)'
    """
    gpus = [gpu["device_name"].removeprefix("NVIDIA ") for gpu in measured_on["gpus"]]
    if gpus:
        return gpus[0]
    name = re.sub(r"\((R|TM)\)| CPU| Processor| @ \S+", "", measured_on["cpu"])
    return f"{measured_on['cores']} cores of {name}"
