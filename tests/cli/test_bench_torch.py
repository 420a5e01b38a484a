# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The timing of PyTorch, with a stand-in for PyTorch whose compiler may not end."""

import json
import pathlib
import subprocess
import sys

import pytest

_BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
_TORCH = """
import types
def set_float32_matmul_precision(precision): pass
class backends: cudnn = types.SimpleNamespace()
class compiler: reset = staticmethod(lambda: None)
"""
_SCRIPT = """
import sys, time
import torch_timing
torch_timing.SAMPLE_SECONDS = 0.01

def make_step(mode):
    return lambda: time.sleep({"default": 60, "quick": 0.01}.get(mode, 0.001))

options = torch_timing.parser("A test.").parse_args()
jobs = [({"method": str(mode)}, mode, make_step) for mode in MODES]
torch_timing.report(jobs, torch_timing.device_of(options), options)
"""


@pytest.mark.parametrize(
    "modes, reasons",
    [
        ([None, "quick"], [None, None]),
        (
            [None, "default", "quick"],
            [
                None,
                "not compiled within 0.5 s",
                "not tried: another was not compiled within 0.5 s",
            ],
        ),
    ],
    ids=["in time", "late"],
)
def test_a_compiler_that_takes_too_long_is_left(modes, reasons, tmp_path):
    (tmp_path / "torch.py").write_text(_TORCH)
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT.replace("MODES", repr(modes)))
    done = subprocess.run(
        [sys.executable, script, "--device", "CPU", "--repeat", "2"]
        + ["--compile-limit", "0.5"],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
        env={"PYTHONPATH": f"{tmp_path}:{_BENCHMARKS}"},
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["method"] for row in rows] == [str(mode) for mode in modes]
    assert [row.get("error") for row in rows] == reasons
    for row in rows:
        assert ("samples" in row) != ("error" in row)
