# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""GPUs that planning is told of, and what it plans for them on a CPU."""

import tensorflow as tf

from tf_capsops import _library, kernels
from tf_capsops.kernels import GPUS


def has_wgmma(capability):
    """Tells whether the library has wgmma kernels for a GPU, which only 9.0 can run."""
    built_for = _library.build_info()["cuda_archs"]
    return capability == 90 and "90" in built_for.split()


def plans(capability, compute, **changes):
    """Returns (kernel, workspace) by op, as a GPU would run what a CPU computes.

    Args:
        capability: Compute capability of the GPU.
        compute: Calls the ops.
        **changes: What is other than in GPUS.
    """
    with (
        tf.device("CPU"),
        kernels.pretend_device(capability=capability, **GPUS[capability] | changes),
        kernels.recorded() as calls,
    ):
        compute()
    return {
        op.removesuffix("@GPU"): (kernel, workspace)
        for op, kernel, workspace in calls
        if op.endswith("@GPU")
    }


def planned(capability, compute, **changes):
    """Returns the kernels alone, by op."""
    found = plans(capability, compute, **changes)
    return {op: kernel for op, (kernel, _) in found.items()}


def assert_planned(capability, ops, plan, compute):
    """Asserts which kernels a GPU would run.

    Args:
        capability: Compute capability of the GPU.
        ops: The ops, in the order in which kernels are named.
        plan: The types, whether TF32 is allowed, further arguments of `compute`, and
            the kernels where there is wgmma and elsewhere; None for the same.
        compute: Calls the ops, given a type and the further arguments.
    """
    dtypes, tf32, *arguments, wgmma, others = plan
    expected = wgmma if has_wgmma(capability) else others or wgmma
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    for dtype in dtypes:
        found = planned(capability, lambda d=dtype: compute(d, *arguments))
        assert found == dict(zip(ops, expected.split(), strict=True)), dtype
