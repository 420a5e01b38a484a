# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""A small file of images for the commands to train on, with nothing to learn."""

import pathlib

import numpy as np


def save(folder, training, tests):
    """Writes noise.npz: so many images of two classes for training and for tests."""
    random = np.random.default_rng(1)
    arrays = {}
    for part, count in (("train", training), ("test", tests)):
        arrays[f"x_{part}"] = random.random([count, 8, 8, 1], np.float32)
        arrays[f"y_{part}"] = np.arange(count) % 2
    np.savez(pathlib.Path(folder, "noise.npz"), **arrays)
