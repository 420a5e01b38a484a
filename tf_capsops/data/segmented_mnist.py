# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Overlapping digits with masks of classes: images, and volumes in which they move."""

import dataclasses

import tensorflow as tf

from tf_capsops.arguments import positive_pair
from tf_capsops.data.multimnist import Paired, Pairs
from tf_capsops.data.samples import place

MARGIN = 4  # pixels around a digit in the middle, at least
MULTIPLE = 8  # of pixels: three layers may halve the height and width
FRAMES = 16
INK = 0.5  # the smallest value of a pixel that belongs to a digit


@dataclasses.dataclass(frozen=True)
class SegmentedMnist(Paired):
    """Two overlapping digits, and the class of each pixel.

    The pairs are drawn as those of `MultiMnist`. Each digit is put at a random place in
    an image that is at least 8 pixels higher and wider than the digit, and has a height
    and a width that are multiples of 8: 40 x 40 for MNIST. A pixel of the image is the
    larger one of both digits' pixels there, and belongs to that digit if it is 0.5 or
    more. Everything else is background.

    A target is a mask of classes, int32 `[B, H, W, 1]`: 0 is the background, and class
    `k` of the digits is `k + 1`.

    Args:
      base: the `Dataset` of single digits.
      seed: an int, from which all samples follow.
      image_size: (height, width) of an image, or one number for both, at least those of
        a digit; None for the size above.

    Raises:
      ValueError: if a part of `base` has fewer than two classes, or a digit is larger
        than an image.

    >>> from tf_capsops import data
    >>> digits = data.SegmentedMnist(data.load("digits"))
    >>> images, masks = digits.test.take([0, 1])
    >>> images.shape.as_list(), masks.shape.as_list(), digits.num_classes
    ([2, 16, 16, 1], [2, 16, 16, 1], 11)
    >>> digits.class_names[:2]
    ['background', '0']
    """

    image_size: tuple | int | None = None

    name = "segmented_mnist"
    has_masks = True

    def __post_init__(self):
        super().__post_init__()
        digit = self.base.image_shape[:2]
        if any(small < large for small, large in zip(self._size(), digit)):
            raise ValueError(
                f"{self.name}: image_size must be {digit} or more, as digits of "
                f"{self.base.name} have, got {self.image_size}"
            )

    @property
    def num_classes(self):
        return self.base.num_classes + 1

    @property
    def class_names(self):
        return ["background", *self.base.class_names]

    @property
    def image_shape(self):
        return (*self._size(), self.base.image_shape[-1])

    def _size(self):
        if self.image_size is not None:
            return positive_pair(self.name, "image_size", self.image_size)
        digit = self.base.image_shape[:2]
        return tuple(-(-(side + 2 * MARGIN) // MULTIPLE) * MULTIPLE for side in digit)

    def _samples(self, images, labels, testing):
        return _Masked(self, images, labels, testing)


@dataclasses.dataclass(frozen=True)
class MovingMnist(SegmentedMnist):
    """Volumes in which two digits move, and the class of each voxel.

    They are made in the manner of Moving MNIST (Srivastava, Mansimov and Salakhutdinov,
    2015), with straight paths. Each digit has a place in the first of 16 frames and
    another in the last, both drawn as the places of `SegmentedMnist`. It moves from one
    to the other at a constant speed, rounded to whole pixels. Images and masks of a
    frame are those of `SegmentedMnist`.

    Volumes are `[B, 16, H, W, C]`, and a target is a mask of classes, int32
    `[B, 16, H, W, 1]`.

    Args:
      base: the `Dataset` of single digits.
      seed: an int, from which all samples follow.
      image_size: the size of a frame, as for `SegmentedMnist`.

    Raises:
      ValueError: if a part of `base` has fewer than two classes, or a digit is larger
        than a frame.

    >>> from tf_capsops import data
    >>> moving = data.MovingMnist(data.load("digits"))
    >>> volumes, masks = moving.test.take([0])
    >>> volumes.shape.as_list(), masks.shape.as_list()
    ([1, 16, 16, 16, 1], [1, 16, 16, 16, 1])
    """

    name = "moving_mnist"

    @property
    def image_shape(self):
        return (FRAMES, *super().image_shape)

    def _samples(self, images, labels, testing):
        return _Moving(self, images, labels, testing)


class _Masked(Pairs):
    """Images of both digits, with masks."""

    random_numbers = 1 + 2 * 2

    def __init__(self, dataset, images, labels, part):
        super().__init__(dataset, images, labels, part)
        *self._frames, height, width, _ = dataset.image_shape
        self._size = height, width
        self._room = tf.constant(
            [height - images.shape[1], width - images.shape[2]], tf.float32
        )

    def _composed(self, digits, labels, draws):
        corners = self._corners(draws)
        digits = tf.repeat(digits, corners.shape[2], axis=0)
        placed = place(digits, tf.reshape(corners, [-1, 2]), self._size)
        placed = tf.reshape(placed, [-1, 2, *self._frames, *placed.shape[1:]])
        ink = tf.reduce_max(placed, axis=-1)
        first, second = tf.unstack(ink, axis=1)
        classes = tf.reshape(labels + 1, [-1, 2] + [1] * (first.shape.rank - 1))
        mask = tf.where(first >= second, classes[:, 0], classes[:, 1])
        mask = tf.where(tf.reduce_max(ink, axis=1) >= INK, mask, 0)
        return tf.reduce_max(placed, axis=1), mask[..., tf.newaxis]

    def _corners(self, draws):
        """Returns the corners of digits in each frame, `[B, 2, frames, 2]`."""
        return self._places(draws)[:, :, tf.newaxis]

    def _places(self, draws):
        """Returns corners `[B, 2, 2]` for draws from 0 to less than 1, `[B, 4]`."""
        return tf.floor(tf.reshape(draws, [-1, 2, 2]) * (self._room + 1))


class _Moving(_Masked):
    """Volumes of both digits, with masks."""

    random_numbers = 1 + 2 * 4

    def _corners(self, draws):
        begin, end = map(self._places, tf.split(draws, 2, axis=1))
        way = tf.linspace(begin, end, FRAMES, axis=2)
        return tf.floor(way + 0.5)
