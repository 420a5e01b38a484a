# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each of InqConv's CUDA kernels, forced by name, on a GPU of any kind."""

import contextlib

import pytest
import tensorflow as tf
import test_inq_conv as ours
from gpus import GPUS, has_wgmma

import tf_capsops
from tf_capsops import kernels

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


def _check(kernel, name, dtype, tf32=False, device=None):
    case = ours._case(name)
    tensors = ours._draw(case, dtype)
    rounded = [*map(ours._rounded_to_tf32, tensors[:2]), *tensors[2:]] if tf32 else None
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    forced = dict.fromkeys(OPS, kernel)
    other = kernels.pretend_device(**device) if device else contextlib.nullcontext()
    with (
        tf.device("GPU:0"),
        other,
        kernels.force(**forced),
        kernels.recorded() as calls,
    ):
        ours._assert_close_to_reference(case, tensors, rounded)
    assert {op: found for op, found, _ in calls} == forced


def _runs(kernel, names, dtypes):
    """Yields a parameter for each case, type and precision."""
    for name in names:
        for dtype in dtypes:
            for tf32 in (False, True) if dtype == tf.float32 else (False,):
                tag = f"{kernel}-{name}-{dtype.name}{'-tf32' * tf32}"
                rounded = tf32 and kernel != "fma"
                yield pytest.param(kernel, name, dtype, rounded, id=tag)


if tf.config.list_physical_devices("GPU"):
    MAJOR, MINOR = tf.config.experimental.get_device_details(
        tf.config.list_physical_devices("GPU")[0]
    )["compute_capability"]
    FLOATS, HALVES = [tf.float32, tf.float64], [tf.float16, tf.bfloat16]
    MMA_RUNS = [*_runs("mma", MMA, [tf.float32, *HALVES])]
    RUNS = [*MMA_RUNS, *_runs("fma", FMA, FLOATS), *_runs("widened", FMA, HALVES)]
    if has_wgmma(10 * MAJOR + MINOR):
        RUNS += _runs("wgmma", WGMMA, [tf.float32, *HALVES])

    @pytest.mark.parametrize("kernel, name, dtype, tf32", RUNS)
    def test_forced(kernel, name, dtype, tf32):
        _check(kernel, name, dtype, tf32)

    # Their planning differs by shared memory; launches of 8.x do not overlap.
    @pytest.mark.parametrize("capability", [80, 86])
    @pytest.mark.parametrize("kernel, name, dtype, tf32", MMA_RUNS)
    def test_planned_for_other_gpus(kernel, name, dtype, tf32, capability):
        device = {"capability": capability, **GPUS[capability]}
        _check(kernel, name, dtype, tf32, device)

    @pytest.mark.parametrize("kernel, name, dtype, why", REFUSALS)
    def test_a_forced_kernel_says_why_it_cannot(kernel, name, dtype, why):
        case = ours._case(name)
        _, *inputs = ours._draw(case, dtype)
        with (
            tf.device("GPU:0"),
            kernels.pretend_device(capability=90),
            kernels.force(InqConv=kernel),
            pytest.raises(tf.errors.InvalidArgumentError) as caught,
        ):
            case.bind(tf_capsops.inq_conv2d)(*inputs)
        message = (
            f"InqConv: TF_CAPSOPS_KERNEL asks for the kernel {kernel}, "
            "which cannot do this"
        )
        assert f"{message} because {why}" in caught.value.message
