# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checks of the sizes of images and networks."""

import keras
import tensorflow as tf

from tf_capsops.arguments import positive_int

_AXES = {2: "(height, width, channels)", 3: "(depth, height, width, channels)"}


def checked_sizes(
    owner, input_shape, num_classes, multiple=1, axes=2, may_be_open=False
):
    """Checks and returns the shape of images or volumes, and the number of classes.

    Args:
      owner: the name that messages begin with.
      input_shape: positive ints, the channels last.
      num_classes: a positive int.
      multiple: all of `input_shape` except the channels must be multiples of this.
      axes: 2 for images, 3 for volumes.
      may_be_open: whether sizes other than the channels may be None, for any size.

    Raises:
      ValueError: if an argument is not as above; the message names owner and argument.
    """
    if not isinstance(input_shape, (list, tuple)) or len(input_shape) != axes + 1:
        raise ValueError(
            f"{owner}: input_shape must be {_AXES[axes]}, got {input_shape!r}"
            f"{_other_kind(input_shape, axes)}"
        )
    *sizes, channels = input_shape
    sizes = [
        None
        if size is None and may_be_open
        else positive_int(owner, "input_shape", size)
        for size in sizes
    ]
    if any(size is not None and size % multiple for size in sizes):
        raise ValueError(
            f"{owner}: all of input_shape but the channels must be multiples of "
            f"{multiple}, got {tuple(input_shape)}"
        )
    channels = positive_int(owner, "input_shape", channels)
    return (*sizes, channels), positive_int(owner, "num_classes", num_classes)


def _other_kind(shape, axes):
    """Returns the end of a message about a shape that volumes or images have."""
    if not isinstance(shape, (list, tuple)) or len(shape) != 6 - axes:
        return ""
    known = "images, not volumes" if axes == 2 else "volumes, not images"
    return f": the network reads {known}"


def with_multiples(owner, images, image_shape, multiple):
    """Returns `images` after checking the sizes that a model leaves open.

    Args:
      owner: the name to begin the message with.
      images: `[batch, *image_shape]`.
      image_shape: the model's image shape, with None for open sizes.
      multiple: open sizes must be multiples of this.

    Raises:
      ValueError: if a size is not a multiple; the message names owner and shape.
      tf.errors.InvalidArgumentError: likewise, when a graph with an unknown size runs.
    """
    shape = tf.TensorShape(images.shape)
    kind = "images" if len(image_shape) == 3 else "volumes"
    text = f"{owner}: sizes of {kind} must be multiples of {multiple}"
    unknown = []
    for axis, size in enumerate(image_shape[:-1], start=1):
        if size is None and shape[axis] is None:
            unknown.append(axis)
        elif size is None and shape[axis] % multiple:
            raise ValueError(f"{text}, got shape {shape}")
    if not unknown or isinstance(images, keras.KerasTensor):
        return images
    sizes = tf.gather(tf.shape(images), unknown)
    with tf.control_dependencies(
        [tf.debugging.assert_equal(sizes % multiple, 0, text)]
    ):
        return tf.identity(images)


def sizes_of(owner, sizes, size):
    """Returns the entry of `size` in a table of networks' sizes.

    Raises:
      ValueError: if there is none; the message names owner and the known entries.
    """
    if not isinstance(size, str) or size not in sizes:
        names = " or ".join(map(repr, sizes))
        raise ValueError(f"{owner}: size must be {names}, got {size!r}")
    return sizes[size]
