# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""`bench --threads` measures each number of threads, and compares them."""

import json
import re
import types

import pytest
from ceilings import CEILINGS

from tf_capsops.__main__ import main
from tf_capsops.bench import command, measure, threads
from tf_capsops.errors import CommandError

ARGUMENTS = ["--suite", "smoke", "--op", "InqConv", "--repeat", "2"]


@pytest.fixture
def used(undrawn, monkeypatch):
    """Runs here what has processes of its own; has the numbers of threads."""
    numbers = []

    def run(command):
        python, *module = command[1:4]
        assert (python, module) == ("-m", ["tf_capsops", "bench"])
        return types.SimpleNamespace(returncode=main(command[3:]))

    monkeypatch.setattr(threads, "subprocess", types.SimpleNamespace(run=run))
    monkeypatch.setattr(threads, "use", numbers.append)
    monkeypatch.setitem(measure._SAMPLE_SECONDS, "CPU", 0.01)
    monkeypatch.setattr(measure, "compiled", lambda step: step)
    monkeypatch.setattr(command, "measure_ceilings", lambda *_: CEILINGS)
    return numbers


def test_numbers_of_threads_are_compared(used, tmp_path, capsys):
    arguments = [*ARGUMENTS, "--threads", "1", "3", "--output", str(tmp_path)]
    assert main(["bench", *arguments]) == 0
    assert used == [1, 3]
    made = json.loads((tmp_path / "bench.json").read_text())
    assert made["command"].endswith(f"--threads 1 3 --output {tmp_path}")
    numbers = [result["threads"] for result in made["results"]]
    assert numbers == [1, 1, 3, 3]
    assert {result["device"] for result in made["results"]} == {"CPU:0"}
    *_, forward, backward = capsys.readouterr().out.split("InqConv ")
    for table, (first, last) in (
        (forward, made["results"][::2]),
        (backward, made["results"][1::2]),
    ):
        assert table.startswith(first["direction"])
        ours = [each["methods"]["tf_capsops"]["median_us"] for each in (first, last)]
        rows = re.findall(r"^ +(\d+) +(\S+) .* (\d+\.\d\d) *$", table, re.MULTILINE)
        scaling = f"{ours[0] / ours[1]:.2f}"
        assert rows == [
            ("1", f"{ours[0]:.4g}", "1.00"),
            ("3", f"{ours[1]:.4g}", scaling),
        ]


def test_a_run_that_fails_says_so(used, tmp_path, monkeypatch, capsys):
    ended = types.SimpleNamespace(returncode=-9)
    process = types.SimpleNamespace(run=lambda command: ended)
    monkeypatch.setattr(threads, "subprocess", process)
    arguments = [*ARGUMENTS, "--threads", "1", "2", "--output", str(tmp_path)]
    assert main(["bench", *arguments]) == 2
    assert "bench with 1 threads ended with status -9" in capsys.readouterr().err


def test_threads_must_come_first():
    """TensorFlow has made its threads long before."""
    with pytest.raises(CommandError, match="--threads comes too late"):
        threads.use(3)


def test_threads_are_not_compared_with_another_run(tmp_path, capsys):
    arguments = ["--threads", "1", "2", "--against", str(tmp_path / "bench.json")]
    assert main(["bench", *arguments]) == 2
    assert "one number of --threads" in capsys.readouterr().err
