# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Imports TensorFlow quietly, where the process is a command of ours.

It leaves out log lines: nobody who runs `tf-capsops` can do anything about oneDNN's
rounding or a driver that is not there. A `TF_CPP_MIN_LOG_LEVEL` of 0 or 1 in the
environment brings them back. Until the imports are done, Ctrl-C ends the process at
once. To come before TensorFlow, the package imports this module first.
"""

import contextlib
import ctypes
import os
import pathlib
import re
import signal
import sys
import tempfile

from tf_capsops.cli.errors import INTERRUPTED

# A line of log, the warning before the first one, and the second line of a long one.
_LOG = re.compile(
    rb"[IWE]\d{4} |WARNING: All log messages before absl::|To enable the following"
)
_ERROR = 2  # the least severe line that is shown
# absl::SetMinLogLevel. TensorFlow has no Python function for the level of absl's log,
# and its library exports this one only by its C++ name, which the compiler has mangled
# together with the date of absl's release. If another TensorFlow has another name for
# it, the lines appear again.
_SET_MIN_LOG_LEVEL = "_ZN4absl12lts_2025081414SetMinLogLevelENS0_18LogSeverityAtLeastE"


def _is_command():
    program = pathlib.Path((sys.argv or [""])[0]).name
    # While Python looks for the module that -m names, argv has "-m" in its place.
    return program == "tf-capsops" or (
        program == "-m" and "tf_capsops" in sys.orig_argv
    )


@contextlib.contextmanager
def _without_log_lines():
    """Holds back what is written to stderr, and then writes all but lines of log."""
    if sys.stderr is None:  # closed
        yield
        return
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            for line in held:
                if not _LOG.match(line):
                    os.write(2, line)


def _import_quietly():
    # Not all of TensorFlow heeds the variable: some lines come while its libraries load
    # and look for a GPU, others from code whose level only a function of absl sets.
    with _without_log_lines():
        import tensorflow as tf

        tf.config.list_physical_devices()
    library = pathlib.Path(tf.__file__).with_name("libtensorflow_cc.so.2")
    with contextlib.suppress(OSError, AttributeError):
        getattr(ctypes.CDLL(str(library)), _SET_MIN_LOG_LEVEL)(_ERROR)


def _end(number, frame):
    os._exit(INTERRUPTED)


def imports_are_done():
    """Makes Ctrl-C a KeyboardInterrupt again, which commands handle."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if _is_command():
    # A KeyboardInterrupt would end in a traceback, or be lost in a library's import.
    # Somebody else's handler, or none as under nohup, stays.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", str(_ERROR))
    if level not in ("0", "1"):
        _import_quietly()
