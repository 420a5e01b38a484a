# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Lets Ctrl-C end a command at once during its imports, which take seconds.

A KeyboardInterrupt would end in a traceback there, or be lost in a library's import.
The package imports this module before all others, and it imports next to nothing.
"""

import os
import signal
import sys


def _is_command():
    program = os.path.basename((sys.argv or [""])[0])
    if program != "-m":
        return program == "tf-capsops"
    # While Python looks for the module that -m names, argv[0] is "-m".
    return ("-m", "tf_capsops") in zip(sys.orig_argv, sys.orig_argv[1:])


# Whether the process is `tf-capsops` or `python -m tf_capsops`.
IS_COMMAND = _is_command()


def _end(number, frame):
    os._exit(130)  # as after any Ctrl-C: `errors.INTERRUPTED`


def imports_are_done():
    """Makes Ctrl-C a KeyboardInterrupt again, which commands handle."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# Any other handler stays, and so does SIGINT that the parent has ignored.
if IS_COMMAND and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)
