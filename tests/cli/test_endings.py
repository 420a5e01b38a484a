# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Without a reader of their output, and by Ctrl-C, commands end without a traceback."""

import os
import signal
import subprocess
import sys

import fresh
import pytest

from tf_capsops import _break
from tf_capsops.__main__ import main
from tf_capsops.cli import info
from tf_capsops.errors import reported


def _without_a_reader(arguments, monkeypatch):
    """Returns the status of a command whose output goes to a pipe that is closed."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:  # which is flushed, as at Python's end
        monkeypatch.setattr(sys, "stdout", output)
        return main(arguments)


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["train", "--help"]])
def test_output_that_waits_in_a_buffer(monkeypatch, capfd, arguments):
    assert _without_a_reader(arguments, monkeypatch) == 141
    assert capfd.readouterr().err == ""


def test_output_of_many_lines(monkeypatch, capfd):
    def run(args):
        with reported(OSError):
            for _ in range(10_000):
                print("a line")

    monkeypatch.setattr(info, "run", run)
    assert _without_a_reader(["info"], monkeypatch) == 141
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("arguments", [["--help"], ["info"], []])
def test_output_to_a_full_disk(monkeypatch, capfd, arguments):
    with open("/dev/full", "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert main(arguments) == 2
    name = arguments[0] if arguments else "--help"
    text = f"tf-capsops {name}: error: No space left on device\n"
    assert capfd.readouterr().err == text


@pytest.mark.parametrize(
    "argv, original, ours",
    [
        (["/usr/bin/tf-capsops", "info"], ["python", "/usr/bin/tf-capsops"], True),
        (["-m", "info"], ["python", "-m", "tf_capsops", "info"], True),
        (["-m", "tf_capsops"], ["python", "-m", "mine", "tf_capsops"], False),
        (["mine.py", "tf_capsops"], ["python", "mine.py", "tf_capsops"], False),
        (["-c"], ["python", "-c", "import tf_capsops"], False),
    ],
)
def test_programs_of_others_are_no_commands(argv, original, ours, monkeypatch):
    """`import tf_capsops` registers the ops at once in all of them."""
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", original)
    assert _break._is_command() == ours


def test_ctrl_c_during_imports(tmp_path):
    script = tmp_path / "tf-capsops"
    script.write_text(fresh.COMMAND)
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", script, "info"],
        env={
            **os.environ,
            **{"PYTHONPATH": str(fresh.ROOT), "TF_CPP_MIN_LOG_LEVEL": "0"},
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stderr:
        if line.endswith(" numpy\n"):  # TensorFlow's first imports are done
            break
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate()
    assert process.returncode == 130
    assert printed == "" and "Traceback" not in errors


def test_ctrl_c_is_a_keyboard_interrupt_once_a_command_runs(monkeypatch):
    before = signal.signal(signal.SIGINT, _break._end)
    try:
        assert main(["info"]) == 0
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        # Somebody else's handler stays, or none as under nohup.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert main(["info"]) == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
