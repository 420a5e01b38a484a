# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ops called by eight threads, on any number of threads, and on older processors."""

import functools
import importlib

import descriptions
import fresh
import pytest
import robustness
import tensorflow as tf
from frames import both_ways

from tf_capsops.bench import cases

# The tests that also run on kernels of older processors: what pytest's -k says beside
# the op, and files next to test_every_op.
_CHOSEN = {
    "capsule_conv": (
        "accumulate or values and (primes or channels or pose or long or row)",
    ),
    "capsule_conv_routing": ("values",),
    "capsule_moments": ("values and not given",),
    "capsule_prediction": ("capsule_prediction", "test_capsule_prediction.py"),
    "capsule_routing": (
        "(values or coefficients) and not many",
        "test_capsule_routing.py",
    ),
    "high_order_conv": ("accumulate or values and not grid and not tiles",),
    "inq_conv": (
        "every_code or values and (primes or channels or bits or long)",
        "test_inq_conv.py",
    ),
}
every_op = pytest.mark.parametrize("op", [op.name for op in descriptions.every()])


@both_ways
def test_eight_threads_get_what_each_gets_alone(way):
    """On a CPU; each op has such a test of its own on every device."""
    calls = []
    for op in descriptions.every():
        case = op.suite.select(cases.GRADIENT)[0]
        compute = functools.partial(op.results, case.bind(op.suite.ours))
        calls.append((way(compute), *op.draw(case, tf.float32)))
    # There are fewer ops than threads, so that some run at the same time as themselves.
    robustness.same_at_the_same_time(
        lambda compute, *tensors: compute(*tensors), (2 * calls)[:8], "CPU:0", times=50
    )


@pytest.mark.slow
@every_op
def test_threads_do_not_change_the_bits(op):
    calls = importlib.import_module(f"test_{op}_robust").of_several_sizes
    robustness.threads_do_not_change_the_bits(calls)


@pytest.mark.slow
@every_op
def test_kernels_of_older_processors(op):
    chosen, *files = _CHOSEN[op]
    fresh.pass_on_older_processors(
        *("test_every_op.py", *files, "-k", f"{op} and ({chosen})")
    )
