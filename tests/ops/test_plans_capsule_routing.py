# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The kernels that CapsuleRouting would run on GPUs, planned on a CPU."""

import functools

import pytest
import tensorflow as tf
from descriptions.capsule_routing import OP
from gpus import GPUS, planned, plans

import tf_capsops
from tf_capsops import _library, kernels

OPS = "CapsuleRouting", "CapsuleRoutingGrad", "CapsuleRoutingCoefficients"
MMA, PHASES, FORWARD = "mma mma mma", "phases phases phases", "mma phases mma"
LARGE = 90, 100
FLOAT, HALF = tf.float32, tf.bfloat16

# The GPUs, the type, out_caps, out_dim, in_dim and iterations, and the kernels of OPS.
# A pass needs shared memory for one vector of each output capsule, the last one of the
# gradient for five, or six where there are over three iterations.
PLANS = [
    (GPUS, FLOAT, (10, 16, 8, 3), MMA),
    (GPUS, HALF, (10, 16, 16, 3), MMA),
    (GPUS, FLOAT, (10, 8, 8, 3), MMA),
    (GPUS, FLOAT, (10, 16, 8, 5), MMA),
    (GPUS, HALF, (10, 16, 8, 5), FORWARD),
    (GPUS, tf.float64, (10, 16, 8, 3), PHASES),
    (GPUS, FLOAT, (10, 5, 7, 3), PHASES),
    (GPUS, FLOAT, (10, 8, 16, 3), PHASES),
    (GPUS, HALF, (10, 8, 16, 3), PHASES),
    (GPUS, FLOAT, (0, 16, 8, 3), PHASES),
    (GPUS, HALF, (49, 16, 8, 3), PHASES),
    (LARGE, FLOAT, (32, 16, 16, 3), MMA),
    (LARGE, FLOAT, (32, 16, 16, 4), FORWARD),
    (LARGE, FLOAT, (33, 16, 8, 3), FORWARD),
    (LARGE, FLOAT, (40, 16, 16, 3), FORWARD),
    (LARGE, FLOAT, (48, 16, 8, 3), FORWARD),
    (LARGE, HALF, (48, 16, 8, 3), FORWARD),
    (LARGE, HALF, (48, 8, 8, 3), MMA),
    ([80], FLOAT, (24, 16, 8, 3), MMA),
    ([80], FLOAT, (25, 16, 8, 3), FORWARD),
    ([80], FLOAT, (48, 16, 16, 3), FORWARD),
    ([86, 120], FLOAT, (24, 16, 8, 3), FORWARD),
    ([86, 120], FLOAT, (48, 16, 8, 3), FORWARD),
    ([86, 120], HALF, (24, 16, 8, 3), FORWARD),
    ([86, 120], FLOAT, (24, 8, 8, 3), MMA),
    ([86, 120], FLOAT, (25, 8, 8, 3), FORWARD),
    # What a block of the gradients works on is more than its 32 bits count.
    ([90], HALF, (12, 1, 5_200_000, 3), "phases none phases"),
    # Where TF32 is allowed.
    (GPUS, "tf32", (10, 16, 8, 3), MMA),
    (GPUS, "tf32", (10, 5, 7, 3), PHASES),
    (LARGE, "tf32", (33, 16, 8, 3), FORWARD),
]


def _compute(dtype, out_caps, out_dim, in_dim, iterations, batch=7, in_caps=1):
    tensors = [
        tf.zeros((batch, in_caps, in_dim), dtype),
        tf.zeros((in_caps, out_caps, out_dim, in_dim), dtype),
    ]
    routing = functools.partial(tf_capsops.capsule_routing, iterations=iterations)
    OP.results(routing, None, *tensors)
    tf_capsops.routing_coefficients(*tensors, iterations=iterations)


