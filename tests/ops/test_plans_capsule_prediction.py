# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The kernels that CapsulePrediction would run on GPUs, planned on a CPU."""

import numpy as np
import pytest
import tensorflow as tf
from descriptions.capsule_prediction import OP
from gpus import GPUS, plans

import tf_capsops
from tf_capsops import _library

# The kernels forward and backward, the dtype, and batch, in_caps, out_caps, out_dim and
# in_dim. A block of the backward kernel has at most 8 warps: side by side for 32 V
# columns each and 8 of in_dim, where V is 5, or 2 in float64.
PLANS = [
    ("fma", "fma", tf.float32, (2, 3, 10, 16, 8)),
    ("fma", "fma", tf.float16, (1, 1, 1, 1, 1)),
    ("fma", "fma", tf.float32, (2, 3, 2, 3, 32)),
    ("gemm", "fma", tf.float32, (2, 3, 2, 3, 33)),
    ("gemm", "fma", tf.bfloat16, (2, 3, 2, 3, 64)),
    ("gemm", "gemm", tf.float32, (2, 3, 2, 3, 65)),
    ("fma", "fma", tf.float32, (2, 3, 10, 128, 8)),
    ("fma", "gemm", tf.float32, (2, 3, 10, 129, 8)),
    ("fma", "fma", tf.float64, (2, 3, 4, 128, 8)),
    ("fma", "gemm", tf.float64, (2, 3, 4, 129, 8)),
    ("fma", "gemm", tf.float32, (2, 3, 10, 65, 16)),
    ("fma", "fma", tf.float32, (0, 3, 2, 4, 8)),
    ("fma", "fma", tf.float32, (2, 0, 2, 4, 8)),
    ("fma", "gemm", tf.float32, (2, 3, 0, 4, 8)),
    # The backward kernel would have a block for each input capsule.
    ("fma", "gemm", tf.float32, (0, 2**31, 1, 1, 0)),
]


def _compute(dtype, batch, in_caps, out_caps, out_dim, in_dim):
    grad, *tensors = [
        tf.constant(np.zeros(shape), dtype)
        for shape in [
            (batch, in_caps, out_caps, out_dim),
            (batch, in_caps, in_dim),
            (in_caps, out_caps, out_dim, in_dim),
        ]
    ]
    OP.results(tf_capsops.capsule_prediction, grad, *tensors)


if _library.build_info()["cuda"]:

    @pytest.mark.parametrize("capability", GPUS)
    @pytest.mark.parametrize("forward, backward, dtype, sizes", PLANS)
    def test_the_first_kernel_that_can(forward, backward, dtype, sizes, capability):
        assert plans(capability, lambda: _compute(dtype, *sizes)) == {
            "CapsulePrediction": (forward, 0),
            "CapsulePredictionGrad": (backward, 0),
        }
