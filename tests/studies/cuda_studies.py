# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tests of other papers' kernels run: those with CUDA, and those with a GPU."""

import pytest
import tensorflow as tf

from tf_capsops import _library

GPUS = [f"GPU:{i}" for i, _ in enumerate(tf.config.list_logical_devices("GPU"))]

on_gpus = pytest.mark.parametrize("gpu", GPUS)
with_library = pytest.mark.skipif(
    not _library.build_info()["cuda"], reason="built without CUDA"
)
