# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Folders of pictures with masks of classes."""

import numpy as np
import tensorflow as tf


def masked_pictures(folder, count=6, grays=(0, 255), size=(8, 16)):
    """Pictures and masks of the same names, in `images` and `masks`."""
    random = np.random.default_rng(5)
    for number in range(count):
        mask = np.resize(np.uint8(grays), size)
        random.shuffle(mask.reshape(-1))
        for name, picture in (("images", mask // 2 + 20), ("masks", mask)):
            path = folder / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            png = tf.io.encode_png(picture[..., None])
            path.write_bytes(png.numpy())
    return folder
