# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rivals in PyTorch, with stand-ins for PyTorch and for the scripts that time it."""

import json
import pathlib
import subprocess
import sys

import pytest
from benching import training_options

from tf_capsops.bench import cases, pytorch, report, start_up, training
from tf_capsops.errors import CommandError

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
    options = "--device", "CPU", "--repeat", "2", "--compile-limit", "0.5"
    done = subprocess.run(
        [sys.executable, script, *options],
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


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A script in the place of benchmarks/torch_training.py, and nothing but that."""
    monkeypatch.setattr(pytorch, "SCRIPTS", tmp_path)
    monkeypatch.setattr(training, "attempt", lambda *_: {"left_out": "a test"})
    monkeypatch.setattr(pytorch, "is_installed", lambda: True)
    monkeypatch.setattr(training, "_expected_numbers", lambda case: 7)
    return tmp_path / training.TORCH


def test_pytorch_runs_in_a_process_of_its_own(script, monkeypatch):
    script.write_text(
        "import json, sys\n"
        "row = {'samples': [2e-3, 4e-3], 'peak_bytes': 5, 'launches': len(sys.argv)}\n"
        "print(json.dumps({'method': 'PyTorch', 'parameters': 7, **row}))\n"
        "print('AUTOTUNE addmm')\n"
        "print(json.dumps({'method': 'PyTorch, torch.compile', 'error': 'no'}))\n"
    )
    options = training_options(suite=[cases.TRAINING])
    monkeypatch.setattr(pytorch, "is_installed", lambda: False)
    (result,) = training.run(options)
    assert result["methods"]["PyTorch"] == {"left_out": "it is not installed"}
    monkeypatch.setattr(pytorch, "is_installed", lambda: True)
    (result,) = training.run(options)
    eager = result["methods"]["PyTorch"]
    assert eager["median_us"] == pytest.approx(3000) and eager["launches"] == 12
    assert eager["images_per_second"] == pytest.approx(32 / 3e-3)
    assert eager["extra_bytes"] == 5
    assert result["methods"]["PyTorch, torch.compile"] == {"error": "no"}
    script.write_text("raise SystemExit('no driver')")
    (result,) = training.run(options)
    assert result["methods"]["PyTorch"] == {"error": "no driver"}
    without = training_options(suite=[cases.TRAINING], rivals=False)
    (result,) = training.run(without)
    assert all(name.startswith(report.OURS) for name in result["methods"])


def test_pytorch_is_given_network_and_type(script):
    """And a network with another number of parameters than ours is not compared."""
    script.write_text(
        "import argparse, json\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--case', type=json.loads)\n"
        "parser.add_argument('--dtype')\n"
        "options = parser.parse_known_args()[0]\n"
        "row = {'parameters': 7 + (options.dtype == 'float16'), 'samples': [1, 1]}\n"
        "row |= {'peak_bytes': None, 'given': options.case['name']}\n"
        "print(json.dumps({'method': 'PyTorch', **row}))\n"
    )
    options = training_options(suite=[cases.TRAINING], dtype=["bfloat16", "float16"])
    options.model = ["matrix_capsnet", "denoiser"]
    found = {
        (each["case"], each["dtype"]): each["methods"].get("PyTorch")
        for each in training.run(options)
    }
    assert found["matrix_capsnet", "bfloat16"]["given"] == "matrix_capsnet"
    wrong = {"error": "it has 8 parameters, and ours 7"}
    assert found["matrix_capsnet", "float16"] == wrong
    assert found["denoiser", "bfloat16"] is None


def test_a_network_that_cannot_be_made_says_why(script, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(training, "attempt", lambda *_: {"left_out": "a test"})
    monkeypatch.setattr(pytorch, "is_installed", lambda: True)
    options = training_options(suite=[cases.TRAINING], image_size=[100])
    options.model = ["segcaps"]
    (result,) = training.run(options)
    assert "must be multiples of 8" in result["methods"]["PyTorch"]["error"]


def test_another_python_may_have_pytorch(tmp_path, capsys):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 0\n")
    options = training_options(torch_python=str(python))
    for mode, words in ((0o644, "cannot run"), (0o755, None)):
        python.chmod(mode)
        if words is None:
            assert pytorch.interpreter(options) == str(python)
        else:
            with pytest.raises(CommandError, match=f"--torch-python: {words}"):
                pytorch.interpreter(options)
    python.write_text("#!/bin/sh\necho No module named torch >&2\nexit 1\n")
    with pytest.raises(CommandError, match="cannot import torch: No module named"):
        pytorch.interpreter(options)


def test_the_first_step_of_pytorch_has_parts(script):
    script.write_text(
        "import json, sys\n"
        "row = {'parameters': 7, 'samples': [1, 1], 'peak_bytes': None}\n"
        "if '--started' in sys.argv:\n"
        "    row = {'import_s': 1, 'build_s': 2, 'first_s': 3}\n"
        "name = sys.argv[sys.argv.index('--method') + 1] if '--method' in sys.argv"
        " else 'PyTorch'\n"
        "print(json.dumps({'method': name, **row}))\n"
    )
    (result,) = training.run(training_options(suite=[cases.TRAINING], start_up=True))
    method = result["methods"]["PyTorch"]
    assert [method[part] for part in start_up.PARTS] == [1, 2, 3]
    assert method["median_us"] == 1e6
