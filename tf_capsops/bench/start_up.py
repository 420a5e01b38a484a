# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measures the first step of a process, from the start of Python to its end.

Every method has a process of its own, so nothing is traced, compiled or tuned before.
Compilers get empty directories for the files that they keep between processes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import tensorflow as tf

import tf_capsops
from tf_capsops.bench import pytorch, report
from tf_capsops.bench.cases import Case
from tf_capsops.bench.fitting import Fit, Method, scope

# A method's fields, in seconds, and their headings.
PARTS = {
    "import_s": "Python and imports",
    "build_s": "building",
    "first_s": "first step",
}
_CHILD = """
import json, sys, time
import {package}
imported = time.time()
from tf_capsops.bench import start_up
print(json.dumps(start_up.first_step(imported, json.loads(sys.argv[1]))))
"""
_KEPT_BY_COMPILERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")


def of_fit(case: Case, method: Method, dtype: str, kind: str, tf32: bool) -> dict:
    """Returns the seconds of a method's parts, or `start_up_error`."""
    task = {"case": pytorch.described(case), "method": dataclasses.asdict(method)}
    task |= {"dtype": dtype, "kind": kind, "tf32": tf32}
    package = "tf_capsops" if method.who == report.OURS else "keras"
    with _environment() as environment:
        task["started"] = time.time()
        done = subprocess.run(
            [sys.executable, "-c", _CHILD.format(package=package), json.dumps(task)],
            capture_output=True,
            text=True,
            env=environment,
        )
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["it ended without a word"]
        return {"start_up_error": words[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def of_torch(
    script: str, method: str, kind: str, options: argparse.Namespace, *arguments: object
) -> dict:
    """Returns the seconds of the parts of a method in PyTorch, or `start_up_error`."""
    with _environment() as environment:
        more = *arguments, "--method", method, "--started", time.time()
        *_, row = pytorch.rows(script, kind, options, *more, environment=environment)
    if "error" in row:
        return {"start_up_error": row["error"]}
    return {name: row[name] for name in PARTS}


@contextlib.contextmanager
def _environment() -> Iterator[dict[str, str]]:
    """Yields the environment of a process that finds no files of earlier ones."""
    package = pathlib.Path(tf_capsops.__file__).parents[1]
    paths = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory() as folder:
        kept = {name: os.path.join(folder, name) for name in _KEPT_BY_COMPILERS}
        yield {**os.environ, **kept, "PYTHONPATH": os.pathsep.join(paths)}


def first_step(imported: float, task: dict) -> dict[str, float]:
    """Trains for one execution in this process, and returns the seconds of the parts.

    Args:
        imported: The time when the imports were done, in seconds since the epoch.
        task: The dict that `of_fit` has put together.
    """
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.experimental.enable_tensor_float_32_execution(task["tf32"])
    case, method = pytorch.case_of(task["case"]), Method(**task["method"])
    with scope(task["dtype"], task["kind"]):
        began = time.time()
        fit = Fit(case, method, task["kind"])
        built = time.time()
        fit.seconds(method.execution, epochs=1)
        parts = imported - task["started"], built - began, time.time() - built
    return dict(zip(PARTS, parts, strict=True))
