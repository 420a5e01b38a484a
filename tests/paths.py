# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tests of CUDA kernels forced by name, which several ops share."""

import contextlib
import dataclasses
import functools

import frames
import pytest
import tensorflow as tf
from descriptions import DTYPES, rounded_to_tf32
from gpus import GPUS, has_wgmma

from tf_capsops import kernels

_FOUND = tf.config.list_physical_devices("GPU")
WITH_GPU = bool(_FOUND)


def capability():
    """Returns the compute capability of the GPU that is there, such as 90."""
    details = tf.config.experimental.get_device_details(_FOUND[0])
    major, minor = details["compute_capability"]
    return 10 * major + minor


def runs_wgmma():
    """Tells whether the GPU that is there runs wgmma kernels of the library."""
    return has_wgmma(capability())


@dataclasses.dataclass(frozen=True)
class Run:
    """One case on forced kernels.

    Attributes:
        forced: Kernels by op: all that output and gradients take.
        name: Name of the case.
        dtype: Type of the tensors.
        tf32: Whether TF32 is allowed. The yardstick then gets rounded numbers, but for
            kernels called "fma", which round nothing.
        capability: Of the GPU that is planned for, where another than is there.
    """

    forced: dict
    name: str
    dtype: tf.DType
    tf32: bool
    capability: int | None = None

    def __str__(self):
        """The kernels, each once, and what else tells runs apart."""
        parts = *dict.fromkeys(self.forced.values()), self.name, self.dtype.name
        planned = f"planned_for_{self.capability}" if self.capability else ""
        return "-".join(filter(None, (*parts, "tf32" * self.tf32, planned)))


every = functools.partial(pytest.mark.parametrize, "run", ids=str)


def runs(forced, names, dtypes=DTYPES, float32=(False,)):
    """Returns a run for each case and type.

    Float32 comes once for each of `float32`, which says whether TF32 is allowed.
    """
    return [
        Run(forced, name, dtype, tf32)
        for name in names
        for dtype in dtypes
        for tf32 in (float32 if dtype == tf.float32 else (False,))
    ]


def planned_for_others(runs, capabilities=(80, 86)):
    """Returns runs as other GPUs plan them.

    Their planning differs by shared memory; launches of 8.x do not overlap.
    """
    return [
        dataclasses.replace(run, capability=capability)
        for capability in capabilities
        for run in runs
    ]


@contextlib.contextmanager
def running(run):
    """Asserts that what is called within takes all forced kernels and no others.

    Yields what `kernels.recorded` gives.
    """
    planned = contextlib.nullcontext()
    if capability := run.capability:
        planned = kernels.pretend_device(capability=capability, **GPUS[capability])
    tf.config.experimental.enable_tensor_float_32_execution(run.tf32)
    with (
        tf.device("GPU:0"),
        planned,
        kernels.force(**run.forced),
        kernels.recorded() as calls,
    ):
        yield calls
    tf.config.experimental.enable_tensor_float_32_execution(False)
    found = {name: kernel for name, kernel, _ in calls}
    if frames.compiled() and run.name.startswith(("empty", "no_")):
        # XLA leaves out calls whose results are empty.
        assert found.items() <= run.forced.items()
    else:
        assert found == run.forced


def assert_close(op, run):
    """Asserts that forced kernels run, and are as exact as plain TensorFlow.

    Args:
        op: The op's description.
        run: What to run.

    Returns:
        What `kernels.recorded` gives.
    """
    case = op.case(run.name)
    tensors = op.draw(case, run.dtype)
    with running(run) as calls:
        results = op.ours(case, tensors)
    rounded = run.tf32 and "fma" not in run.forced.values()
    tf.config.experimental.enable_tensor_float_32_execution(rounded)
    with tf.device("GPU:0"):
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
