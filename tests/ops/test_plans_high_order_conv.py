# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The kernels that HighOrderConv would run on GPUs, planned on a CPU."""

import functools

import pytest
import tensorflow as tf
from descriptions.high_order_conv import OP
from gpus import GPUS, plans

import tf_capsops
from tf_capsops import _library

# The kernel, the image as NHWC, the dtype and the attributes.
PLANS = [
    ("rows", (1, 9, 8, 3), tf.float32, {"kernel_size": 5}),
    ("rows", (2, 9, 4, 3), tf.bfloat16, {"kernel_size": 7}),
    ("rows", (1, 5, 300, 1), tf.float16, {"kernel_size": 3}),
    ("rows", (1, 5, 7, 1), tf.float32, {"kernel_size": 3}),
    ("pixels", (1, 5, 7, 1), tf.float16, {"kernel_size": 3}),
    ("pixels", (1, 5, 8, 3), tf.float64, {"kernel_size": 5}),
    ("pixels", (1, 5, 8, 2), tf.float32, {"kernel_size": 5}),
    ("pixels", (1, 5, 8, 3), tf.float32, {"kernel_size": 5, "dilations": 2}),
    ("pixels", (1, 5, 8, 3), tf.float32, {"kernel_size": (5, 3)}),
    ("channels", (1, 5, 6, 16), tf.float32, {"kernel_size": 7, "groups": 4}),
    ("channels", (1, 5, 6, 64), tf.float16, {"kernel_size": 3, "groups": 1}),
    ("channels", (1, 5, 6, 8), tf.float32, {"kernel_size": 3, "dilations": (2, 1)}),
    ("pixels", (1, 5, 6, 8), tf.float32, {"kernel_size": 3, "dilations": (1, 2)}),
    ("pixels", (1, 5, 6, 12), tf.float32, {"kernel_size": 3, "groups": 6}),
    ("pixels", (1, 2, 3, 2048), tf.float32, {"kernel_size": 3, "groups": 1}),
    ("general", (1, 3, 4, 1), tf.float32, {"kernel_size": 31}),
    ("general", (0, 3, 4, 3), tf.float32, {"kernel_size": 5}),
    ("planes", (1, 5, 8, 3), tf.float32, {"kernel_size": 5, "data_format": "NCHW"}),
    ("planes", (1, 5, 4, 16), tf.float16, {"kernel_size": 7, "data_format": "NCHW"}),
    ("planes", (1, 5, 7, 3), tf.float32, {"kernel_size": 5, "data_format": "NCHW"}),
    ("planes", (1, 5, 8, 3), tf.float64, {"kernel_size": 5, "data_format": "NCHW"}),
    ("planes", (1, 5, 8, 3), tf.float32, {"kernel_size": 9, "data_format": "NCHW"}),
    ("general", (1, 3, 4, 1), tf.float32, {"kernel_size": 31, "data_format": "NCHW"}),
    ("general", (1, 3, 4, 0), tf.float32, {"kernel_size": 3, "data_format": "NCHW"}),
]


def _compute(image, dtype, attributes):
    """Calls the op with an image and its filters, all zeros."""
    size = attributes["kernel_size"]
    height, width = size if isinstance(size, tuple) else (size, size)
    filters = (*image[:3], attributes.get("groups", 1) * height * width)
    tensors = [tf.zeros(shape, dtype) for shape in (image, filters)]
    if attributes.get("data_format") == "NCHW":
        tensors = [tf.transpose(tensor, (0, 3, 1, 2)) for tensor in tensors]
    compute = functools.partial(tf_capsops.high_order_conv2d, **attributes)
    OP.results(compute, None, *tensors)


if _library.build_info()["cuda"]:

    @pytest.mark.parametrize("capability", GPUS)
    @pytest.mark.parametrize("kernel, image, dtype, attributes", PLANS)
    def test_the_first_kernel_that_can(kernel, image, dtype, attributes, capability):
        """No kernel needs more than the 99 KB of shared memory that every GPU has."""
        found = plans(capability, lambda: _compute(image, dtype, attributes))
        assert found == {
            "HighOrderConv": (kernel, 0),
            "HighOrderConvGrad": (kernel, 0),
        }
