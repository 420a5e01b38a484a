# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of the ops against plain TensorFlow, and the cases shared with the tests.

`main` is `tf-capsops bench`. No other part of the package imports this one.
"""

from tf_capsops.bench.command import main

__all__ = ["main"]
