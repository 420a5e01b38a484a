# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Imports TensorFlow quietly if the process is a command, and shortens warnings.

It leaves out log lines: nobody who runs `tf-capsops` can do anything about oneDNN's
rounding, a missing driver or a function that is traced again. If the environment sets
`TF_CPP_MIN_LOG_LEVEL` to 0 or 1, all lines appear, and if it sets 2, errors do. The
package imports this module before TensorFlow.
"""

import contextlib
import ctypes
import logging
import os
import pathlib
import re
import sys
import tempfile
import warnings

from tf_capsops import _break

# A line of log, the warning before the first one, the second line of a long one, and
# messages about broken pictures from their decoders.
_LOG = re.compile(
    rb"[IWE]\d{4} |WARNING: All log messages before absl::|To enable the following"
    rb"|Improper call to JPEG|Unsupported color conv|Corrupt JPEG|Premature end of JPEG"
    rb"|libpng "
)
_FATAL = 3  # the level of the least severe lines that are shown
# absl::SetMinLogLevel. TensorFlow has no Python function for the level of absl's log,
# and its library exports this one only by its C++ name, which the compiler has mangled
# together with the date of absl's release. If another TensorFlow has another name for
# it, the lines appear again.
_SET_MIN_LOG_LEVEL = "_ZN4absl12lts_2025081414SetMinLogLevelENS0_18LogSeverityAtLeastE"


@contextlib.contextmanager
def without_log_lines():
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


def _import_quietly(level=_FATAL):
    # Not all of TensorFlow heeds the variable: some lines come while its libraries load
    # and look for a GPU, others from code whose level only a function of absl sets.
    with without_log_lines():
        import tensorflow as tf

        tf.config.list_physical_devices()
    library = pathlib.Path(tf.__file__).with_name("libtensorflow_cc.so.2")
    with contextlib.suppress(OSError, AttributeError):
        getattr(ctypes.CDLL(str(library)), _SET_MIN_LOG_LEVEL)(level)


def _format_warning(message, *_):
    """Returns a warning as commands print theirs, without the line of its source.

    On a terminal, it replaces a progress bar on the same line.
    """
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    clear = "\r\033[K" if on_terminal else ""
    return f"{clear}warning: {' '.join(str(message).split())}\n"


if _break.IS_COMMAND:
    warnings.formatwarning = _format_warning
    level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", str(_FATAL))
    if level not in ("0", "1"):
        _import_quietly(2 if level == "2" else _FATAL)
        # TensorFlow's warnings of functions that are traced again, and Keras' of what
        # an .h5 file lacks for training.
        for name in ("tensorflow", "absl"):
            logging.getLogger(name).setLevel(logging.ERROR)
