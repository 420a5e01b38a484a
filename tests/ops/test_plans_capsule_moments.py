# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The kernels that CapsuleMoments would run on GPUs, planned on a CPU."""

import pytest
import tensorflow as tf
from descriptions.capsule_moments import OP, draw, moments_and_gradients
from gpus import GPUS, assert_planned, planned, plans

import tf_capsops
from tf_capsops import _library
from tf_capsops.ops.capsule_moments import NORMALIZATIONS

OPS = "CapsuleMoments", "CapsuleMomentsGrad"
MMA, GENERAL = "mma mma", "general general"
FLOAT, HALVES = (tf.float32,), (tf.float16, tf.bfloat16)

# The types, whether TF32 is allowed, the case, and the kernels of OPS.
PLANS = [
    (FLOAT, True, "matrices_parents", MMA),
    (FLOAT, True, "rows_of_warps_parents", MMA),
    (HALVES, False, "matrices_all", MMA),
    (HALVES, False, "coordinates_none", MMA),
    (FLOAT, False, "matrices_parents", MMA),
    (FLOAT, False, "rows_of_warps_parents", MMA),
    ((tf.float64,), True, "matrices_parents", GENERAL),
    (FLOAT, True, "primes_parents", GENERAL),
    (FLOAT, False, "parents_33", GENERAL),
    (HALVES, False, "no_channels_all", GENERAL),
]


def _compute(dtype, name):
    case = OP.case(name)
    OP.ours(case, OP.draw(case, dtype))


def _second_order(size, kernel_size, parents, normalize):
    """A pass of 64 samples of matrix capsules and its gradient."""
    out = (size - kernel_size) // 2 + 1
    poses = tf.zeros((64, size, size, 32, 4, 4))
    precision = tf.zeros((64, out, out, parents, 4, 4))
    weights = tf.zeros((kernel_size, kernel_size, 32, parents, 4, 4))
    with tf.GradientTape() as tape:
        tape.watch(poses)
        moments = tf_capsops.capsule_moments(
            poses,
            None,
            weights,
            precision=precision,
            order=2,
            strides=2,
            normalize=normalize,
        )
    tape.gradient(moments, poses)


def _classes(parents, inner):
    """One window with all optional inputs, and its gradient."""
    named = {
        "poses": (1, 1, 1, 8, 4, inner),
        "activations": (1, 1, 1, 8),
        "weights": (1, 1, 8, parents, inner, 4),
        "bias": (1, 1, 1, parents),
        "linear": (1, 1, 1, parents, 4, 4),
        "precision": (1, 1, 1, parents, 4, 4),
        "center": (1, 1, 1, parents, 4, 4),
        "prior": (1, 1, 8, parents),
    }
    moments_and_gradients(draw(tf.float32, named))


if _library.build_info()["cuda"]:

    @pytest.mark.parametrize("capability", GPUS)
    @pytest.mark.parametrize("dtypes, tf32, name, expected", PLANS)
    def test_the_first_kernel_that_can(dtypes, tf32, name, expected, capability):
        plan = dtypes, tf32, name, expected, None
        assert_planned(capability, OPS, plan, _compute)

    @pytest.mark.parametrize("capability", GPUS)
    @pytest.mark.parametrize("inner", [4, 5])
    @pytest.mark.parametrize("parents", [1, 8, 9, 16, 17, 23, 24, 32])
    def test_shared_memory_for_any_number_of_parents(parents, inner, capability):
        """Only the gradients of many parents with 4x5 poses need 100 KB and more."""
        little = GPUS[capability]["shared"] < 100 << 10
        expected = "mma general" if little and parents > 23 and inner == 5 else MMA
        found = planned(capability, lambda: _classes(parents, inner))
        assert found == dict(zip(OPS, expected.split(), strict=True))

    @pytest.mark.parametrize("normalize", NORMALIZATIONS)
    @pytest.mark.parametrize("sizes", [(14, 3, 32), (4, 4, 10)])
    @pytest.mark.parametrize("tf32", [False, True])
    def test_workspaces_stay_within_a_power_of_two(tf32, sizes, normalize):
        """TensorFlow's allocator may take the next one for what is a little more."""
        tf.config.experimental.enable_tensor_float_32_execution(tf32)
        found = plans(90, lambda: _second_order(*sizes, normalize))
        assert [*found] == [*OPS]
        assert all(workspace <= 2**25 for _, workspace in found.values()), found
