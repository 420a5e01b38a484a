# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Presets of networks and of their training, by the size of the images."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Distortion:
    """The largest random changes of training images.

    Masks are shifted, turned, zoomed, flipped and bent with their images.

    Args:
      shift: pixels by which images are shifted.
      degrees: angle by which images are turned.
      zoom: change of scale, as a share of the image's size.
      flip: the probability that left and right are exchanged.
      brightness: the number added to all pixels, which are from 0 to 1.
      contrast: change of the pixels' distances from their mean, as a share of these.
      erase: the share of the image's area in a rectangle that the mean replaces.
      elastic: pixels by which images are bent.
    """

    shift: float = 0.0
    degrees: float = 0.0
    zoom: float = 0.0
    flip: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    erase: float = 0.0
    elastic: float = 0.0

    @property
    def entries(self):
        """Entries for `config.json`; those added later only if they are not zero."""
        entries = dataclasses.asdict(self)
        first = ("shift", "degrees", "zoom")
        return {key: x for key, x in entries.items() if x or key in first}


@dataclasses.dataclass(frozen=True)
class Preset:
    """Arguments of the function in `models`, and the defaults of `train`.

    By default, batch size and distortion suit images of about 28 pixels.
    """

    network: dict
    epochs: int
    learning_rate: float
    batch_size: int = 128
    distortion: Distortion = Distortion(shift=2.0)


# Training settings for images of 8 to 15 pixels.
_SMALL = {
    "batch_size": 32,
    "learning_rate": 0.003,
    "distortion": Distortion(shift=0.5, degrees=7.0, zoom=0.1),
}

# Training settings for images of 48 to 128 pixels.
_LARGE = {"batch_size": 32, "distortion": Distortion(shift=4.0)}

# Presets by network and name. Every network has the presets that `fitting` names.
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
        # For larger images: a stride of 4 instead of 2 leaves a quarter of the primary
        # capsules, and the small decoder an eighth of the paper's weights.
        "large": Preset(
            network={
                "filters": 64,
                "kernel_size": 9,
                "primary_channels": 8,
                "primary_dim": 8,
                "primary_kernel_size": 9,
                "primary_strides": 4,
                "decoder_units": (128, 128),
                # The paper's sum is over 784 values; here it is over up to 49,152.
                "reconstruction_weight": 0.00002,
            },
            epochs=30,
            learning_rate=0.002,
            **_LARGE,
        ),
        # The network of Sabour et al. (2017) and their shifts by up to two pixels.
        "sabour": Preset(
            network={},
            epochs=50,
            learning_rate=0.001,
        ),
    },
    "p_capsnet": {
        "large": Preset(
            network={
                "filters": (8, 16, 16, 16),
                "kernel_sizes": (5, 3, 3, 3),
                "strides": (2, 2, 2, 1),
            },
            epochs=30,
            learning_rate=0.003,
            **_LARGE,
        ),
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
        # The network that Chen et al. published with their code, CAFFE-CapsNet, as
        # examples/mnist/new_capsule_train.prototxt.
        "chen": Preset(
            network={
                "filters": (1, 4, 8, 4),
                "kernel_sizes": (3, 3, 3, 3),
                "strides": (2, 1, 2, 1),
                "pose_shape": ((4, 8), (4, 16), (4, 8), (4, 16), (4, 8)),
                "negative_slope": 0.1,
                "squash_size": 8,
                "use_bias": False,
            },
            epochs=20,
            learning_rate=0.003,
        ),
        # Has as many parameters as the smallest network of Chen et al. (2019): 3,888.
        "tiny": Preset(
            network={
                "filters": (2, 2, 4, 2),
                "kernel_sizes": (3, 3, 3, 3),
                "strides": (2, 1, 2, 1),
                "pose_shape": ((4, 4), (4, 4), (4, 4), (4, 4), (4, 1)),
                "negative_slope": 0.1,
                "use_bias": False,
            },
            epochs=60,
            learning_rate=0.02,
            distortion=Distortion(shift=1.0),
        ),
    },
    "matrix_capsnet": {
        "large": Preset(
            network={
                "filters": 64,
                "kernel_size": 7,
                "strides": 4,
                "primary_capsules": 16,
                "capsules": (16, 16),
                "capsule_strides": (2, 2),
            },
            epochs=30,
            learning_rate=0.003,
            **_LARGE,
        ),
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
        "large": Preset(
            network={"strides": (2, 2, 2, 2)},
            epochs=30,
            learning_rate=0.003,
            **_LARGE,
        ),
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
        "large": Preset(
            network={
                "filters": (32, 64, 128, 128),
                "kernel_size": 3,
                "pool_size": 2,
                "units": (128,),
            },
            epochs=30,
            learning_rate=0.001,
            **_LARGE,
        ),
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

_DEEP = Preset(network={"size": "small"}, epochs=30, learning_rate=0.002)
PRESETS["deepcaps"] = {
    "small": dataclasses.replace(
        _DEEP, batch_size=_SMALL["batch_size"], distortion=_SMALL["distortion"]
    ),
    "compact": _DEEP,
    "large": dataclasses.replace(_DEEP, **_LARGE),
    # The network of Rajasegaran et al. (2019).
    "paper": dataclasses.replace(_DEEP, network={}, learning_rate=0.001),
}

# Networks for segmentation, which read masks of classes, and their learning rates.
_RATES = {"segcaps": 0.005, "ucaps3d": 0.003, "unet": 0.003}
SEGMENTERS = tuple(_RATES)
OF_VOLUMES = ("ucaps3d",)  # the others read images
MULTIPLES = {"segcaps": 8, "ucaps3d": 8}  # image sizes must be multiples of these


def _for_masks(rate):
    """Returns presets of a network for masks, which do not distort images."""
    small = Preset(
        network={"size": "small"},
        epochs=60,
        batch_size=32,
        learning_rate=rate,
        distortion=Distortion(),
    )
    return {
        "small": small,
        "compact": small,
        "large": dataclasses.replace(small, epochs=30, batch_size=8),
        # The networks of the papers.
        "paper": dataclasses.replace(
            small, network={}, epochs=30, batch_size=4, learning_rate=0.001
        ),
    }


PRESETS |= {name: _for_masks(rate) for name, rate in _RATES.items()}
PRESETS["segcaps"]["large"] = dataclasses.replace(
    PRESETS["segcaps"]["large"], batch_size=4, learning_rate=0.0015
)

# The routing rules of matrix_capsnet, the default one first.
RULES = ("em", "vb", "dynamic", "inverted-attention", "self-attention")

# Last margins of the spread loss by preset and rule, if not the paper's 0.9. In the
# paper's network, EM's activations of two classes differ by at most about 0.5. With a
# larger margin, even images that are classified with certainty add to the loss.
LAST_MARGINS = {("compact", "em"): 0.3}


def read_masks(model, preset):
    """Whether a network reads masks, judged by its name or its preset's name.

    Args:
      model: a name in `PRESETS`, or None for the network that suits the data.
      preset: one of its presets, or None.
    """
    if model:
        return model in SEGMENTERS
    return preset in PRESETS["segcaps"] and preset not in PRESETS["capsnet"]


def fitting(image_shape):
    """Returns the name of the preset for images `(..., height, width, channels)`."""
    smallest = min(image_shape[-3:-1])
    if smallest < 16:
        return "small"
    return "compact" if smallest < 48 else "large"
