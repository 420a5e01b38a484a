# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The kernels that CapsuleConv and its gradients would run on GPUs, seen on a CPU."""

import functools
import time

import pytest
import tensorflow as tf
from descriptions.capsule_conv import OP
from gpus import GPUS, assert_planned, planned, plans

import tf_capsops
from tf_capsops import _library, kernels

OPS = "CapsuleConv", "CapsuleConvBackpropInput", "CapsuleConvBackpropWeights"
WIDE = (2, 6, 6, 32, 4, 4), (3, 3, 32, 32, 4, 4)
SMALL = (2, 6, 5, 3, 4, 4), (3, 2, 3, 4, 4, 4)
BESIDE = {"dilations": 50000, "padding": "SAME"}
HALF = tf.float16, tf.bfloat16

# The types, whether TF32 is allowed, the shapes, the attributes, and the kernels of
# OPS where there is wgmma and elsewhere.
PLANS = {
    "float": ([tf.float32], False, WIDE, {}, "wgmma wgmma mma", "mma mma mma"),
    "tf32": ([tf.float32], True, WIDE, {}, "wgmma wgmma mma", "mma mma mma"),
    # From 2^29 products on, in full tiles, the weight gradient is by wgmma too.
    "many_products": (
        *([tf.float32, *HALF], True, ((8, 14, 14, 32, 4, 4), WIDE[1]), {}),
        *("wgmma wgmma wgmma", "mma mma mma"),
    ),
    "many_products_exact": (
        *([tf.float32], False, ((8, 14, 14, 32, 4, 4), WIDE[1]), {}),
        *("wgmma wgmma wgmma", "mma mma mma"),
    ),
    "many_products_strides": (
        *(HALF, False, ((32, 15, 15, 32, 4, 4), WIDE[1]), {"strides": 2}),
        *("wgmma wgmma mma", "mma mma mma"),
    ),
    "fewer_products": (
        *([tf.float32], True, ((6, 14, 14, 32, 4, 4), WIDE[1]), {}),
        *("wgmma wgmma mma", "mma mma mma"),
    ),
    "many_products_of_few_channels": (
        *([tf.float32], True, ((99, 14, 14, 6, 4, 4), (3, 3, 6, 32, 4, 4)), {}),
        *("wgmma wgmma mma", "mma mma mma"),
    ),
    "half": (HALF, False, WIDE, {}, "wgmma wgmma mma", "mma mma mma"),
    "double": ([tf.float64], False, WIDE, {}, "fma fma fma", None),
    "few_columns": (HALF, False, SMALL, {}, "mma mma mma", None),
    "few_columns_of_one": (
        *(HALF, False, ((2, 6, 6, 32, 4, 4), (3, 3, 32, 4, 4, 4)), {}),
        *("mma wgmma mma", "mma mma mma"),
    ),
    "odd_poses": (
        *(HALF, False, ((2, 6, 6, 9, 4, 3), (3, 3, 9, 9, 3, 4)), {}),
        *("mma wgmma mma", "mma mma mma"),
    ),
    "strides": (HALF, False, WIDE, {"strides": 2}, "wgmma wgmma mma", "mma mma mma"),
    "one_row": (
        *([tf.float32, *HALF], False, ((2, 9, 9, 3, 1, 1), (3, 3, 3, 16, 1, 1)), {}),
        *("gather mma gather", None),
    ),
    "one_row_tf32": (
        *([tf.float32], True, ((9, 28, 28, 1, 1, 1), (9, 9, 1, 256, 1, 1)), {}),
        *("gather mma gather", None),
    ),
    "one_row_of_quads": (
        *([tf.float32], False, ((2, 9, 9, 3, 1, 4), (3, 3, 3, 16, 4, 4)), {}),
        *("wgmma mma mma", "mma mma mma"),
    ),
    "boxes": (
        *([tf.float32], True, ((2, 6, 6, 32, 1, 1), (3, 3, 32, 32, 1, 1)), {}),
        *("tma tma tma", "mma mma mma"),
    ),
    "boxes_of_half": (
        *(HALF, False, ((2, 6, 6, 32, 1, 1), (3, 3, 32, 32, 1, 1)), {}),
        *("tma tma tma", "mma mma mma"),
    ),
    # Tensor cores would add up too many pixels of 16 bits.
    "boxes_of_many_pixels": (
        *(HALF, False, ((1, 1025, 1024, 32, 1, 1), (1, 1, 32, 24, 1, 1)), {}),
        *("tma tma gather", "gather mma gather"),
    ),
    # Of whole quads; a gradient with several phases.
    "few_products": (
        *([tf.float32], True, ((2, 6, 6, 8, 1, 4), (3, 3, 8, 8, 4, 4)), {}),
        *("wgmma wgmma mma", "mma mma mma"),
    ),
    "few_products_strides": (
        *([tf.float32], True, ((2, 6, 6, 8, 1, 4), (3, 3, 8, 8, 4, 4))),
        *({"strides": 2}, "wgmma tma mma", "mma mma mma"),
    ),
    "boxes_exact": (
        *([tf.float32], False, ((2, 6, 6, 32, 1, 1), (3, 3, 32, 32, 1, 1)), {}),
        *("mma mma mma", None),
    ),
    # A phase has one pixel; more phases than 64 are not made one by one.
    "64_phases": (
        *(HALF, False, ((1, 8, 8, 8, 4, 4), (1, 1, 8, 8, 4, 4)), {"strides": 8}),
        *("wgmma wgmma mma", "mma mma mma"),
    ),
    "72_phases": (
        *(HALF, False, ((1, 9, 8, 8, 4, 4), (1, 1, 8, 8, 4, 4)), {"strides": (9, 8)}),
        *("wgmma fma mma", "mma fma mma"),
    ),
    # What no box of a tensor map spans.
    "far_taps": (
        *([tf.float32], True, ((1, 1, 700, 8, 2, 4), (1, 3, 8, 8, 4, 4))),
        *({"dilations": 300}, "wgmma wgmma mma", "mma mma mma"),
    ),
    "far_strides": (
        *([tf.float32], True, ((2, 19, 19, 8, 4, 4), (10, 10, 8, 8, 4, 4))),
        *({"strides": 9}, "wgmma fma mma", "mma fma mma"),
    ),
    "65_rows": (
        *([tf.float32], True, ((1, 5, 5, 8, 65, 4), (2, 2, 8, 8, 4, 4)), {}),
        *("wgmma wgmma mma", "mma mma mma"),
    ),
    "beside": (
        *([tf.float32], False, ((1, 4, 4, 1, 4, 4), (2, 2, 1, 2, 4, 4)), BESIDE),
        *("fma fma fma", None),
    ),
    "empty": (
        *([tf.float32], False, ((0, 6, 6, 3, 4, 4), SMALL[1]), {}),
        *("fma fma fma", None),
    ),
}


