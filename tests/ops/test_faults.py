# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Results that no memory can hold are errors, and so are launches that fail.

The process goes on. `tests/sanitizers/launchers.cc` takes memory from the working space
of CPU kernels. Launches fail where the library is that of `make coverage`.
"""

import functools
import pathlib
import re

import descriptions
import numpy as np
import pytest
import tensorflow as tf

import tf_capsops
from tf_capsops import kernels
from tf_capsops.bench import cases

_FAULT = "TF_CAPSOPS_FAULT"
_LIBRARY = pathlib.Path(tf_capsops.library_path()).read_bytes()
_MANY, _ROOT = 2**24, 2**12


def _zeros(*shape, dtype=tf.float32):
    return tf.zeros(shape, dtype)


def _results_of(op, jit_compile=False):
    case = op.suite.select(cases.GRADIENT)[0]
    compute = functools.partial(op.results, case.bind(op.suite.ours))
    if jit_compile:
        compute = tf.function(compute, autograph=False, jit_compile=True)
    return compute(*op.draw(case, tf.float32))


def _assert_same(before, after):
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow  # TensorFlow waits ten seconds for memory to come free
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
            "CapsuleConvRouting",
            lambda: tf_capsops.capsule_conv_routing(
                _zeros(_MANY, 1, 1, 1), _zeros(1, 1, _ROOT, _ROOT)
            ),
            "[16777216,1,1,1], [1,1,4096,4096], [4096,4096], [1,4096]",
        ),
        (
            "InqConv",
            lambda: tf_capsops.inq_conv2d(
                _zeros(_MANY, 1, 1, 1), _zeros(1, 1, 1, _MANY, dtype=tf.uint8), 0
            ),
            "[16777216,1,1,1], [1,1,1,16777216], []",
        ),
    ],
    ids=["prediction", "routing", "capsule_conv", "conv_routing", "inq_conv"],
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
        _assert_same(one, other)


def test_more_elements_than_can_be_counted_name_op_and_shapes(device):
    """TensorFlow counts those of a shape with a 0 as if it were 1."""
    weights = tf.zeros(tf.constant([1, 2**62, 0, 1], tf.int64))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        tf_capsops.capsule_prediction(tf.zeros((2, 1, 1)), weights)
    text = f"CapsulePrediction of inputs [2,1,1], [1,{2**62},0,1]: "
    assert text in caught.value.message


@pytest.mark.parametrize("size", [2**62 - 1, 2**62 - 2, 2**61])
def test_more_bytes_than_can_be_counted_are_an_error(size, device):
    """TensorFlow's allocators crash where rounding up the bytes overflows."""
    poses = tf.zeros(tf.constant([1, size, 1, 0, 1, 1], tf.int64))
    weights = tf.zeros([1, 1, 0, 1, 1, 1])
    with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        tf_capsops.capsule_moments(poses, None, weights)
    text = f"CapsuleMoments of inputs [1,{size},1,0,1,1], [0], [1,1,0,1,1,1]"
    assert text in caught.value.message
    assert (
        f"OOM when allocating tensor with shape[1,{size},1,1]" in caught.value.message
    )


if _FAULT.encode() in _LIBRARY:

    @pytest.mark.parametrize("jit_compile", [False, True])
    @pytest.mark.parametrize("op", descriptions.every(), ids=lambda op: op.name)
    def test_a_failed_launch_names_op_and_shapes(op, jit_compile, device, monkeypatch):
        """Of output and gradients, one after the other."""
        with kernels.recorded() as calls:
            before = _results_of(op, jit_compile)
        assert len(calls) > 1
        for name, kernel, _ in calls:
            monkeypatch.setenv(_FAULT, f"launch {name} {kernel}")
            with pytest.raises(tf.errors.InternalError) as caught:
                _results_of(op, jit_compile)
            monkeypatch.delenv(_FAULT)
            why = r"launch failed on purpose|CUDA launch failed: invalid \w+ argument"
            text = rf"{name}\w* of inputs (\[[\d,]*\](, )?){{2,}}: {name}: ({why})"
            assert re.search(text, caught.value.message)
            _assert_same(before, _results_of(op, jit_compile))
