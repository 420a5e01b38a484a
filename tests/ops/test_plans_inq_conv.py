# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The kernels that InqConv and its gradient would run on GPUs, seen on a CPU."""

import functools

import pytest
import tensorflow as tf
from descriptions.inq_conv import OP
from gpus import GPUS, assert_planned

import tf_capsops
from tf_capsops import _library

OPS = "InqConv", "InqConvBackpropInput"
WIDE = (2, 6, 6, 32), (3, 3, 32, 64)
FLOAT, HALF, BFLOAT = tf.float32, tf.float16, tf.bfloat16

# The types, whether TF32 is allowed, the shapes, the attributes, and the kernels of
# OPS where there is wgmma and elsewhere.
PLANS = {
    "float": ([FLOAT], False, WIDE, {}, "wgmma wgmma", "mma mma"),
    "tf32": ([FLOAT], True, WIDE, {}, "wgmma wgmma", "mma mma"),
    "half": ([HALF, BFLOAT], False, WIDE, {}, "wgmma wgmma", "mma mma"),
    "double": ([tf.float64], False, WIDE, {}, "fma fma", None),
    "few_columns": ([FLOAT], False, ((2, 6, 6, 9), (3, 3, 9, 16)), {}, "mma mma", None),
    "channels_33": (
        *([FLOAT, HALF, BFLOAT], False, ((2, 6, 6, 33), (3, 3, 33, 33)), {}),
        *("mma mma", None),
    ),
    "bits_7": ([FLOAT, BFLOAT], False, WIDE, {"bits": 7}, "wgmma wgmma", "mma mma"),
    # Float16 has no powers of two enough.
    "bits_7_of_half": ([HALF], False, WIDE, {"bits": 7}, "widened widened", None),
    "strides": ([FLOAT, HALF], False, WIDE, {"strides": 2}, "wgmma wgmma", "mma mma"),
    "72_phases": (
        *([FLOAT], False, ((1, 9, 8, 32), (1, 1, 32, 64)), {"strides": (9, 8)}),
        *("wgmma fma", "mma fma"),
    ),
    "72_phases_of_half": (
        *([HALF], False, ((1, 9, 8, 32), (1, 1, 32, 64)), {"strides": (9, 8)}),
        *("wgmma widened", "mma widened"),
    ),
    "empty": ([FLOAT], False, ((0, 6, 6, 3), (3, 3, 3, 4)), {}, "fma fma", None),
}


def _compute(dtype, shapes, attributes):
    image, codes = tf.zeros(shapes[0], dtype), tf.zeros(shapes[1], tf.uint8)
    compute = functools.partial(tf_capsops.inq_conv2d, **attributes)
    OP.results(compute, None, image, codes, 0)


if _library.build_info()["cuda"]:

    @pytest.mark.parametrize("capability", GPUS)
    @pytest.mark.parametrize("name", PLANS)
    def test_the_first_kernel_that_can(name, capability):
        assert_planned(capability, OPS, PLANS[name], _compute)
