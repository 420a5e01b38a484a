# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""HighOrderConv's working space on a CPU: bounded, however many channels there are."""

import footprint
import pytest
import tensorflow as tf

import tf_capsops

_ALLOWED = 64e6  # bytes beside inputs and results, which are a few MB


def training(data_format, channels, groups):
    last = channels, groups * 9
    shapes = [[1, n, 1, 1] if data_format == "NCHW" else [1, 1, 1, n] for n in last]
    inputs = [tf.ones(shape) for shape in shapes]

    def train():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = tf_capsops.high_order_conv2d(*inputs, 3, groups, 1, data_format)
        return output, *tape.gradient(output, inputs)

    return train


@pytest.mark.ci
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("groups", [1, 64])
def test_many_channels(groups, data_format):
    sizes = (data_format, 8, 2), (data_format, 2**18, groups)
    peak, _ = footprint.use(training, "CPU:0", *sizes)
    assert peak < _ALLOWED
