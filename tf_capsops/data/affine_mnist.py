# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Shifted digits for training, and digits under unseen affine maps for testing."""

import dataclasses
import math

import tensorflow as tf

from tf_capsops.data.generated import Generated
from tf_capsops.data.samples import Samples, on_processor, place, uniform, warp

MARGIN = 6  # pixels around a digit in the middle
DEGREES, SHEAR, SCALE = 20.0, 0.2, 0.2


@dataclasses.dataclass(frozen=True)
class AffineMnist(Generated):
    """Digits shifted for training and mapped affinely for testing, like affNIST.

    This is not affNIST, but made in its manner, for the experiment of Sabour et al.
    (2017), section 5.2. Images are 12 pixels higher and wider than the digits: 40 x 40
    for MNIST. For training, a digit is shifted by whole pixels to any place in the
    image, another one in every epoch. For testing, each digit gets one affine map: it
    is rotated by up to 20 degrees either way, sheared by up to 0.2 (pixels across for
    each pixel down), scaled by 0.8 to 1.2 across and down, and put at any place where
    all of it is in the image. All amounts are drawn uniformly. A digit that is too
    large for the image is put in the middle.

    A target is the label.

    Args:
      base: the `Dataset` of digits.
      seed: an int, from which all maps follow.

    >>> from tf_capsops import data
    >>> shifted = data.AffineMnist(data.load("digits"))
    >>> shifted.image_shape, len(shifted.train), len(shifted.test)
    ((20, 20, 1), 1437, 360)
    """

    name = "affine_mnist"
    margin = MARGIN

    def _samples(self, images, labels, testing):
        kind = _Mapped if testing else _Shifted
        return kind(self, images, labels, testing)


@dataclasses.dataclass(frozen=True)
class ShiftedMnist(AffineMnist):
    """Digits shifted for training and for testing, as `AffineMnist` shifts them.

    It trains a network as `AffineMnist` does. Tests on both separate a network's errors
    at unseen affine maps from its errors at shifts, which it has learned.

    Args:
      base: the `Dataset` of digits.
      seed: an int, from which all shifts follow.

    >>> from tf_capsops import data
    >>> data.ShiftedMnist(data.load("digits")).image_shape
    (20, 20, 1)
    """

    name = "shifted_mnist"

    def _samples(self, images, labels, testing):
        return _Shifted(self, images, labels, testing)


class _Changed(Samples):
    """The samples of one part, each made with `random_numbers` random numbers."""

    random_numbers = None

    def __init__(self, dataset, images, labels, part):
        super().__init__(labels)
        self._seed, self._part = dataset.seed, part
        self._size = dataset.image_shape[:2]
        self._images, self._labels = on_processor(images, labels)

    def draws(self, epoch):
        shape = [len(self), self.random_numbers]
        return uniform(shape, self._seed, self._part, epoch)

    def make(self, indices, draws):
        images = self._changed(tf.gather(self._images, indices), draws)
        return images, tf.gather(self._labels, indices)


class _Shifted(_Changed):
    random_numbers = 2

    def _changed(self, images, draws):
        return place(images, tf.floor(draws * (2 * MARGIN + 1)), self._size)


class _Mapped(_Changed):
    random_numbers = 6

    def _changed(self, images, draws):
        matrices = _matrices(2 * draws[:, :4] - 1)
        low, high = _bounds(images, matrices, self._size)
        shift = low + draws[:, 4:] * tf.maximum(high - low, 0.0)
        shift += tf.minimum(high - low, 0.0) / 2
        back = tf.linalg.inv(matrices)
        origin = _middle(images.shape[1:3]) - tf.linalg.matvec(back, shift)
        return warp(images, tf.concat([back, origin[..., None]], axis=2), self._size)


def _matrices(draws):
    """Returns linear maps of (x, y), `[B, 2, 2]`, for draws from -1 to 1, `[B, 4]`."""
    angle, shear, across, down = tf.unstack(draws, axis=1)
    angle, shear = angle * math.radians(DEGREES), shear * SHEAR
    cos, sin = tf.cos(angle), tf.sin(angle)
    across, down = 1 + SCALE * across, 1 + SCALE * down
    # First the scales, then the shear, then the rotation.
    rows = (
        [cos * across, (cos * shear - sin) * down],
        [sin * across, (sin * shear + cos) * down],
    )
    return tf.stack([tf.stack(row, axis=1) for row in rows], axis=1)


def _middle(size):
    height, width = size
    return tf.constant([(width - 1) / 2, (height - 1) / 2], tf.float32)


def _bounds(images, matrices, size):
    """Returns the lowest and the highest (x, y) for the middle of each image, `[B, 2]`.

    Between them, all ink is inside of the larger image. If the highest is below the
    lowest, the ink does not fit.
    """
    height, width = images.shape[1:3]
    x, y = tf.meshgrid(tf.range(width), tf.range(height))
    pixels = tf.cast(tf.stack([x, y], axis=-1), tf.float32) - _middle((height, width))
    places = tf.einsum("bij,hwj->bhwi", matrices, pixels)
    ink = tf.reduce_any(images > 0, axis=-1, keepdims=True)
    # An image without any ink counts as inked everywhere.
    ink |= tf.logical_not(tf.reduce_any(ink, axis=(1, 2), keepdims=True))
    # Interpolation spreads the ink of a pixel until the next one.
    reach = tf.reduce_sum(tf.abs(matrices), axis=2) - 1
    far = tf.constant(math.inf)
    first = tf.reduce_min(tf.where(ink, places, far), axis=(1, 2)) - reach
    last = tf.reduce_max(tf.where(ink, places, -far), axis=(1, 2)) + reach
    largest = tf.constant([size[1] - 1, size[0] - 1], tf.float32)
    return -first, largest - last
