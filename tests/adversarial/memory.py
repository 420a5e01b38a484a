# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""How much memory calls take, of the process or of a GPU."""

import pathlib
import re

import tensorflow as tf


def is_gpu(device):
    return device.startswith("GPU")


def peak(device="CPU:0"):
    """Returns the most bytes that were held since this was called last.

    Args:
        device: Its name. Of a CPU, all that the process holds counts.
    """
    if is_gpu(device):
        most = tf.config.experimental.get_memory_info(device)["peak"]
        tf.config.experimental.reset_memory_stats(device)
        return most
    status = pathlib.Path("/proc/self/status").read_text()
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return int(re.search(r"VmHWM:\s*(\d+)", status)[1]) << 10
