# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Arguments and layers that networks for segmentation have in common."""

import keras

from tf_capsops.arguments import positive_int

_AXES = {2: "(height, width, channels)", 3: "(depth, height, width, channels)"}


def checked_sizes(owner, input_shape, num_classes, multiple=1, axes=2):
    """Returns the shape of images or volumes, and the number of classes.

    Args:
      owner: the name that messages begin with.
      input_shape: ints; all but the channels may be None, which is any size.
      num_classes: an int.
      multiple: what the sizes must be a multiple of.
      axes: 2 for images, 3 for volumes.

    Raises:
      ValueError: if they are not; the message names owner and argument.
    """
    if not isinstance(input_shape, (list, tuple)) or len(input_shape) != axes + 1:
        raise ValueError(
            f"{owner}: input_shape must be {_AXES[axes]}, got {input_shape!r}"
        )
    *sizes, channels = input_shape
    sizes = [
        size if size is None else positive_int(owner, "input_shape", size)
        for size in sizes
    ]
    if any(size is not None and size % multiple for size in sizes):
        raise ValueError(
            f"{owner}: all of input_shape but the channels must be multiples of "
            f"{multiple}, got {tuple(input_shape)}"
        )
    channels = positive_int(owner, "input_shape", channels)
    return (*sizes, channels), positive_int(owner, "num_classes", num_classes)


def sizes_of(owner, sizes, size):
    """Returns the entry of a table of layers' sizes.

    Raises:
      ValueError: if there is none; the message names owner and the entries.
    """
    if size not in sizes:
        names = " or ".join(map(repr, sizes))
        raise ValueError(f"{owner}: size must be {names}, got {size!r}")
    return sizes[size]


def probabilities(features, num_classes, axes=2):
    """Returns a convolution of 1 pixel to probabilities, in float32.

    A softmax over the classes, or a sigmoid for one class.
    """
    kind = {2: keras.layers.Conv2D, 3: keras.layers.Conv3D}[axes]
    return kind(
        num_classes,
        1,
        activation="sigmoid" if num_classes == 1 else "softmax",
        data_format="channels_last",
        dtype="float32",
        name="scores",
    )(features)
