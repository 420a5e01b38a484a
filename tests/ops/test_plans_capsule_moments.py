# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The kernels that CapsuleMoments would run on GPUs, planned on a CPU."""

import pytest
import tensorflow as tf
from descriptions.capsule_moments import OP
from gpus import GPUS, assert_planned, plans

import tf_capsops
from tf_capsops import _library

OPS = "CapsuleMoments", "CapsuleMomentsGrad"
MMA, FMA, GENERAL = "mma mma", "fma fma", "general general"
FLOAT, HALVES = (tf.float32,), (tf.float16, tf.bfloat16)

# The types, whether TF32 is allowed, the case, and the kernels of OPS.
PLANS = [
    (FLOAT, True, "matrices_parents", MMA),
    (FLOAT, True, "rows_of_warps_parents", MMA),
    (HALVES, False, "matrices_all", MMA),
    (HALVES, False, "coordinates_none", MMA),
    (FLOAT, False, "matrices_parents", FMA),
    (FLOAT, False, "rows_of_warps_parents", FMA),
    ((tf.float64,), True, "matrices_parents", GENERAL),
    (FLOAT, True, "primes_parents", GENERAL),
    (FLOAT, False, "parents_33", GENERAL),
    (HALVES, False, "no_channels_all", GENERAL),
]


def _compute(dtype, name):
    case = OP.case(name)
    OP.ours(case, OP.draw(case, dtype))


def _second_order():
    """A pass of 64 samples of matrix capsules and its gradient."""
    poses = tf.zeros((64, 14, 14, 32, 4, 4))
    precision = tf.zeros((64, 6, 6, 32, 4, 4))
    weights = tf.zeros((3, 3, 32, 32, 4, 4))
    with tf.GradientTape() as tape:
        tape.watch(poses)
        moments = tf_capsops.capsule_moments(
            poses, None, weights, precision=precision, order=2, strides=2
        )
    tape.gradient(moments, poses)


if _library.build_info()["cuda"]:

    @pytest.mark.parametrize("capability", GPUS)
    @pytest.mark.parametrize("dtypes, tf32, name, expected", PLANS)
    def test_the_first_kernel_that_can(dtypes, tf32, name, expected, capability):
        plan = dtypes, tf32, name, expected, None
        assert_planned(capability, OPS, plan, _compute)

    @pytest.mark.parametrize("tf32", [False, True])
    def test_workspaces_stay_within_a_power_of_two(tf32):
        """TensorFlow's allocator may take the next one for what is a little more."""
        tf.config.experimental.enable_tensor_float_32_execution(tf32)
        found = plans(90, _second_order)
        assert [*found] == [*OPS]
        assert all(workspace <= 2**25 for _, workspace in found.values()), found
