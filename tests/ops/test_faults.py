# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Results that no memory can hold are errors, and the process goes on.

`tests/sanitizers/launchers.cc` does the same to the working space of CPU kernels.
"""

import descriptions
import numpy as np
import pytest
import tensorflow as tf

import tf_capsops
from tf_capsops.bench import cases

_MANY, _ROOT = 2**24, 2**12


def _zeros(*shape, dtype=tf.float32):
    return tf.zeros(shape, dtype)


def _results_of(op):
    case = op.suite.select(cases.GRADIENT)[0]
    return op.results(case.bind(op.suite.ours), *op.draw(case, tf.float32))


@pytest.mark.parametrize(
    "name, compute, shapes",
    [
        (
            "CapsulePrediction",
            lambda: tf_capsops.capsule_prediction(
                _zeros(_MANY, 1, 1), _zeros(1, _ROOT, _ROOT, 1)
            ),
            "[16777216,1,1], [1,4096,4096,1]",
        ),
        (
            "CapsuleRoutingWithSums",
            lambda: tf_capsops.capsule_routing(
                _zeros(_MANY, 1, 1), _zeros(1, _ROOT, _ROOT, 1), iterations=1
            ),
            "[16777216,1,1], [1,4096,4096,1], [1,4096]",
        ),
        (
            "CapsuleConv",
            lambda: tf_capsops.capsule_conv2d(
                _zeros(_MANY, 1, 1, 1, 1, 1), _zeros(1, 1, 1, _MANY, 1, 1)
            ),
            "[16777216,1,1,1,1,1], [1,1,1,16777216,1,1]",
        ),
        (
            "InqConv",
            lambda: tf_capsops.inq_conv2d(
                _zeros(_MANY, 1, 1, 1), _zeros(1, 1, 1, _MANY, dtype=tf.uint8), 0
            ),
            "[16777216,1,1,1], [1,1,1,16777216], []",
        ),
    ],
    ids=["prediction", "routing", "capsule_conv", "inq_conv"],
)
def test_too_large_a_result_names_op_and_shapes(name, compute, shapes):
    """2^50 bytes on a CPU; HighOrderConv's results are no larger than its inputs."""
    with tf.device("CPU:0"):
        before = [_results_of(op) for op in descriptions.every()]
        with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
            compute()
        after = [_results_of(op) for op in descriptions.every()]
    assert f"{name} of inputs {shapes}: " in caught.value.message
    for one, other in zip(before, after):
        for first, second in zip(one, other, strict=True):
            np.testing.assert_array_equal(first, second)
