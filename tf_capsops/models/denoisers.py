# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Two networks that remove noise from photographs `[B, H, W, 3]`, from 0 to 1."""

import keras

from tf_capsops.layers import HighOrderConv2D


def averaging_network(width=32, depth=4, kernel_size=5, dilations=(1, 2, 4)):
    """Returns a network that averages each pixel with neighbors that it chooses.

    Convolutions compute features of the noisy image. From these, the network generates
    a filter for every pixel, whose weights are positive and add up to 1, and applies it
    to the noisy image. It then generates a second filter, over pixels further apart,
    and applies it to the result, and so on.

    Args:
      width: channels of each convolution.
      depth: the number of convolutions.
      kernel_size: the size of the filters.
      dilations: one dilation for each filter that a pixel goes through.
    """
    noisy = keras.Input((None, None, 3))
    seen = features(noisy, width, depth)
    image = noisy
    for dilation in dilations:
        image = HighOrderConv2D(
            kernel_size,
            dilation_rate=dilation,
            filter_activation="softmax",
            generator_kernel_size=1,
        )(image, guide=seen)
    return keras.Model(noisy, image, name="averaging")


def plain_network(width=33, depth=4):
    """Returns a network of convolutions that subtracts the noise it detects.

    By default it has 31,320 parameters, and the averaging network has 31,115.

    Args:
      width: channels of each convolution but the last.
      depth: the number of convolutions before the last.
    """
    noisy = keras.Input((None, None, 3))
    noise = keras.layers.Conv2D(3, 3, padding="same", kernel_initializer="zeros")
    image = keras.layers.Subtract()([noisy, noise(features(noisy, width, depth))])
    return keras.Model(noisy, image, name="plain")


def features(image, width, depth):
    """Applies convolutions to an image, every second one dilated."""
    for layer in range(depth):
        image = keras.layers.Conv2D(
            width,
            3,
            padding="same",
            dilation_rate=1 + layer % 2,
            activation="relu",
            kernel_initializer="he_normal",
        )(image)
    return image
