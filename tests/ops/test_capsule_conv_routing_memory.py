# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleConvRouting stores a part of its votes: the bound on memory, measured."""

import json

import fresh
import pytest

_ALLOWED = 64 * 2**20  # bytes beside inputs, output and gradients

# Votes of 268 MB each: of images and volumes, also transposed, and of weights for each
# type.
_SIZES = {
    "image": ([2, 128, 128], [3, 3], {}),
    "volume": ([1, 32, 32, 32], [3, 3, 3], {}),
    "image_up": ([2, 64, 64], [4, 4], {"transposed": True, "strides": 2}),
    "volume_up": ([1, 16, 16, 16], [2, 2, 2], {"transposed": True, "strides": 2}),
    "types": ([2, 128, 128], [3, 3, 8], {}),
}

# Prints the most memory that routing and its gradients took beside the inputs, and the
# size of all results, in bytes.
_MEASURE = """
import json, pathlib, re, sys
import tensorflow as tf
import tf_capsops

device, images, kernel, attributes = sys.argv[1], *map(json.loads, sys.argv[2:])

def memory(when):
    if device.startswith("GPU"):
        return tf.config.experimental.get_memory_info(device)[when]
    line = {"current": "VmRSS", "peak": "VmHWM"}[when]
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(line + r":\\s*(\\d+) kB", status)[1])

def train(images):
    shapes = [*images, 8, 4], [*kernel, 4, 8, 32], [8, 32], [8, 8]
    inputs = [tf.fill(shape, 0.01) for shape in shapes]
    before = memory("current")
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = tf_capsops.capsule_conv_routing(
            *inputs, padding="SAME", iterations=2, **attributes)
    results = output, *tape.gradient(output, inputs)
    results[-1].numpy()  # waits for a GPU
    sizes = [result.shape.num_elements() * 4 for result in results]
    # TensorFlow keeps the gradient of the sum of the output, too.
    return memory("peak") - before, sum(sizes) + sizes[0]

for gpu in tf.config.list_physical_devices("GPU"):
    # Memory that is there from the start. Of regions that grow, TensorFlow gives more
    # than it was asked for, and counts that.
    limit = tf.config.LogicalDeviceConfiguration(memory_limit=4096)
    tf.config.set_logical_device_configuration(gpu, [limit])
with tf.device(device):
    train([1] + [2] * (len(images) - 1))
    if device.startswith("GPU"):
        tf.config.experimental.reset_memory_stats(device)
    print(json.dumps(train(images)))
"""


@pytest.mark.parametrize("name", _SIZES)
def test_votes_are_not_stored(name, device):
    environment = {} if device.startswith("GPU") else {"CUDA_VISIBLE_DEVICES": "-1"}
    environment["TF_FORCE_GPU_ALLOW_GROWTH"] = "false"
    arguments = map(json.dumps, _SIZES[name])
    printed = fresh.run(_MEASURE, device, *arguments, **environment)
    peak, results = json.loads(printed.splitlines()[-1])
    assert results <= peak <= results + _ALLOWED