def _compute(dtype, shapes, attributes):
    tensors = [tf.zeros(shape, dtype) for shape in shapes]
    compute = functools.partial(tf_capsops.capsule_conv2d, **attributes)
    OP.results(compute, None, *tensors)


if _library.build_info()["cuda"]:

    @pytest.mark.parametrize("capability", GPUS)
    @pytest.mark.parametrize("name", PLANS)
    def test_the_first_kernel_that_can(name, capability):
        assert_planned(capability, OPS, PLANS[name], _compute)

    @pytest.mark.parametrize(
        "capability, name, changes, kernel",
        [
            (86, "one_row_tf32", {"processor_shared": 48 << 10}, "gather"),
            (86, "one_row_tf32", {"processor_shared": 1 << 10}, "mma"),
            (90, "boxes", {"shared": 101376}, "mma"),
        ],
    )
    def test_little_shared_memory(capability, name, changes, kernel):
        dtypes, tf32, *arguments = PLANS[name][:4]
        tf.config.experimental.enable_tensor_float_32_execution(tf32)
        found = planned(capability, lambda: _compute(dtypes[0], *arguments), **changes)
        assert found["CapsuleConv"] == kernel

    @pytest.mark.parametrize(
        "dtype, pose, channels, kernel, packs",
        [
            (tf.float32, (4, 4, 4), (3, 1), 5, ()),
            (tf.float32, (4, 4, 4), (16, 4), 2, (1,)),
            (tf.float32, (4, 4, 4), (17, 4), 2, (0, 1)),
            (tf.float16, (4, 4, 4), (4, 4), 5, ()),
            (tf.bfloat16, (16, 4, 8), (1, 1), 1, ()),
            (tf.float32, (3, 4, 4), (1, 1), 1, (0, 1)),
            (tf.float32, (4, 3, 4), (1, 1), 1, (0,)),
            (tf.float32, (4, 4, 5), (1, 3), 1, (1,)),
            (tf.float32, (4, 4, 9), (1, 2), 1, (0, 1)),
        ],
    )
    def test_a_small_filter_is_not_packed(dtype, pose, channels, kernel, packs):
        """One kernel of `mma` does the forward pass, and one the input's gradient."""
        rows, inner, columns = pose
        image = (1, 9, 20, channels[0], rows, inner)
        weights = (kernel, kernel, *channels, inner, columns)
        mma = dict.fromkeys(OPS, "mma")
        with kernels.force(**mma):
            found = plans(90, lambda: _compute(dtype, (image, weights), {}))
        packed = [place for place, op in enumerate(OPS[:2]) if found[op][1] > 0]
        assert packed == list(packs)

    def test_far_strides_are_planned_at_once():
        """No tap reaches the second pixel, which planning sees without trying 2^27."""
        shapes = (1, 2, 2, 1, 4, 4), (1, 1, 1, 1, 4, 4)
        far = {"strides": 2**28, "dilations": 2}
        begin = time.process_time()
        found = planned(90, lambda: _compute(tf.float32, shapes, far))
        assert time.process_time() - begin < 1
        assert found["CapsuleConvBackpropInput"] == "mma"

    @pytest.mark.parametrize("kernel", ["tma", "gather", "wgmma", "mma"])
    def test_a_kernel_that_cannot_is_not_planned(kernel):
        with kernels.force(CapsuleConv=kernel):
            found = planned(90, lambda: _compute(tf.float64, WIDE, {}))
        assert found["CapsuleConv"] == "none"


def test_taps_beside_the_image_cost_nothing():
    """Of a kernel much larger than the image, what reads nothing is left out."""
    taps = 30001
    image = tf.ones((1, 1, 3, 1, 1, 1))
    weights = tf.reshape(tf.range(taps, dtype=tf.float32), (1, taps, 1, 1, 1, 1))
    with tf.device("CPU"), kernels.recorded() as calls, tf.GradientTape() as tape:
        tape.watch([image, weights])
        output = tf_capsops.capsule_conv2d(image, weights, padding="SAME")
        by_image, by_weights = tape.gradient(output, [image, weights])
    middle = taps // 2
    three = [3 * middle - 3, 3 * middle, 3 * middle + 3]
    assert output[0, 0, :, 0, 0, 0].numpy().tolist() == three[::-1]
    assert by_image[0, 0, :, 0, 0, 0].numpy().tolist() == three
    expected = [0] * taps
    expected[middle - 2 : middle + 3] = [1, 2, 3, 2, 1]
    assert by_weights[0, :, 0, 0, 0, 0].numpy().tolist() == expected
    assert [op for op, _, _ in calls] == list(OPS)
    assert all(workspace < 64 * 1024 for _, _, workspace in calls)
