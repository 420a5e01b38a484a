# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each of CapsuleConv's CUDA kernels, forced by name, on a GPU of any kind."""

import paths
import pytest
import tensorflow as tf
from descriptions.capsule_conv import OP

IMAGE = "CapsuleConv", "CapsuleConvBackpropInput"
WEIGHTS = "CapsuleConvBackpropWeights"
MMA = (
    *("primes", "in_channels_16", "out_channels_8", "channels_8", "channels_16"),
    *("channels_33", "strides_2_2_SAME", "strides_3_3_SAME_large", "gaps"),
    *("dilations_3_2_by_2_SAME", "pixels_left_out_32", "small_image_2_1"),
    *("pose_5_7_2", "pose_8_8_8", "pose_17_9_13", "pose_3_3_3_3_moved", "many_planes"),
)
WGMMA = (
    *("channels_8", "channels_33", "pixels_left_out_16", "pixels_left_out_32_wide"),
    *("pose_8_8_8", "many_planes"),
)
FMA = (*MMA, "no_in_channels", "empty_batch", "far_strides", "far_dilations")
REFUSALS = [
    ("wgmma", "primes", tf.float32, "TF32 is not allowed"),
    ("wgmma", "out_channels_3", tf.float16, "12 columns are too few"),
    (
        *("wgmma", "pose_3_3_3", tf.float16),
        "4 does not divide 3, the columns of the poses that are read",
    ),
    ("wgmma", "primes", tf.float64, "it has no products of double"),
    ("mma", "primes", tf.float64, "it has no products of double"),
    ("mma", "empty_batch", tf.float32, "a tensor is empty"),
    ("mma", "far_strides", tf.float32, "32 bits do not count its elements"),
    ("mma", "dilations_50000", tf.float32, "no tile of it fits in shared memory"),
]


def _forced(kernel):
    """The gradient of the weights has no wgmma kernel."""
    weights = "fma" if kernel == "fma" else "mma"
    return {**dict.fromkeys(IMAGE, kernel), WEIGHTS: weights}


if paths.WITH_GPU:
    HALVES = [tf.float16, tf.bfloat16]
    BOTH = False, True
    MMA_RUNS = paths.runs(_forced("mma"), MMA, [tf.float32, *HALVES], BOTH)
    RUNS = [*MMA_RUNS, *paths.runs(_forced("fma"), FMA, float32=BOTH)]
    if paths.runs_wgmma():
        RUNS += paths.runs(_forced("wgmma"), WGMMA, [tf.float32, *HALVES], (True,))

    @paths.every([*RUNS, *paths.planned_for_others(MMA_RUNS)])
    def test_forced(run):
        paths.assert_close(OP, run)

    @pytest.mark.parametrize("refused", REFUSALS)
    def test_a_forced_kernel_says_why_it_cannot(refused):
        paths.assert_refused(OP, "CapsuleConv", *refused)
