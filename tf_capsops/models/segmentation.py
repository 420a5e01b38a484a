# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The output layer that segmentation networks share."""

import keras

from tf_capsops.layers import Conv3D


def probabilities(features, num_classes, axes=2):
    """Applies a convolution of 1 pixel that returns probabilities, in float32.

    Its activation is a softmax over the classes, or a sigmoid for one class.
    """
    kind = {2: keras.layers.Conv2D, 3: Conv3D}[axes]
    return kind(
        num_classes,
        1,
        activation="sigmoid" if num_classes == 1 else "softmax",
        data_format="channels_last",
        dtype="float32",
        name="scores",
    )(features)
