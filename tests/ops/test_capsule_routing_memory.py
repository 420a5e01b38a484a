# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""CapsuleRouting never stores its predictions: the bound on memory, measured."""

import json

import fresh
import pytest

# Bytes beside inputs, output and gradients, by order of the derivatives. Inputs in
# blocks are copies.
_ALLOWED = {1: 64e6, 2: 256e6}

# Routes and differentiates with predictions of 604 MB. Prints the most memory that this
# took beside the inputs, and the size of all results, in bytes.
_MEASURE = """
import json, pathlib, re, sys
import tensorflow as tf
import tf_capsops

device, dtype, op = sys.argv[1], tf.as_dtype(sys.argv[2]), sys.argv[3]
order = int(sys.argv[4])
batch, in_caps = {1: (64, 4608), 2: (256, 1152)}[order]
out_caps, out_dim, in_dim = 32, 16, 8

def memory(when):
    if device.startswith("GPU"):
        return tf.config.experimental.get_memory_info(device)[when]
    line = {"current": "VmRSS", "peak": "VmHWM"}[when]
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(line + r":\\s*(\\d+) kB", status)[1])

def train(batch, in_caps):
    grad = tf.ones([batch, out_caps, out_dim], dtype)
    weights = [in_caps, out_caps, out_dim, in_dim]
    shapes = [batch, in_caps, in_dim], weights, weights[:2]
    # Filled in place: what a computation gave back, this process might still hold.
    inputs = [tf.ones(shape, dtype) for shape in shapes]
    before = memory("current")
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(inputs)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = OPS[op](*inputs)
        results = output, *tape.gradient(output, inputs, grad)
    del tape
    if order == 2:
        results = outer.gradient(results[1:], inputs, inputs)
    output.numpy()  # waits for a GPU
    sizes = [result.shape.num_elements() * dtype.size for result in results]
    return memory("peak") - before, sum(sizes)

for gpu in tf.config.list_physical_devices("GPU"):
    # Memory that is there from the start. Of regions that grow, TensorFlow gives more
    # than it was asked for, and counts that.
    limit = tf.config.LogicalDeviceConfiguration(memory_limit=4096)
    tf.config.set_logical_device_configuration(gpu, [limit])
bare = tf.load_op_library(tf_capsops.library_path())
OPS = {"public": tf_capsops.capsule_routing, "bare": bare.capsule_routing}
with tf.device(device):
    train(2, 3)
    if device.startswith("GPU"):
        tf.config.experimental.reset_memory_stats(device)
    print(json.dumps(train(batch, in_caps)))
"""


@pytest.mark.parametrize(
    "op, dtype, order",
    [
        ("public", "float32", 1),
        ("bare", "bfloat16", 1),
        pytest.param("public", "float32", 2, marks=pytest.mark.slow),
    ],
)
def test_predictions_are_never_stored(op, dtype, order, device):
    environment = {} if device.startswith("GPU") else {"CUDA_VISIBLE_DEVICES": "-1"}
    environment["TF_FORCE_GPU_ALLOW_GROWTH"] = "false"
    printed = fresh.run(*(_MEASURE, device, dtype, op, order), **environment)
    peak, results = json.loads(printed.splitlines()[-1])
    assert results <= peak <= results + _ALLOWED[order]
