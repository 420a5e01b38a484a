# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each of CapsuleRouting's CUDA kernels, forced by name, on a GPU of any kind."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from descriptions import DTYPES, exact, rounded_to_tf32
from descriptions.capsule_routing import OP, plain_coefficients
from gpus import GPUS
from reference import capsule_routing as reference
from tolerances import assert_close

import tf_capsops
from tf_capsops import kernels

OPS = "CapsuleRouting", "CapsuleRoutingGrad", "CapsuleRoutingCoefficients"
MMA = (
    *("tiles_1_1_1_8_8", "tiles_31_9_12_8_8", "tiles_17_37_5_16_16", "batch_33"),
    "mnist_layer",
)
# Of one iteration, whose coefficients need no predictions.
ONCE = ("tiles_16_5_4_16_8",)
# These need the shared memory of 9.0.
LARGE = ("tiles_48_300_13_16_8", "tiles_65_30_9_8_8", "tiles_18_7_32_16_16")
FORWARD = ("tiles_19_29_48_16_16",)
FMA = (*MMA, *ONCE, *LARGE, *FORWARD, "large_primes", "all_long")
REFUSALS = [
    ("mnist_layer", tf.float64, "T is double"),
    ("empty_batch", tf.float32, "a dimension is 0"),
    ("out_caps_49", tf.float32, "out_caps is over 48"),
    (
        *("primes", tf.bfloat16),
        "out_dim x in_dim is none of 16 x 8, 16 x 16 and 8 x 8",
    ),
]


def _check(kernels_of_ops, name, dtype, tf32=False, device=None):
    case = OP.case(name)
    tensors = OP.draw(case, dtype)
    numbers = rounded_to_tf32(tensors) if tf32 else tensors
    forced = dict(zip(OPS, kernels_of_ops, strict=True))
    other = kernels.pretend_device(**device) if device else contextlib.nullcontext()
    with tf.device("GPU:0"):
        tf.config.experimental.enable_tensor_float_32_execution(tf32)
        with other, kernels.force(**forced), kernels.recorded() as calls:
            results = OP.ours(case, tensors)
            look = case.bind(tf_capsops.routing_coefficients)(*tensors[1:])
        tf.config.experimental.enable_tensor_float_32_execution(False)
        found = {op.removesuffix("WithSums"): kernel for op, kernel, _ in calls}
        assert found == forced
        OP.assert_close_to_reference(case, tensors, numbers, results)
        plain = case.bind(plain_coefficients)(*numbers[1:])
    truth = reference.coefficients(*exact(tensors[1:]), **case.attributes)
    assert_close(look.numpy(), truth, plain.numpy(), np.ones_like(truth))


def _runs(forced, names):
    """Yields a parameter for each case, type and precision."""
    for name in names:
        for dtype in DTYPES:
            if dtype == tf.float64 and "mma" in forced:
                continue
            many = OP.case(name).attributes["iterations"] > 3
            if many and dtype.size < 4 and forced[1] == "mma":
                continue
            for tf32 in (False, True) if dtype == tf.float32 else (False,):
                tag = f"{forced[1]}-{name}-{dtype.name}{'-tf32' * tf32}"
                rounded = tf32 and "mma" in forced
                yield pytest.param(forced, name, dtype, rounded, id=tag)


if tf.config.list_physical_devices("GPU"):
    MAJOR, MINOR = tf.config.experimental.get_device_details(
        tf.config.list_physical_devices("GPU")[0]
    )["compute_capability"]
    MMA_RUNS = [*_runs(("mma",) * 3, MMA), *_runs(("mma", "mma", "fma"), ONCE)]
    RUNS = [*MMA_RUNS, *_runs(("fma",) * 3, FMA)]
    if 10 * MAJOR + MINOR in (90, 100):
        RUNS += _runs(("mma",) * 3, LARGE)
        RUNS += _runs(("mma", "fma", "mma"), FORWARD)

    @pytest.mark.parametrize("forced, name, dtype, tf32", RUNS)
    def test_forced(forced, name, dtype, tf32):
        _check(forced, name, dtype, tf32)

    # Their planning differs by shared memory; launches of 8.x do not overlap.
    @pytest.mark.parametrize("capability", [80, 86])
    @pytest.mark.parametrize("forced, name, dtype, tf32", MMA_RUNS)
    def test_planned_for_other_gpus(forced, name, dtype, tf32, capability):
        device = {"capability": capability, **GPUS[capability]}
        _check(forced, name, dtype, tf32, device)

    @pytest.mark.parametrize("name, dtype, why", REFUSALS)
    def test_a_forced_kernel_says_why_it_cannot(name, dtype, why):
        case = OP.case(name)
        _, *inputs = OP.draw(case, dtype)
        with (
            tf.device("GPU:0"),
            kernels.force(CapsuleRouting="mma"),
            pytest.raises(tf.errors.InvalidArgumentError) as caught,
        ):
            case.bind(tf_capsops.capsule_routing)(*inputs)
        message = (
            "CapsuleRouting: TF_CAPSOPS_KERNEL asks for the kernel mma, "
            "which cannot do this"
        )
        assert f"{message} because {why}" in caught.value.message

    def test_matrices_that_32_bits_do_not_count_are_refused():
        rows, columns = 2**15, 2**15 + 1
        with (
            tf.device("GPU:0"),
            pytest.raises(tf.errors.UnimplementedError) as caught,
        ):
            tf_capsops.capsule_routing(
                tf.zeros((1, 1, columns), tf.float16),
                tf.zeros((1, 1, rows, columns), tf.float16),
            )
        why = f"because out_dim x in_dim is {rows * columns}, over {2**30}"
        assert f"fma cannot do this {why}" in caught.value.message
