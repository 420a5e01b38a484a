# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each of CapsuleMoments' CUDA kernels, forced by name."""

import paths
import pytest
import tensorflow as tf
from descriptions import DTYPES
from descriptions.capsule_moments import OP

from tf_capsops.ops.capsule_moments import NORMALIZATIONS


def _normalized(*names):
    return [f"{name}_{each}" for name in names for each in NORMALIZATIONS]


# All take poses of 4x4 and of 4x5, up to 32 parents, and all optional inputs.
_ALL = _normalized("matrices", "coordinates", "rows_of_warps", "equal_shares")
CASES = {
    "mma": _ALL,
    "general": [
        *(*_ALL, *_normalized("primes", "beyond", "empty_batch", "no_channels")),
        *("parents_33", "pose_2_17_6", "pose_1_1_7"),
    ],
}
REFUSALS = [
    ("primes_parents", "poses are not 4x4 or 4x5 and weights not of 4 columns"),
    ("no_parents_all", "out_channels is not from 1 to 32"),
    ("empty_batch_none", "there are no votes"),
]
OPS = "CapsuleMoments", "CapsuleMomentsGrad"


def _runs(kernel):
    narrow = [dtype for dtype in DTYPES if dtype != tf.float64]
    return paths.runs(
        dict.fromkeys(OPS, kernel),
        CASES[kernel],
        DTYPES if kernel == "general" else narrow,
        float32=(False, True) if kernel == "mma" else (False,),
    )


if paths.WITH_GPU:
    RUNS = [run for kernel in CASES for run in _runs(kernel)]

    @paths.every([*RUNS, *paths.planned_for_others(_runs("mma"))])
    def test_forced(run):
        paths.assert_close(OP, run)

    @pytest.mark.parametrize("op", OPS)
    @pytest.mark.parametrize("name, why", REFUSALS)
    def test_a_forced_kernel_says_why_it_cannot(op, name, why):
        paths.assert_refused(OP, op, "mma", name, tf.float32, why)
