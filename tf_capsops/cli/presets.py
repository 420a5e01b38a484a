# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Presets of networks and of their training, by the size of the images."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Distortion:
    """The largest random changes: pixels, degrees, and a share of the image's size."""

    shift: float = 0.0
    degrees: float = 0.0
    zoom: float = 0.0


@dataclasses.dataclass(frozen=True)
class Preset:
    """Arguments of the function in `models`, and the defaults of `train`.

    Batch and distortion are those of images of about 28 pixels unless it says others.
    """

    network: dict
    epochs: int
    learning_rate: float
    batch_size: int = 128
    distortion: Distortion = Distortion(shift=2.0)


# How all networks for images of 8 to 15 pixels are trained.
_SMALL = {
    "batch_size": 32,
    "learning_rate": 0.003,
    "distortion": Distortion(shift=0.5, degrees=7.0, zoom=0.1),
}

# By network and name. Each network has those that `fitting` names.
PRESETS = {
    "capsnet": {
        # For images of 8 to 15 pixels: half a minute on two cores for scikit-learn's
        # digits.
        "small": Preset(
            network={
                "filters": 64,
                "kernel_size": 3,
                "primary_channels": 16,
                "primary_dim": 8,
                "primary_kernel_size": 3,
                "decoder_units": (256, 512),
                # With the paper's 0.0005, a sum over 64 pixels instead of 784 counts
                # for too little, and the reconstructions stay faint.
                "reconstruction_weight": 0.02,
            },
            epochs=100,
            **_SMALL,
        ),
        # For images of about 28 pixels on a processor: a thirtieth of the paper's
        # network.
        "compact": Preset(
            network={
                "filters": 64,
                "kernel_size": 9,
                "primary_channels": 8,
                "primary_dim": 8,
                "primary_kernel_size": 9,
                "decoder_units": (256, 512),
            },
            epochs=10,
            learning_rate=0.002,
        ),
        # The network of Sabour et al. (2017) and their shifts by up to two pixels.
        "sabour": Preset(
            network={},
            epochs=50,
            learning_rate=0.001,
        ),
    },
    "p_capsnet": {
        "small": Preset(
            network={"kernel_sizes": (3, 3, 3), "strides": (1, 1, 1)},
            epochs=60,
            **_SMALL,
        ),
        "compact": Preset(
            network={},
            epochs=20,
            learning_rate=0.003,
        ),
    },
    "matrix_capsnet": {
        "small": Preset(
            network={
                "filters": 32,
                "kernel_size": 3,
                "strides": 1,
                "primary_capsules": 8,
                "capsules": (8, 8),
                "capsule_kernel_sizes": (3, 2),
            },
            epochs=60,
            **_SMALL,
        ),
        # The network of Hinton et al. (2018).
        "compact": Preset(
            network={},
            epochs=20,
            batch_size=64,
            learning_rate=0.003,
        ),
    },
    "efficient_capsnet": {
        "small": Preset(
            network={
                "filters": (32, 32, 64),
                "kernel_sizes": (3, 3, 3),
                "strides": (1, 1, 1),
            },
            epochs=60,
            **_SMALL,
        ),
        # The network of Mazzia et al. (2021), without its decoder.
        "compact": Preset(
            network={},
            epochs=30,
            learning_rate=0.003,
        ),
    },
    "convnet": {
        "small": Preset(
            network={
                "filters": (32, 32),
                "kernel_size": 3,
                "pool_size": 2,
                "units": (128,),
            },
            epochs=60,
            **_SMALL,
        ),
        "compact": Preset(
            network={"filters": (32, 64), "pool_size": 2, "units": (128,)},
            epochs=20,
            learning_rate=0.001,
        ),
        # The baseline of Sabour et al. (2017).
        "sabour": Preset(
            network={},
            epochs=50,
            learning_rate=0.001,
        ),
    },
}

# By preset and rule, the last margin of the spread loss where it is not the paper's
# 0.9. In the paper's network EM's activations of two classes come to differ by about
# 0.5. Beyond that margin every image adds to the loss alike, the certain ones too.
LAST_MARGINS = {("compact", "em"): 0.3}


def fitting(image_shape):
    """The name of the preset for images `(height, width, channels)`."""
    return "small" if min(image_shape[:2]) < 16 else "compact"
