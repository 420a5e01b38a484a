# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each of InqConv's CUDA kernels, forced by name, on a GPU of any kind."""

import paths
import pytest
import tensorflow as tf
from descriptions.inq_conv import OP

OPS = "InqConv", "InqConvBackpropInput"
MMA = (
    *("primes", "bits_2", "bits_6_by_16", "channels_8", "channels_33", "channels_64"),
    *("strides_2_2_SAME_large", "strides_3_1_VALID", "dilations_3_2_by_2_SAME"),
    *("pixels_left_out", "small_image_1_3", "longer_sums"),
)
WGMMA = ("channels_32", "channels_64", "strides_2_2_by_64")
FMA = (*MMA, "bits_8", "no_in_channels", "empty_batch", "far_strides", "far_dilations")
REFUSALS = [
    ("wgmma", "channels_33", tf.float32, "4 does not divide 33"),
    ("wgmma", "bits_6_by_16", tf.float32, "16 columns are too few"),
    ("mma", "bits_8", tf.float16, "float16 does not have 64 powers of two"),
    ("mma", "primes", tf.float64, "it has no products of double"),
    ("mma", "no_in_channels", tf.float32, "a tensor is empty"),
]


def _forced(kernel):
    return dict.fromkeys(OPS, kernel)


if paths.WITH_GPU:
    HALVES = [tf.float16, tf.bfloat16]
    BOTH = False, True
    MMA_RUNS = paths.runs(_forced("mma"), MMA, [tf.float32, *HALVES], BOTH)
    RUNS = [
        *MMA_RUNS,
        *paths.runs(_forced("fma"), FMA, [tf.float32, tf.float64], BOTH),
        *paths.runs(_forced("widened"), FMA, HALVES),
    ]
    if paths.runs_wgmma():
        RUNS += paths.runs(_forced("wgmma"), WGMMA, [tf.float32, *HALVES], BOTH)

    @paths.every([*RUNS, *paths.planned_for_others(MMA_RUNS)])
    def test_forced(run):
        paths.assert_close(OP, run)

    @pytest.mark.parametrize("refused", REFUSALS)
    def test_a_forced_kernel_says_why_it_cannot(refused):
        paths.assert_refused(OP, "InqConv", *refused)
