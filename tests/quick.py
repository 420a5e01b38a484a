# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Commands without what takes them long, where a test is about something else."""

import contextlib
import pathlib

import pytest
import tensorflow as tf

from tf_capsops.cli import canvas


@contextlib.contextmanager
def eager():
    """Runs functions eagerly: tracing takes seconds, and a few steps do not."""
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


@contextlib.contextmanager
def undrawn():
    """Composes pictures and writes empty files: drawing one takes up to a second."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(canvas, "save", lambda figure, path: pathlib.Path(path).touch())
        yield
