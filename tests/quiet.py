# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keeps what TensorFlow logs while it is imported out of the output of pytest."""

import contextlib
import os


@contextlib.contextmanager
def no_stderr():
    """Discards what is written to stderr, unless TF_CPP_MIN_LOG_LEVEL is 0 or 1."""
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") in ("0", "1"):
        yield
        return
    stderr = os.dup(2)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
