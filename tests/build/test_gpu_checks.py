# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""tests/sanitizers/gpu_checks.py, on made-up programs: there need be no GPU."""

import os
import subprocess
import sys

import fresh
import pytest

_SCRIPT = fresh.ROOT / "tests" / "sanitizers" / "gpu_checks.py"
_DRIVER = """#!/bin/sh
echo "$*" >>{log}
printf 'path\\tAnOp\\tfloat32\\tfma\\t3\\t0\\t5\\t1\\t%d\\t0.5\\n' {faults}
printf 'kernel\\t1\\tAKernel<float>(int)\\nkernel\\t0\\tAKernel<double>(int)\\n'
"""
_RACE = "========= Error: Race reported between Write access at {0} and Read access\n"
_SANITIZER = """#!/bin/sh
cat <<END
========= COMPUTE-SANITIZER
{reports}========= RACECHECK SUMMARY: 9 hazards displayed ({errors} errors, 0 warnings)
END
"""


@pytest.fixture
def checks(tmp_path):
    """Returns what runs the script: exit code, output, and calls of the driver."""
    log = tmp_path / "log"

    def run(*arguments, faults=0, races=()):
        reports = "".join(_RACE.format(place) + "========= \n" for place in races)
        for name, text in (
            ("driver", _DRIVER.format(log=log, faults=faults)),
            (
                "compute-sanitizer",
                _SANITIZER.format(reports=reports, errors=len(races)),
            ),
        ):
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        log.write_text("")
        out = tmp_path / "out"
        command = [
            sys.executable,
            _SCRIPT,
            tmp_path / "driver",
            "--out",
            out,
            *arguments,
        ]
        path = f"{tmp_path}:{os.environ['PATH']}"
        result = subprocess.run(
            command, env={**os.environ, "PATH": path}, capture_output=True, text=True
        )
        return result.returncode, result.stdout, log.read_text().splitlines()

    return run


def test_finished_shares_are_not_run_again(checks):
    code, _, calls = checks("--tools", "values", "--shard", "1/4")
    assert (code, len(calls)) == (0, 1)
    assert "shard=1 shards=4" in calls[0]
    code, output, calls = checks("--tools", "values", "--shards", "4")
    assert (code, len(calls)) == (0, 3)
    assert "1 of 1 paths ran, 1 of 2 kernels" in output
    assert checks("--tools", "values", "--shards", "4")[2] == []


def test_another_program_is_run_anew(checks):
    checks("--tools", "values", "--shards", "2")
    code, _, calls = checks("--tools", "values", "--shards", "2", faults=3)
    assert (code, len(calls)) == (1, 2)


def test_the_outcomes_of_one_op_are_its_own(checks):
    arguments = "--tools", "values", "--shards", "1"
    assert checks(*arguments)[0] == 0
    one = *arguments, "--op", "AnOp"
    assert checks(*one, "--seconds", "-1")[0] == 2
    code, output, calls = checks(*one)
    assert (code, len(calls)) == (0, 1)
    assert "op=AnOp" in calls[0]
    assert "1 of 1 paths ran, 1 kernels;" in output
    assert checks(*arguments)[2] == []


def test_outcomes_of_another_program_do_not_count(checks):
    arguments = "--tools", "values", "--shards", "1"
    checks(*arguments)
    assert checks(*arguments, "--seconds", "-1", faults=3)[0] == 2


def test_shares_without_time_are_missing(checks):
    code, output, calls = checks("--tools", "hunt", "--shards", "2", "--seconds", "-1")
    assert (code, calls) == (2, [])
    assert "2 shares are missing" in output


@pytest.mark.parametrize("place, code", [("StorePartial", 0), ("Elsewhere", 1)])
def test_known_reports_are_no_findings(place, code, checks):
    races = [f"void capsops::capsule_routing::mma::{place}<(int)16>()"]
    assert checks("--tools", "racecheck", "--shards", "1", races=races)[0] == code
