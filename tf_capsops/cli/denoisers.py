# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ways to remove noise from photographs: two networks and two classic filters.

Images are `[H, W, 3]`, float32, with values from 0 to 1.
"""

import keras
import numpy as np

from tf_capsops.layers import HighOrderConv2D


def photograph(name):
    """Loads scikit-learn's photograph "china" or "flower", of 427 x 640 pixels."""
    # scikit-learn takes a second to import.
    from sklearn.datasets import load_sample_image

    return load_sample_image(f"{name}.jpg").astype(np.float32) / 255


def psnr(clean, image):
    """Returns the peak signal-to-noise ratio in dB, of values clipped to 0 and 1."""
    error = np.square(np.clip(image, 0, 1) - clean).mean(dtype=np.float64)
    return float(-10 * np.log10(max(error, 1e-12)))


def averaging_network(width=32, depth=4, kernel_size=5, dilations=(1, 2, 4)):
    """Returns a network that averages each pixel with neighbors that it chooses.

    Convolutions look at the noisy image. From their features the network generates a
    filter for every pixel, whose weights are positive and add up to 1, and applies it
    to the noisy image; then a second filter to the result, over pixels further apart,
    and so on.

    Args:
      width: channels of each convolution.
      depth: how many of them there are.
      kernel_size: of the filters.
      dilations: one for each filter that a pixel goes through.
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

    By default it has 31,320 parameters, where the averaging network has 31,115.

    Args:
      width: channels of each convolution but the last.
      depth: how many there are before the last.
    """
    noisy = keras.Input((None, None, 3))
    noise = keras.layers.Conv2D(3, 3, padding="same", kernel_initializer="zeros")
    image = keras.layers.Subtract()([noisy, noise(features(noisy, width, depth))])
    return keras.Model(noisy, image, name="plain")


def best_gaussian(noisy, clean):
    """Blurs with the Gaussian of the best PSNR, tried in steps of a tenth of a pixel.

    Returns:
      The image, and what it was made with.
    """
    from scipy.ndimage import gaussian_filter

    sigmas = np.arange(0.4, 4, 0.1)
    images = [gaussian_filter(noisy, (sigma, sigma, 0)) for sigma in sigmas]
    best = int(np.argmax([psnr(clean, image) for image in images]))
    return images[best], f"sigma {sigmas[best]:.1f} px"


def best_bilateral(noisy, clean):
    """Applies the bilateral filter of the best PSNR, of several ranges.

    Returns:
      The image, and what it was made with.
    """
    tries = {}
    for space in (1.5, 2.0, 3.0):
        for colour in (0.2, 0.3, 0.4, 0.6):
            name = f"sigma {space:.1f} px, {colour:.1f} in colour"
            tries[name] = bilateral(noisy, space, colour)
    best = max(tries, key=lambda name: psnr(clean, tries[name]))
    return tries[best], best


def bilateral(image, space, colour, radius=4):
    """Applies the bilateral filter of Tomasi and Manduchi (1998).

    Args:
      image: `[H, W, C]`.
      space: standard deviation of the weights over distance, in pixels.
      colour: the same over the length of the difference of two colours.
      radius: pixels on each side that count.
    """
    height, width, _ = image.shape
    around = np.pad(image, ((radius, radius), (radius, radius), (0, 0)), "reflect")
    total, weighted = np.zeros([height, width, 1], image.dtype), np.zeros_like(image)
    for down in range(2 * radius + 1):
        for right in range(2 * radius + 1):
            moved = around[down : down + height, right : right + width]
            distance = (down - radius) ** 2 + (right - radius) ** 2
            difference = np.square(moved - image).sum(-1, keepdims=True)
            weight = np.exp(-difference / (2 * colour**2) - distance / (2 * space**2))
            total += weight
            weighted += weight * moved
    return weighted / total


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
