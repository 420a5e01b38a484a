# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Eight Python threads call the same and different ops, with their gradients."""

import functools

import descriptions
import robustness
import tensorflow as tf
from frames import both_ways

from tf_capsops.bench import cases


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