if _library.build_info()["cuda"]:

    @pytest.mark.parametrize(
        "capability, dtype, sizes, expected",
        [(gpu, *plan) for gpus, *plan in PLANS for gpu in gpus],
    )
    def test_the_first_kernel_that_can(capability, dtype, sizes, expected):
        tf.config.experimental.enable_tensor_float_32_execution(dtype == "tf32")
        dtype = FLOAT if dtype == "tf32" else dtype
        found = planned(capability, lambda: _compute(dtype, *sizes))
        assert found == dict(zip(OPS, expected.split(), strict=True))

    @pytest.mark.parametrize(
        "sizes, rounded, exact",
        [
            # Output capsules squared x input capsules x samples / 16: 2 million.
            ((32, 16, 8, 2, 64, 489), "phases phases mma", "phases mma mma"),
            ((32, 16, 8, 2, 64, 488), MMA, MMA),
            ((32, 16, 16, 2, 64, 489), "phases mma mma", "phases mma mma"),
            # Few output capsules, or few samples, or fewer elements.
            ((28, 16, 8, 2, 64, 2000), MMA, MMA),
            ((32, 16, 8, 2, 16, 2000), MMA, MMA),
            ((48, 8, 8, 2, 64, 2000), MMA, MMA),
        ],
    )
    @pytest.mark.parametrize(
        "dtype, tf32", [(HALF, False), (FLOAT, True), (FLOAT, False)]
    )
    def test_phases_where_they_are_faster(sizes, rounded, exact, dtype, tf32):
        tf.config.experimental.enable_tensor_float_32_execution(tf32)
        found = planned(90, lambda: _compute(dtype, *sizes))
        expected = exact if dtype == FLOAT and not tf32 else rounded
        assert found == dict(zip(OPS, expected.split(), strict=True))

    @pytest.mark.parametrize("dtype", [FLOAT, HALF])
    @pytest.mark.parametrize(
        "sizes, expected",
        [
            ((10, 16, 8, 3, 1, 1152), "resident resident mma"),
            ((10, 16, 8, 3, 3, 1152), "resident resident mma"),
            ((10, 16, 8, 3, 4, 1152), "resident mma mma"),
            ((10, 16, 8, 3, 6, 1152), "resident mma mma"),
            ((10, 16, 8, 3, 7, 1152), MMA),
            ((100, 6, 4, 3, 3, 5), "resident resident phases"),
            # A gradient that fits only with fewer parts than would be fastest.
            ((64, 16, 8, 3, 3, 1152), "resident resident phases"),
            # 2^18 weights of a block.
            ((2, 512, 256, 3, 1, 1), "resident resident phases"),
            ((2, 512, 257, 3, 1, 1), PHASES),
            # 64 input capsules for each of 132 processors.
            ((2, 16, 8, 3, 1, 8448), "resident resident mma"),
            ((2, 16, 8, 3, 1, 8449), MMA),
            # A block has 223 KB of predictions, and 227 KB of shared memory in all.
            ((10, 65, 8, 3, 2, 5808), "phases phases phases"),
            ((10, 5, 7, 3, 1, 1152), "resident resident phases"),
        ],
    )
    def test_resident_where_there_are_few_samples(sizes, expected, dtype):
        found = planned(90, lambda: _compute(dtype, *sizes))
        assert found == dict(zip(OPS, expected.split(), strict=True))

    def test_a_kernel_that_cannot_is_not_planned():
        with kernels.force(CapsuleRouting="mma", CapsuleRoutingGrad="phases"):
            found = planned(90, lambda: _compute(tf.float64, 10, 16, 8, 3))
        assert found == dict(zip(OPS, ("none", "phases", "phases"), strict=True))

    @pytest.mark.parametrize(
        "dtype, sizes",
        [
            # 75 MB of sums of gradients of weights, and 256 MB of moments.
            (HALF, (32, 16, 8, 3, 64, 4608)),
            (tf.float64, (1, 3, 2, 3, 16, 500000)),
        ],
    )
    def test_the_workspace_of_gradients_does_not_grow_with_input_capsules(dtype, sizes):
        found = plans(90, lambda: _compute(dtype, *sizes))
        kernel, workspace = found["CapsuleRoutingGrad"]
        assert kernel == "phases"
        assert workspace < 64e6

    def test_workspaces_are_of_the_vectors_that_are_needed():
        """V and one partial sum; V and ds of three iterations and one; V."""
        vector = 16 * 12 * 16 * 4
        found = plans(90, lambda: _compute(FLOAT, 10, 16, 8, 3))
        sizes = [workspace for _, workspace in found.values()]
        assert [*found] == [*OPS]
        assert sizes == [2 * vector, 7 * vector, vector]

    @pytest.mark.parametrize("out_dim, in_dim", [(2**31 - 1, 0), (0, 2**31 - 1)])
    def test_coefficients_without_predictions_of_any_size(out_dim, in_dim):
        def compute():
            # 8 GB that nothing writes to: TensorFlow keeps what has been written.
            inputs = tf.raw_ops.Empty(shape=(1, 1, in_dim), dtype=tf.float32)
            weights = tf.zeros((1, 1, out_dim, in_dim))
            tf_capsops.routing_coefficients(inputs, weights, iterations=1)

        found = planned(90, compute)
        assert found["CapsuleRoutingCoefficients"] == "phases"
