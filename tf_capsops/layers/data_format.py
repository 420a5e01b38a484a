# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""The order of an image's axes, which Keras calls its data format."""

import keras
import tensorflow as tf

IMAGE_AXES = {
    "channels_last": "[batch, height, width, channels]",
    "channels_first": "[batch, channels, height, width]",
}


def checked_data_format(owner, value):
    """Returns a valid data format; None means the default of Keras' configuration.

    Raises:
      ValueError: if `value` is no data format; the message names owner and value.
    """
    value = keras.config.image_data_format() if value is None else value
    if value not in IMAGE_AXES:
        raise ValueError(
            f"{owner}: data_format must be 'channels_last' or 'channels_first', got "
            f"{value!r}"
        )
    return value


def checked_images(layer, shape, data_format="channels_last", name="input"):
    """Returns the shape of images as a tuple, if it has four axes and known channels.

    Raises:
      ValueError: if not; the message names layer, input and shape.
    """
    shape, axes = tuple(shape), IMAGE_AXES[data_format]
    if len(shape) != 4 or shape[channels_axis(data_format)] is None:
        raise ValueError(
            f"{type(layer).__name__}: the {name} must be {axes} with known channels, "
            f"got shape {shape}"
        )
    return shape


def channels_axis(data_format):
    """Returns the number of the channels' axis in a batch of images."""
    return 1 if data_format == "channels_first" else 3


def with_channels_last(images, data_format):
    """Returns images in channels_last order, transposing them if they are not.

    With channels_first, TensorFlow convolves only on some CPUs and in some types, and
    TFLite not at all. On a GPU with tensor cores, channels_last is faster.
    """
    if data_format == "channels_first":
        images = tf.transpose(images, [0, 2, 3, 1])
    return images
