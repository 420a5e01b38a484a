# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs the rivals in PyTorch: scripts in the folder benchmarks/ of the source tree."""

from __future__ import annotations

import argparse
import importlib.util
import json
import pathlib
import subprocess
import sys
from collections.abc import Mapping

import tf_capsops
from tf_capsops.bench.cases import Case
from tf_capsops.errors import CommandError

SCRIPTS = pathlib.Path(tf_capsops.__file__).parents[1] / "benchmarks"


def has_script(name: str) -> bool:
    """Tells whether there is a script; wheels have none."""
    return (SCRIPTS / name).is_file()


def is_installed() -> bool:
    """Tells whether PyTorch can be imported here, without doing so."""
    return importlib.util.find_spec("torch") is not None


def interpreter(options: argparse.Namespace) -> str | None:
    """Returns the Python that has PyTorch, or None where there is none.

    Raises:
        CommandError: The Python that the user named cannot import it.
    """
    python = options.torch_python
    if python is None:
        return sys.executable if is_installed() else None
    try:
        command = [python, "-c", "import torch"]
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        text = f"--torch-python: cannot run {python}: {error.strerror}"
        raise CommandError(text) from error
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["it failed"])[-1]
        raise CommandError(f"--torch-python: {python} cannot import torch: {why}")
    return python


def described(case: Case) -> str:
    """Returns a case as the scripts take it after `--case`."""
    drawn = {"name": case.name, "sizes": dict(case.sizes)}
    return json.dumps({**drawn, "attributes": dict(case.attributes)})


def case_of(text: str) -> Case:
    """Returns the case that a text from `described` describes."""
    drawn = json.loads(text)
    attributes = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in drawn["attributes"].items()
    }
    return Case(drawn["name"], drawn["sizes"], uses=(), attributes=attributes)


def rows(
    name: str,
    kind: str,
    options: argparse.Namespace,
    *arguments: object,
    environment: Mapping[str, str] | None = None,
) -> list[dict]:
    """Runs a script in another process, because two libraries cannot share GPU memory.

    Args:
        name: The script's file name.
        kind: "CPU" or "GPU".
        options: The benchmark's options; `repeat`, `tf32` and `compile_limit` are
            passed on.
        arguments: Further options of the script.
        environment: The environment of the process; by default that of this one.

    Returns:
        A dict for each line that the script printed (benchmarks/torch_timing.py). If it
        failed, a last dict has only `method` and `error`.
    """
    python = options.torch_python or sys.executable
    command = [python, SCRIPTS / name, "--device", kind, *arguments]
    command += ["--repeat", options.repeat, "--tf32" if options.tf32 else "--no-tf32"]
    command += ["--compile-limit", options.compile_limit]
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, env=environment
    )
    lines = done.stdout.splitlines()  # compilers may add lines of their own
    found = [json.loads(line) for line in lines if line.startswith("{")]
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it ended without a word"]
        method = "PyTorch, the rest" if found else "PyTorch"
        found.append({"method": method, "error": last[0]})
    return found
