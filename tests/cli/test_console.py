# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Commands print what they have to say, and none of TensorFlow's log lines."""

import ctypes
import logging
import os
import runpy
import subprocess
import sys
import warnings

import fresh
import keras
import numpy as np
import pytest

from tf_capsops import _break, _console


def _errors(*command, **environment):
    """Returns what a command, in a user's environment, prints to stderr."""
    ours = {"TF_CPP_MIN_LOG_LEVEL", "PYTHONPATH"}
    inherited = {name: text for name, text in os.environ.items() if name not in ours}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env={**inherited, "PYTHONPATH": str(fresh.ROOT), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.ci
@pytest.mark.parametrize("data, model", [("few.npz", "capsnet"), ("few", "convnet")])
def test_module_prints_no_log_lines(data, model, tmp_path):
    """Not in a seeded training either, where TensorFlow changes the pipeline.

    `tf-capsops` is as quiet: test_endings asks which programs are commands.
    """
    images, labels = np.zeros([4, 8, 8], np.uint8), np.arange(4) % 2
    names = ("x_train", "y_train", "x_test", "y_test")
    np.savez(tmp_path / "few.npz", **dict(zip(names, 2 * [images, labels])))
    for number in range(6):  # of which batches have several sizes
        path = tmp_path / "few" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        keras.utils.save_img(path, np.zeros([8, 8, 3]), scale=False)
    command = ["train", "--data", tmp_path / data, "--model", model]
    command += ["--epochs", "2", "--seed", "1", "--output", tmp_path / "run"]
    command += ["--batch-size", "3"]
    assert _errors("-m", "tf_capsops", *command) == ""
    assert (tmp_path / "run" / "result.json").is_file()


@pytest.mark.parametrize("is_command", [True, False])
def test_warnings_of_commands_are_one_line(is_command, monkeypatch):
    monkeypatch.setattr(_break, "IS_COMMAND", is_command)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    runpy.run_path(_console.__file__)
    said = warnings.formatwarning("one\n  two", UserWarning, "file.py", 3)
    assert (said == "warning: one two\n") == is_command
    assert ("file.py" in said) == (not is_command)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    said = warnings.formatwarning("one", UserWarning, "file.py", 3)
    assert (said == "\r\033[Kwarning: one\n") == is_command  # over a progress bar


@pytest.mark.ci
def test_a_command_prints_warnings_in_one_line(tmp_path):
    images, labels = np.full([4, 8, 8], -1.0), np.arange(4) % 2
    names = ("x_train", "y_train", "x_test", "y_test")
    np.savez(tmp_path / "few.npz", **dict(zip(names, 2 * [images, labels])))
    command = ["train", "--data", tmp_path / "few.npz", "--epochs", "1"]
    errors = _errors("-m", "tf_capsops", *command, "--output", tmp_path / "run")
    assert errors.startswith("warning: CapsNet: the decoder draws values from 0 to 1,")
    assert errors.count("\n") == 1 and ".py" not in errors


@pytest.mark.parametrize(
    "is_command, level, quiet",
    [
        (True, None, True),
        (True, "2", True),
        (True, "1", False),
        (True, "0", False),
        (False, None, False),
    ],
)
def test_log_lines_that_are_asked_for_are_printed(
    is_command, level, quiet, monkeypatch
):
    """And those of other programs: only a quiet command changes absl's level."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", str(level))
    if level is None:
        monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    monkeypatch.setattr(_break, "IS_COMMAND", is_command)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    changed, loggers = [], [*map(logging.getLogger, ("tensorflow", "absl"))]
    monkeypatch.setattr(ctypes, "CDLL", changed.append)
    before = [logger.level for logger in loggers]
    try:
        runpy.run_path(_console.__file__)
        assert bool(changed) == quiet
        for logger in loggers:
            assert (logger.level == logging.ERROR) == quiet
    finally:
        for logger, level in zip(loggers, before):
            logger.setLevel(level)


@pytest.mark.slow
def test_other_programs_print_what_they_did():
    assert "absl::InitializeLog" in _errors("-c", "import tf_capsops")


def test_what_is_no_log_line_is_printed(capfd):
    lines = (
        b"WARNING: All log messages before absl::InitializeLog() is called are\n"
        b"I0000 00:00:1795320863.520833    2406 port.cc:153] oneDNN is on.\n"
        b"Warning: this is for people\n"
    )
    with _console.without_log_lines():
        os.write(2, lines)
    assert capfd.readouterr().err == "Warning: this is for people\n"
