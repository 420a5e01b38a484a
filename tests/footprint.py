# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measures how much memory a computation takes, in a process of its own."""

import importlib
import json
import os
import pathlib
import re
import sys

import fresh
import tensorflow as tf

_MEASURE = "import footprint, sys; footprint.print_use(*sys.argv[1:])"


def use(prepare, device, few, many):
    """Returns the most memory that a computation took, and the size of its results.

    Both are in bytes. Inputs do not count, because they are there before.

    Args:
        prepare: A function of a test module. It makes inputs, and returns a function
            without arguments that computes results.
        device: The device's name.
        few: Arguments of `prepare`, as JSON has them, for a small computation that goes
            first: it loads kernels.
        many: Those for the one that is measured.
    """
    environment = {} if _is_gpu(device) else {"CUDA_VISIBLE_DEVICES": "-1"}
    environment["TF_FORCE_GPU_ALLOW_GROWTH"] = "false"
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    names = prepare.__module__, prepare.__name__
    sizes = map(json.dumps, (few, many))
    printed = fresh.run(_MEASURE, *names, device, *sizes, **environment)
    return json.loads(printed.splitlines()[-1])


def print_use(module, name, device, few, many):
    """Prints what `use` returns."""
    for gpu in tf.config.list_physical_devices("GPU"):
        # Memory that is there from the start. Of regions that grow, TensorFlow gives
        # more than it was asked for, and counts that.
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=4096)
        tf.config.set_logical_device_configuration(gpu, [limit])
    prepare = getattr(importlib.import_module(module), name)
    with tf.device(device):
        _measured(prepare(*json.loads(few)), device)
        if _is_gpu(device):
            tf.config.experimental.reset_memory_stats(device)
        print(json.dumps(_measured(prepare(*json.loads(many)), device)))


def _measured(compute, device):
    before = _memory(device, "current")
    results = compute()
    results[-1].numpy()  # waits for a GPU
    sizes = [result.shape.num_elements() * result.dtype.size for result in results]
    return _memory(device, "peak") - before, sum(sizes)


def _memory(device, when):
    if _is_gpu(device):
        return tf.config.experimental.get_memory_info(device)[when]
    line = {"current": "VmRSS", "peak": "VmHWM"}[when]
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{line}:\s*(\d+) kB", status)[1])


def _is_gpu(device):
    return device.startswith("GPU")
