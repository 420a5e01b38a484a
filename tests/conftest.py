# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Options of pytest, and which processes run tests.

xdist's own process runs none, so it does not wait for TensorFlow.
"""

import os


def pytest_addoption(parser):
    parser.addoption(
        "--all",
        action="store_true",
        help="run every case in every type, and tests marked slow or ci",
    )
    parser.addoption(
        "--slow",
        action="store_true",
        help="run tests marked slow or ci, too",
    )
    parser.addoption(
        "--ci",
        action="store_true",
        help="run tests marked ci, too, and draw more inputs, as CI does",
    )
    parser.addoption(
        "--jit",
        action="store_true",
        help="run the ops inside tf.function(jit_compile=True)",
    )


def pytest_configure(config):
    is_worker = hasattr(config, "workerinput")
    has_workers = not is_worker and config.getoption("dist", "no") != "no"
    if config.option.collectonly or not has_workers:
        config.pluginmanager.import_plugin("running")


def pytest_xdist_auto_num_workers(config):
    """Answers `-n auto`. Each process takes up to 2 GB, and as much of a GPU."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, 4 if cores > 4 and _has_gpus() else 16)


def _has_gpus():
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))
