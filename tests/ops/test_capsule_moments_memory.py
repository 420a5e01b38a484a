# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleMoments never stores votes: the bound on memory, measured."""

import json

import fresh
import pytest

_ALLOWED = 64e6  # bytes beside inputs, results and gradients

# One pass and its gradients, with votes of 680 MB. Prints the most memory that this
# took beside the inputs, and the size of all results, in bytes.
_MEASURE = """
import json, pathlib, re, sys
import tensorflow as tf
import tf_capsops

device, normalize = sys.argv[1:]

def memory(when):
    if device.startswith("GPU"):
        return tf.config.experimental.get_memory_info(device)[when]
    line = {"current": "VmRSS", "peak": "VmHWM"}[when]
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(line + r":\\s*(\\d+) kB", status)[1])

def train(batch, size):
    out = (size - 3) // 2 + 1
    parents = [batch, out, out, 32]
    shapes = [batch, size, size, 32, 4, 4], [3, 3, 32, 32, 4, 4], [*parents, 4, 4]
    sources = poses, weights, precision = [tf.ones(shape) for shape in shapes]
    before = memory("current")
    with tf.GradientTape() as tape:
        tape.watch(sources)
        moments = tf_capsops.capsule_moments(
            poses, None, weights, precision=precision, order=2, strides=2,
            normalize=normalize)
        loss = sum(tf.reduce_sum(each) for each in moments)
    results = *moments, *tape.gradient(loss, sources)
    results[-1].numpy()  # waits for a GPU
    sizes = [result.shape.num_elements() * 4 for result in results]
    return memory("peak") - before, sum(sizes)

for gpu in tf.config.list_physical_devices("GPU"):
    # Memory that is there from the start. Of regions that grow, TensorFlow gives more
    # than it was asked for, and counts that.
    limit = tf.config.LogicalDeviceConfiguration(memory_limit=4096)
    tf.config.set_logical_device_configuration(gpu, [limit])
with tf.device(device):
    train(1, 3)
    if device.startswith("GPU"):
        tf.config.experimental.reset_memory_stats(device)
    print(json.dumps(train(32, 14)))
"""


@pytest.mark.parametrize("normalize", ["parents", "all", "none"])
def test_votes_are_never_stored(normalize, device):
    environment = {} if device.startswith("GPU") else {"CUDA_VISIBLE_DEVICES": "-1"}
    environment["TF_FORCE_GPU_ALLOW_GROWTH"] = "false"
    printed = fresh.run(*(_MEASURE, device, normalize), **environment)
    peak, results = json.loads(printed.splitlines()[-1])
    assert results <= peak <= results + _ALLOWED
