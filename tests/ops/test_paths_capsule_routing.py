# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each of CapsuleRouting's CUDA kernels, forced by name, on a GPU of any kind."""

import numpy as np
import paths
import pytest
import tensorflow as tf
from descriptions import DTYPES, exact, rounded_to_tf32
from descriptions.capsule_routing import OP, plain_coefficients
from frames import call
from reference import capsule_routing as reference
from tolerances import assert_close

import tf_capsops

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
# Inner products of out_caps_2000 do not fit into shared memory, and of many_in_caps not
# all moments into the workspace.
PHASES = (
    *(*MMA, *ONCE, *LARGE, *FORWARD),
    *("large_primes", "all_long", "out_caps_2000", "many_in_caps"),
)
RESIDENT = (
    *("tiles_1_1_1_8_8", "primes", "mnist_layer", "few_1_9_2_3_64", "few_1_37_5_17_8"),
    *("few_2_19_18_16_16", "out_caps_49", "out_dim_33", "in_dim_17"),
    *("iterations_1", "iterations_5"),
)
REFUSALS = [
    ("mma", "mnist_layer", tf.float64, "T is double"),
    ("mma", "empty_batch", tf.float32, "a dimension is 0"),
    ("mma", "out_caps_49", tf.float32, "out_caps is over 48"),
    (
        *("mma", "primes", tf.bfloat16),
        "out_dim x in_dim is none of 16 x 8, 16 x 16 and 8 x 8",
    ),
    ("resident", "empty_batch", tf.float32, "a dimension is 0"),
    (
        *("resident", "many_in_caps", tf.float32),
        "a processor has over 64 input capsules",
    ),
    (
        *("resident", "out_caps_2000", tf.float32),
        "what a block keeps does not fit into its shared memory",
    ),
]


def _runs(kernels_of_ops, names):
    forced = dict(zip(OPS, kernels_of_ops, strict=True))
    dtypes = [d for d in DTYPES if d != tf.float64 or "mma" not in kernels_of_ops]
    return [
        run
        for run in paths.runs(forced, names, dtypes, (False, True))
        if run.dtype.size >= 4
        or forced["CapsuleRoutingGrad"] != "mma"
        or OP.case(run.name).attributes["iterations"] <= 3
    ]


if paths.WITH_GPU:
    MMA_RUNS = [*_runs(("mma",) * 3, MMA), *_runs(("mma", "mma", "phases"), ONCE)]
    PHASES_RUNS = _runs(("phases",) * 3, PHASES)
    RESIDENT_RUNS = _runs(("resident", "resident", "phases"), RESIDENT)
    COMMON_RUNS = [*MMA_RUNS, *PHASES_RUNS, *RESIDENT_RUNS]
    RUNS = [*COMMON_RUNS]
    if paths.capability() in (90, 100):
        RUNS += _runs(("mma",) * 3, LARGE)
        RUNS += _runs(("mma", "phases", "mma"), FORWARD)

    @paths.every([*RUNS, *paths.planned_for_others(COMMON_RUNS)])
    def test_forced(run):
        case = OP.case(run.name)
        tensors = OP.draw(case, run.dtype)
        with paths.running(run):
            results = OP.ours(case, tensors)
            look = call(case.bind(tf_capsops.routing_coefficients), *tensors[1:])
        numbers = rounded_to_tf32(tensors) if run.tf32 else tensors
        with tf.device("GPU:0"):
            OP.assert_close_to_reference(case, tensors, numbers, results)
            plain = case.bind(plain_coefficients)(*numbers[1:])
        truth = reference.coefficients(*exact(tensors[1:]), **case.attributes)
        assert_close(look.numpy(), truth, plain.numpy(), np.ones_like(truth))

    @pytest.mark.parametrize("refused", REFUSALS)
    def test_a_forced_kernel_says_why_it_cannot(refused):
        paths.assert_refused(OP, "CapsuleRouting", *refused)

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
        assert f"phases cannot do this {why}" in caught.value.message
