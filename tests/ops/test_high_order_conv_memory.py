# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""HighOrderConv's working space on a CPU: bounded, however many channels there are."""

import fresh
import pytest

_ALLOWED = 64e6  # bytes beside inputs and results, which are a few MB

# Prints the most memory in bytes that gradients took beside the inputs. Arguments:
# channels, groups, data_format.
_MEASURE = """
import pathlib, re, sys
import tensorflow as tf
import tf_capsops

def memory(line):
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(line + r":\\s*(\\d+) kB", status)[1])

def train(channels, groups):
    last = channels, groups * 9
    shapes = [[1, n, 1, 1] if sys.argv[3] == "NCHW" else [1, 1, 1, n] for n in last]
    inputs = [tf.ones(shape) for shape in shapes]
    before = memory("VmRSS")
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = tf_capsops.high_order_conv2d(*inputs, 3, groups, 1, sys.argv[3])
    tape.gradient(output, inputs)
    return memory("VmHWM") - before

train(8, 2)
print(train(int(sys.argv[1]), int(sys.argv[2])))
"""


@pytest.mark.ci
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("groups", [1, 64])
def test_many_channels(groups, data_format):
    printed = fresh.run(_MEASURE, 2**18, groups, data_format, CUDA_VISIBLE_DEVICES="-1")
    assert int(printed.split()[-1]) < _ALLOWED
