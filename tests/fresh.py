# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs Python code in a process of its own, which imports this tf_capsops itself."""

import multiprocessing
import os
import pathlib
import re
import signal
import sys
import tempfile
import types

# The code of `tf-capsops`. A shell that starts tests in the background has them ignore
# Ctrl-C.
COMMAND = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from tf_capsops.__main__ import main; import sys; sys.exit(main(sys.argv[1:]))"
)
# Goes before a command whose pictures no test looks at: drawing takes up to a second.
UNDRAWN = """
from tf_capsops.cli import canvas
canvas.save = lambda figure, path: open(path, "w").close()
"""
ROOT = pathlib.Path(__file__).resolve().parents[1]


def code_of(page):
    """Returns the Python of a page, block after block."""
    blocks = re.findall(
        r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE
    )
    return "\n".join(blocks)


class Process:
    """A process that runs Python code, with what tests use of `subprocess.Popen`.

    Importing TensorFlow takes seconds. So a server imports it once, and each process is
    a fork of that server, which has imported nothing else and has used no device.

    Attributes:
        pid: Its number.
        stdout: What it prints, as a text file.
        returncode: Its exit code, once `communicate` has returned.
    """

    def __init__(self, code, arguments, cwd, environment):
        output, theirs = multiprocessing.Pipe(duplex=False)
        self.stdout = os.fdopen(os.dup(output.fileno()))
        output.close()
        self._errors = tempfile.NamedTemporaryFile("r")  # noqa: SIM115
        self._process = _FORKS.Process(
            target=_run_code,
            args=(code, arguments, cwd, environment, theirs, self._errors.name),
        )
        self._process.start()
        theirs.close()
        self.pid, self.returncode = self._process.pid, None

    def communicate(self):
        """Waits for its end; returns what it printed, and what it printed as errors."""
        printed = self.stdout.read()
        self._process.join()
        self.returncode = self._process.exitcode
        return printed, self._errors.read()

    def poll(self):
        """Returns its exit code, or None while it runs."""
        return self._process.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def terminate(self):
        self._process.terminate()

    def kill(self):
        self._process.kill()


def _run_code(code, arguments, cwd, environment, output, errors):
    assert "preloaded" in sys.modules
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(output.fileno(), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    os.chdir(cwd or ".")
    sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.argv = ["-c", *arguments]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(code, "<string>", "exec"), vars(main))


# The server finds what it imports by this variable.
_TESTS = str(ROOT / "tests")
os.environ["PYTHONPATH"] = os.pathsep.join([_TESTS, os.environ.get("PYTHONPATH", "")])
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["preloaded"])


def start(code, *arguments, cwd=None, **environment):
    """Starts a `Process` that runs `code`; `finish` waits for it."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, **environment}
    return Process(code, [*map(str, arguments)], cwd, environment)


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
    pass_on_levels((2, 3), *arguments)


def pass_on_levels(levels, *arguments):
    """Runs tests on kernels of each of these levels of the x86-64 psABI."""
    processes = [
        start(
            "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))",
            *("-q", "-p", "no:cacheprovider", *arguments),
            cwd=ROOT / "tests" / "ops",
            TF_CAPSOPS_CPU_LEVEL=str(level),
            CUDA_VISIBLE_DEVICES="-1",
        )
        for level in levels
    ]
    for process in processes:
        assert " passed" in finish(process)
