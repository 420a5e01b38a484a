# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each of CapsuleConv's CUDA kernels, forced by name, on a GPU of any kind."""

import paths
import pytest
import tensorflow as tf
from descriptions.capsule_conv import OP

from tf_capsops import kernels

IMAGE = "CapsuleConv", "CapsuleConvBackpropInput"
WEIGHTS = "CapsuleConvBackpropWeights"
MMA = (
    *("primes", "in_channels_16", "out_channels_8", "channels_8", "channels_16"),
    *("channels_33", "strides_2_2_SAME", "strides_3_3_SAME_large", "gaps"),
    *("dilations_3_2_by_2_SAME", "pixels_left_out_32", "small_image_2_1"),
    *("pose_5_7_2", "pose_8_8_8", "pose_17_9_13", "pose_3_3_3_3_moved", "many_planes"),
    *(f"small_taps_{taps}" for taps in (3, 4, 6, 8, 11)),
    *(f"small_rows_{rows}" for rows in (1, 2, 8, 16)),
    *(f"pixels_{pixels}" for pixels in (15, 16, 17, 33, 65)),
    *("small_channels_16", "small_channels_17", "pose_2_4_4_4", "kernel_7_7_SAME"),
)
WGMMA = (
    *("channels_8", "channels_33", "pixels_left_out_16", "pixels_left_out_32_wide"),
    *("pose_8_8_8", "many_planes", "primes", "large_primes", "boxes_dilations"),
    *(f"planes_{rows}" for rows in (4, 5, 17, 64)),
    *("boxes_strides_2_3", "boxes_strides_2_3_SAME", "boxes_strides_8_8"),
    *("boxes_strides_8_8_SAME", "boxes_pose_8_64"),
)
# Strides across, which the weight gradient of 16-bit types has not.
STRIDES = "strides_2_2_SAME", "gaps", "dilations_3_2_by_2_SAME", "pixels_left_out_16"
# At most 16 columns, in float32.
FEW_COLUMNS = (
    *("few_columns", "few_columns_moved", "few_columns_of_input"),
    *("few_columns_of_input_moved", "few_columns_of_input_deep"),
)
WGMMA_WEIGHTS = (
    *(f"in_channels_{channels}" for channels in (2, 8, 16, 32)),
    *(f"channels_{channels}" for channels in (2, 8, 16, 32)),
    *("strides_1_1_SAME", "strides_3_1_VALID"),
    *("dilations_2_2_by_1_SAME", "dilations_1_3_by_1_SAME"),
    *("kernel_1_5", "kernel_4_2", "kernel_7_7_SAME", "wide", "wide_SAME"),
    *("pixels_left_out_32_wide", "many_planes"),
)
GATHER = (
    *(f"one_row_columns_{columns}" for columns in (4, 28, 36, 64, 68, 132, 260)),
    *(f"one_row_terms_{terms}" for terms in (7, 8, 9, 32, 33, 64, 65, 96, 97, 256)),
    *(f"one_row_pixels_{pixels}" for pixels in (15, 16, 17, 31, 32, 33, 1025)),
    *("one_row_moved", "one_row_pose_1_1_8", "one_row_pose_1_3_4"),
    *("one_row_pose_1_6_8", "one_row_long_sums"),
)
TMA = (
    *(f"boxes_in_channels_{channels}" for channels in (7, 8, 9, 15, 16, 17)),
    *(f"boxes_out_channels_{channels}" for channels in (15, 16, 17, 31, 32, 33)),
    *(f"boxes_batch_{batch}" for batch in (31, 32, 33, 127, 128, 129)),
    *("boxes_strides_2_3", "boxes_strides_2_3_SAME", "boxes_strides_8_8"),
    *("boxes_dilations", "boxes_tiles", "boxes_terms", "boxes_pose_8_64"),
    *("boxes_pose_1_1", "boxes_pose_8_3", "boxes_pose_3_8"),
    "pose_1_8_16",
)
FMA = (*MMA, "no_in_channels", "empty_batch", "far_strides", "far_dilations")
REFUSALS = [
    ("gather", "primes", tf.float32, "poses have 4 rows, not one"),
    ("gather", "pose_5_1_8_3", tf.float32, "capsules have 5 matrices, not one"),
    (
        "gather",
        "one_row_terms_257",
        tf.float32,
        "its contraction has 257 terms, over 256",
    ),
    ("gather", "pose_1_4_4", tf.float32, "4 divides 4, the inner dimension"),
    ("gather", "ones", tf.float32, "4 does not divide the 1 columns"),
    (
        *("gather", "one_row_pose_1_3_6", tf.float32),
        "4 does not divide 6, the columns of the poses",
    ),
    ("gather", "one_row_moved", tf.float64, "it has no products of double"),
    ("gather", "empty_batch", tf.float32, "a tensor is empty"),
    ("tma", "primes", tf.float16, "poses have 4 rows, not one"),
    ("tma", "boxes_terms", tf.float32, "TF32 is not allowed"),
    (
        *("tma", "pose_1_1_1", tf.float16),
        "8 does not divide 3, the numbers of a pixel that are read",
    ),
    ("tma", "one_row_terms_64", tf.float16, "12 columns are too few"),
    ("tma", "primes", tf.float64, "it has no products of double"),
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
WEIGHT_REFUSALS = [
    ("wgmma", "pose_8_8_8", tf.float32, "capsules of the input are no 4x4 matrices"),
    (
        *("wgmma", "pose_4_4_5", tf.float32),
        "the columns of poses, 5, are no even divisor of 64",
    ),
    (
        *("wgmma", "channels_33", tf.float32),
        "the number of input channels, 33, is odd",
    ),
    ("tma", "boxes_terms", tf.float32, "TF32 is not allowed"),
    ("wgmma", "primes", tf.float64, "it has no products of double"),
    (
        *("wgmma", "strides_2_2_SAME", tf.bfloat16),
        "the stride across, 2, is not 1",
    ),
    (
        *("tma", "row_in_channels_32", tf.float16),
        "8 does not divide 17, the numbers of a pixel of the gradient",
    ),
]


def _forced(kernel, weights=None):
    """All take the same kernel, but for what is named for the weights' gradient."""
    return {**dict.fromkeys(IMAGE, kernel), WEIGHTS: weights or kernel}


GATHERED = {
    "CapsuleConv": "gather",
    "CapsuleConvBackpropInput": "mma",
    WEIGHTS: "gather",
}


if paths.WITH_GPU:
    HALVES = [tf.float16, tf.bfloat16]
    BOTH = False, True
    MMA_RUNS = paths.runs(_forced("mma"), MMA, [tf.float32, *HALVES], BOTH)
    GATHER_RUNS = paths.runs(GATHERED, GATHER, [tf.float32, *HALVES], BOTH)
    RUNS = [*MMA_RUNS, *GATHER_RUNS, *paths.runs(_forced("fma"), FMA, float32=BOTH)]
    if paths.runs_wgmma():
        wgmma = _forced("wgmma", "mma")
        ONE_BLOCK = ["planes_17", "boxes_strides_2_3"]

        @paths.every(paths.runs(wgmma, ONE_BLOCK, [tf.float32, *HALVES], BOTH))
        def test_a_block_makes_all_tiles(run):
            with kernels.pretend_device(processors=1):
                paths.assert_close(OP, run)

        RUNS += paths.runs(wgmma, WGMMA, [tf.float32, *HALVES], BOTH)
        RUNS += paths.runs(wgmma, FEW_COLUMNS, [tf.float32], BOTH)
        one_way = wgmma | {"CapsuleConvBackpropInput": "mma"}
        RUNS += paths.runs(one_way, ["few_columns_odd"], [tf.float32], BOTH)
        weights = _forced("mma", "wgmma")
        STRIDED = [*STRIDES, "pose_4_4_16_moved"]
        RUNS += paths.runs(weights, STRIDED, [tf.float32], BOTH)
        RUNS += paths.runs(weights, WGMMA_WEIGHTS, [tf.float32, *HALVES], BOTH)
        RUNS += paths.runs(_forced("tma"), TMA, [tf.float32, *HALVES], (True,))

    @paths.every([*RUNS, *paths.planned_for_others([*MMA_RUNS, *GATHER_RUNS])])
    def test_forced(run):
        paths.assert_close(OP, run)

    @paths.every(
        paths.runs(GATHERED, ["one_row_long_sums"], [tf.float32, *HALVES], BOTH)
    )
    def test_sums_of_one_block(run):
        """The part of a block takes several sums of its tensor cores."""
        with kernels.pretend_device(processors=1):
            paths.assert_close(OP, run)

    def test_the_input_gradient_is_not_gathered():
        case = OP.case("one_row_moved")
        gather = {"CapsuleConvBackpropInput": "gather"}
        with (
            tf.device("GPU:0"),
            kernels.force(**gather),
            pytest.raises(tf.errors.InvalidArgumentError, match="no gradient of"),
        ):
            OP.ours(case, OP.draw(case, tf.float32))

    @pytest.mark.parametrize("refused", REFUSALS)
    def test_a_forced_kernel_says_why_it_cannot(refused):
        paths.assert_refused(OP, "CapsuleConv", *refused)

    @pytest.mark.parametrize("refused", WEIGHT_REFUSALS)
    def test_a_forced_weight_gradient_says_why_it_cannot(refused):
        paths.assert_refused(OP, WEIGHTS, *refused)
