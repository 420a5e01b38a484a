# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ways to call an op: eagerly, in a graph, and compiled by XLA with `pytest --jit`."""

import functools
import os

import pytest
import tensorflow as tf

_JIT = "TF_CAPSOPS_TESTS_JIT"  # so that processes which a test starts know it too


def compile_with_xla():
    """Switches XLA on for all that is called through this module."""
    os.environ[_JIT] = "1"


def compiled():
    """Tells whether XLA is switched on."""
    return _JIT in os.environ


def traced(compute, signature=None):
    """Returns the function's graph, which XLA compiles where it is switched on."""
    return tf.function(compute, signature, autograph=False, jit_compile=compiled())


def switched(compute):
    """Returns the function itself, or compiled where XLA is switched on.

    Positional arguments that are tensors or arrays are the compiled function's inputs;
    all else is a part of it.
    """
    return traced(compute) if compiled() else compute


def call(compute, *arguments, **attributes):
    """Calls a `switched` function once."""
    return switched(functools.partial(compute, **attributes))(*arguments)


both_ways = pytest.mark.parametrize(
    "way", [lambda compute: compute, traced], ids=["eager", "graph"]
)
