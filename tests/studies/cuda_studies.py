# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Decorators that leave out tests without the studies' library, or without a GPU.

`make studies` builds the library. pytest collects no None, so that a test that cannot
run here is left out, not skipped.
"""

import pytest
import tensorflow as tf

from benchmarks.papers import studies

GPUS = [f"GPU:{i}" for i, _ in enumerate(tf.config.list_logical_devices("GPU"))]


def _built():
    try:
        return bool(studies.library_path())
    except ImportError:
        return False


def with_library(test):
    return test if _built() else None


def on_gpus(test):
    """Gives a test every `gpu`."""
    each = pytest.mark.parametrize("gpu", GPUS)
    return each(test) if _built() and GPUS else None
