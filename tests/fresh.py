# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs Python code in a process of its own, with this tf_capsops."""

import os
import pathlib
import re
import signal
import subprocess
import sys

import tf_capsops

# The code of `tf-capsops`. A shell that starts tests in the background has them ignore
# Ctrl-C.
COMMAND = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from tf_capsops.__main__ import main; import sys; sys.exit(main(sys.argv[1:]))"
)
ROOT = pathlib.Path(tf_capsops.__file__).resolve().parents[1]


def code_of(page):
    """Returns the Python of a page, block after block."""
    blocks = re.findall(
        r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE
    )
    return "\n".join(blocks)


def start(code, *arguments, cwd=None, **environment):
    """Starts `code` in a fresh interpreter; `finish` waits for it."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def interrupt(process, text, group=False):
    """Presses Ctrl-C once the process has printed a line with `text`.

    Args:
      group: whether all processes of the group that it leads get it, as in a terminal.

    Returns:
      What it printed after that line; fails if Ctrl-C did not end it.
    """
    for line in process.stdout:
        if text in line:
            send = os.killpg if group else os.kill
            send(process.pid, signal.SIGINT)
            break
    printed, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    return printed


def finish(process):
    """Returns what the process printed; fails where it did."""
    printed, errors = process.communicate()
    assert process.returncode == 0, errors
    return printed


def run(code, *arguments, **options):
    """Runs `code` in a fresh interpreter and returns what it printed."""
    return finish(start(code, *arguments, **options))


def pass_on_older_processors(*arguments):
    """Runs tests, as pytest's `arguments` name them, on kernels of lower levels.

    The suite itself runs those of this processor's own level. Levels share the code
    that finds pixels, and differ in that for numbers.
    """
    processes = [
        start(
            "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))",
            *("-q", "-p", "no:cacheprovider", *arguments),
            cwd=ROOT / "tests" / "ops",
            TF_CAPSOPS_CPU_LEVEL=str(level),
            CUDA_VISIBLE_DEVICES="-1",
        )
        for level in (2, 3)
    ]
    for process in processes:
        printed, errors = process.communicate()
        assert process.returncode == 0, printed + errors
        assert " passed" in printed
        # conftest.py imports TensorFlow without its log lines.
        assert "All log messages before" not in errors
