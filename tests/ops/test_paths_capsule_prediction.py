# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each of CapsulePrediction's CUDA kernels, forced by name."""

import paths
import pytest
import tensorflow as tf
from descriptions.capsule_prediction import OP

_SMALL = ("ones", "primes", "mnist_layer", "in_dim_31", "in_dim_32", "empty_batch")
CASES = {
    "fma": (*_SMALL, "empty_reduction"),
    "gemm": (*_SMALL, "empty_reduction", "columns_513", "tiles_of_both", "long_rows"),
}
REFUSALS = [
    ("CapsulePrediction", "long_rows", "in_dim is over 32"),
    ("CapsulePredictionGrad", "no_out_caps", "there are no output elements"),
    (
        "CapsulePredictionGrad",
        "long_rows",
        "a block has too few warps for the columns",
    ),
]


OPS = "CapsulePrediction", "CapsulePredictionGrad"

if paths.WITH_GPU:

    @paths.every(
        [
            run
            for kernel, names in CASES.items()
            for run in paths.runs(dict.fromkeys(OPS, kernel), names)
        ]
    )
    def test_forced(run):
        calls = paths.assert_close(OP, run)
        assert all(workspace == 0 for _, _, workspace in calls)

    @pytest.mark.parametrize("op, name, why", REFUSALS)
    def test_a_forced_kernel_says_why_it_cannot(op, name, why):
        paths.assert_refused(OP, op, "fma", name, tf.float32, why)
