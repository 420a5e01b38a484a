# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The options of the benchmark of training steps, for its tests."""

import argparse

from tf_capsops.bench import cases


def training_options(**more):
    """Returns options that measure as little as possible, changed by others."""
    options = {"repeat": 2, "tf32": True, "jit": ["off"], "model": ["capsnet"]}
    options |= {"suite": [cases.TRAINING_SMOKE], "device": ["CPU"]}
    options |= {"dtype": ["float32"], "steps_per_execution": [1, 20]}
    options |= {"rivals": True, "torch_python": None, "start_up": False}
    options |= {"compile_limit": 120}
    options |= {"untuned": False, "batch_size": None, "gpus": [1]}
    options |= {"image_size": None}
    return argparse.Namespace(**{**options, **more})
