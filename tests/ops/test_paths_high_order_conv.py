# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each of HighOrderConv's CUDA kernels, forced by name, on a GPU of any kind."""

import pytest
import tensorflow as tf
import test_high_order_conv as ours
from gpus import GPUS

import tf_capsops
from tf_capsops import kernels

PATHS = {
    "rows": ("paper_small", "kernel_3_3", "kernel_7_7", "kernel_5_5_width_600"),
    "quads": (
        *("paper_small_NCHW", "width_32_NCHW", "kernel_7_7_width_12_NCHW"),
        *("fewer_groups_at_a_time_NCHW", "fewer_groups_in_a_task_NCHW"),
    ),
    "planes": (
        *("paper_small_NCHW", "primes_NCHW", "dilations_1_3_NCHW"),
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
    ("quads", "paper_small", "data_format is NHWC"),
    ("quads", "width_31_NCHW", "width is no multiple of 4"),
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


def _check(kernel, case, dtype):
    tensors = ours._draw(case, dtype)
    with (
        kernels.force(HighOrderConv=kernel, HighOrderConvGrad=kernel),
        kernels.recorded() as calls,
    ):
        results = ours._all_results(case.bind(tf_capsops.high_order_conv2d), *tensors)
    assert calls == [("HighOrderConv", kernel, 0), ("HighOrderConvGrad", kernel, 0)]
    plain = ours._all_results(case.bind(ours._plain), *tensors)
    exact = ours._exact(tensors)
    truth = ours._reference(case, *exact)
    magnitude = ours._reference(case, *map(abs, exact))
    ours._assert_all_close(results, plain, truth, magnitude)


def _runs(kernel):
    """Yields a parameter for each case and type."""
    for name in PATHS[kernel]:
        for dtype in ours.DTYPES:
            if dtype == tf.float64 and kernel in ("rows", "quads", "channels"):
                continue
            yield pytest.param(kernel, name, dtype, id=f"{kernel}-{name}-{dtype.name}")


if tf.config.list_physical_devices("GPU"):

    @pytest.mark.parametrize(
        "kernel, name, dtype", [run for kernel in PATHS for run in _runs(kernel)]
    )
    def test_forced(kernel, name, dtype):
        with tf.device("GPU:0"):
            _check(kernel, ours._case(name), dtype)

    @pytest.mark.parametrize(
        "kernel, name, dtype", [*_runs("rows"), *_runs("channels")]
    )
    def test_99_kilobytes_of_shared_memory(kernel, name, dtype):
        with tf.device("GPU:0"), kernels.pretend_device(**GPUS[86]):
            _check(kernel, ours._case(name), dtype)

    @pytest.mark.parametrize("kernel, name, why", REFUSALS)
    def test_a_forced_kernel_says_why_it_cannot(kernel, name, why):
        case = ours._case(name)
        _, *inputs = ours._draw(case, tf.float32)
        message = f"HighOrderConv: TF_CAPSOPS_KERNEL asks for the kernel {kernel}, "
        with (
            tf.device("GPU:0"),
            kernels.force(HighOrderConv=kernel),
            pytest.raises(tf.errors.InvalidArgumentError) as caught,
        ):
            case.bind(tf_capsops.high_order_conv2d)(*inputs)
        assert f"{message}which cannot do this because {why}" in caught.value.message
