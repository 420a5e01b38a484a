# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tests of CUDA kernels forced by name, which several ops share."""

import contextlib

import pytest
import tensorflow as tf
from descriptions import DTYPES, rounded_to_tf32
from gpus import has_wgmma

from tf_capsops import kernels

_FOUND = tf.config.list_physical_devices("GPU")
WITH_GPU = bool(_FOUND)


def runs_wgmma():
    """Tells whether the GPU that is there runs wgmma kernels of the library."""
    details = tf.config.experimental.get_device_details(_FOUND[0])
    major, minor = details["compute_capability"]
    return has_wgmma(10 * major + minor)


def runs(kernel, names, dtypes=DTYPES, float32=(False,)):
    """Yields a parameter (kernel, name, dtype, tf32) for each case and type.

    Float32 comes once for each of `float32`, which says whether TF32 is allowed.
    """
    for name in names:
        for dtype in dtypes:
            for tf32 in float32 if dtype == tf.float32 else (False,):
                tag = f"{kernel}-{name}-{dtype.name}{'-tf32' * tf32}"
                yield pytest.param(kernel, name, dtype, tf32, id=tag)


def assert_close(op, forced, case, dtype, tf32=False, gpu=None):
    """Asserts that forced kernels run, and are as exact as plain TensorFlow.

    Args:
        op: The op's description.
        forced: Kernels by op: all that output and gradients take.
        case: The case.
        dtype: Type of the tensors.
        tf32: Whether TF32 is allowed. The yardstick then gets rounded numbers, but for
            kernels called "fma", which round nothing.
        gpu: Properties of the GPU that is planned for, where another than is there.

    Returns:
        What `kernels.recorded` gives.
    """
    tensors = op.draw(case, dtype)
    planned = kernels.pretend_device(**gpu) if gpu else contextlib.nullcontext()
    rounded = tf32 and "fma" not in forced.values()
    with tf.device("GPU:0"):
        tf.config.experimental.enable_tensor_float_32_execution(tf32)
        with planned, kernels.force(**forced), kernels.recorded() as calls:
            results = op.ours(case, tensors)
        assert {name: kernel for name, kernel, _ in calls} == forced
        tf.config.experimental.enable_tensor_float_32_execution(rounded)
        yardstick = rounded_to_tf32(tensors) if rounded else None
        op.assert_close_to_reference(case, tensors, yardstick, results)
    return calls


def assert_refused(op, forced, kernel, name, dtype, why):
    """Asserts that the op `forced` says why a kernel cannot run the case `name`."""
    case = op.case(name)
    tensors = op.draw(case, dtype)
    with (
        tf.device("GPU:0"),
        kernels.pretend_device(capability=90),
        kernels.force(**{forced: kernel}),
        pytest.raises(tf.errors.InvalidArgumentError) as caught,
    ):
        op.ours(case, tensors)
    message = f"{forced}: TF_CAPSOPS_KERNEL asks for the kernel {kernel}, "
    assert f"{message}which cannot do this because {why}" in caught.value.message
