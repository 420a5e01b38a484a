# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each of CapsuleConv's CUDA kernels, forced by name, on a GPU of any kind."""

import contextlib

import pytest
import tensorflow as tf
import test_capsule_conv as ours
from gpus import GPUS, has_wgmma

import tf_capsops
from tf_capsops import kernels

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


def _check(kernel, name, dtype, tf32=False, device=None):
    case = ours._case(name)
    tensors = ours._draw(case, dtype)
    rounded = [ours._rounded_to_tf32(t) for t in tensors] if tf32 else tensors
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    weights = "fma" if kernel == "fma" else "mma"
    forced = {**dict.fromkeys(IMAGE, kernel), WEIGHTS: weights}
    other = kernels.pretend_device(**device) if device else contextlib.nullcontext()
    with (
        tf.device("GPU:0"),
        other,
        kernels.force(**forced),
        kernels.recorded() as calls,
    ):
        ours._assert_close_to_reference(case, tensors, rounded)
    assert {op: found for op, found, _ in calls} == forced


def _runs(kernel, names):
    """Yields a parameter for each case, type and precision."""
    for name in names:
        for dtype in ours.DTYPES:
            if dtype == tf.float64 and kernel != "fma":
                continue
            for tf32 in (False, True) if dtype == tf.float32 else (False,):
                if kernel == "wgmma" and dtype == tf.float32 and not tf32:
                    continue
                tag = f"{kernel}-{name}-{dtype.name}{'-tf32' * tf32}"
                rounded = tf32 and kernel != "fma"
                yield pytest.param(kernel, name, dtype, rounded, id=tag)


if tf.config.list_physical_devices("GPU"):
    MAJOR, MINOR = tf.config.experimental.get_device_details(
        tf.config.list_physical_devices("GPU")[0]
    )["compute_capability"]
    RUNS = [*_runs("mma", MMA), *_runs("fma", FMA)]
    if has_wgmma(10 * MAJOR + MINOR):
        RUNS += _runs("wgmma", WGMMA)

    @pytest.mark.parametrize("kernel, name, dtype, tf32", RUNS)
    def test_forced(kernel, name, dtype, tf32):
        _check(kernel, name, dtype, tf32)

    # Their planning differs by shared memory; launches of 8.x do not overlap.
    @pytest.mark.parametrize("capability", [80, 86])
    @pytest.mark.parametrize("kernel, name, dtype, tf32", [*_runs("mma", MMA)])
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
            kernels.force(CapsuleConv=kernel),
            pytest.raises(tf.errors.InvalidArgumentError) as caught,
        ):
            case.bind(tf_capsops.capsule_conv2d)(*inputs)
        message = (
            f"CapsuleConv: TF_CAPSOPS_KERNEL asks for the kernel {kernel}, "
            "which cannot do this"
        )
        assert f"{message} because {why}" in caught.value.message
