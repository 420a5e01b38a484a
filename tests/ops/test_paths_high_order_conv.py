# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each of HighOrderConv's CUDA kernels, forced by name, on a GPU of any kind."""

import paths
import pytest
import tensorflow as tf
from descriptions import DTYPES
from descriptions.high_order_conv import OP

PATHS = {
    "rows": ("paper_small", "kernel_3_3", "kernel_7_7", "kernel_5_5_width_600"),
    # With four pixels a thread, and with one.
    "planes": (
        *("paper_small_NCHW", "width_32_NCHW", "kernel_7_7_width_12_NCHW"),
        *("fewer_groups_at_a_time_NCHW", "fewer_groups_in_a_task_NCHW"),
        *("width_31_NCHW", "primes_NCHW", "dilations_1_3_NCHW"),
        *("channels_130_groups_2_NCHW", "long_sums_of_taps_NCHW"),
    ),
    "channels": (
        *("channels_12_groups_3", "channels_256_groups_16"),
        *("fewer_groups_in_a_task", "dilations_3_1_channels_8"),
    ),
    "pixels": ("paper_small", "primes", "channels_12_groups_3", "dilations_4_5"),
    "general": (
        *("paper_small", "paper_small_NCHW", "primes", "channels_12_groups_3_NCHW"),
        *("dilations_1_3", "no_channels_in_groups"),
    ),
}
REFUSALS = [
    ("rows", "paper_small_NCHW", "data_format is NCHW"),
    ("rows", "primes", "there are not 1 or 3 channels"),
    ("planes", "paper_small", "data_format is NHWC"),
    ("planes", "no_channels_NCHW", "a dimension is 0"),
    ("channels", "primes", "kernel_size is not 3x3, 5x5 or 7x7"),
    (
        "channels",
        "channels_66_groups_33",
        "the channels of a group are no multiple of 4",
    ),
    (
        "pixels",
        "long_sums_of_taps",
        "the filters of 32 pixels do not fit in shared memory",
    ),
]


def _runs(kernel):
    narrow = kernel in ("rows", "channels")
    dtypes = [dtype for dtype in DTYPES if not narrow or dtype != tf.float64]
    forced = {"HighOrderConv": kernel, "HighOrderConvGrad": kernel}
    return paths.runs(forced, PATHS[kernel], dtypes)


if paths.WITH_GPU:
    RUNS = [run for kernel in PATHS for run in _runs(kernel)]
    # With 99 kilobytes of shared memory.
    SMALL = paths.planned_for_others([*_runs("rows"), *_runs("channels")], [86])

    @paths.every([*RUNS, *SMALL])
    def test_forced(run):
        calls = paths.assert_close(OP, run)
        assert all(workspace == 0 for _, _, workspace in calls)

    @pytest.mark.parametrize("kernel, name, why", REFUSALS)
    def test_a_forced_kernel_says_why_it_cannot(kernel, name, why):
        paths.assert_refused(OP, "HighOrderConv", kernel, name, tf.float32, why)
