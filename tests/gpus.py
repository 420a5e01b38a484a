# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""GPUs that planning is told of, and what it plans for them on a CPU."""

import tensorflow as tf

from tf_capsops import _library, kernels

# By compute capability, as `kernels.pretend_device` takes them.
GPUS = {
    80: {"processors": 108, "shared": 166912, "processor_shared": 167936},
    86: {"processors": 84, "shared": 101376, "processor_shared": 102400},
    90: {"processors": 132, "shared": 232448, "processor_shared": 233472},
    100: {"processors": 148, "shared": 232448, "processor_shared": 233472},
    120: {"processors": 170, "shared": 101376, "processor_shared": 102400},
}


def has_wgmma(capability):
    """Tells whether the library has wgmma kernels for a GPU, which only 9.0 can run."""
    built_for = _library.build_info()["cuda_archs"]
    return capability == 90 and "90" in built_for.split()


def planned(capability, compute):
    """Returns the kernels by op that a GPU would run, of what a CPU computes."""
    with (
        tf.device("CPU"),
        kernels.pretend_device(capability=capability, **GPUS[capability]),
        kernels.recorded() as calls,
    ):
        compute()
    return {
        op.removesuffix("@GPU"): kernel
        for op, kernel, _ in calls
        if op.endswith("@GPU")
    }
