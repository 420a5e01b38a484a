# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs the rivals in PyTorch, which are scripts in the source tree's benchmarks/."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys

import tf_capsops

SCRIPTS = pathlib.Path(tf_capsops.__file__).parents[1] / "benchmarks"


def has_script(name: str) -> bool:
    """Tells whether there is a script, which wheels have not."""
    return (SCRIPTS / name).is_file()


def is_installed() -> bool:
    """Tells whether PyTorch can be imported, without doing so."""
    return importlib.util.find_spec("torch") is not None


def rows(name: str, kind: str, options, *arguments: object) -> list[dict]:
    """Runs a script in a process of its own: the two do not share a GPU's memory.

    Args:
        kind: "CPU" or "GPU".
        options: Of the benchmark, of which `repeat` and `tf32` are handed on.
        arguments: Further options of the script.

    Returns:
        The lines that it printed, a dict each (benchmarks/torch_timing.py). If the
        script failed, another one has its `error`, without the script's other fields.
    """
    command = [sys.executable, SCRIPTS / name, "--device", kind, *arguments]
    command += ["--repeat", options.repeat, "--tf32" if options.tf32 else "--no-tf32"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    lines = done.stdout.splitlines()  # also a compiler's own words
    found = [json.loads(line) for line in lines if line.startswith("{")]
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it ended without a word"]
        method = "PyTorch, the rest" if found else "PyTorch"
        found.append({"method": method, "error": last[0]})
    return found
