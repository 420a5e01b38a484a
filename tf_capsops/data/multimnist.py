# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""MultiMNIST: pairs of overlapping digits, made as they are asked for."""

import abc
import dataclasses

import numpy as np
import tensorflow as tf

from tf_capsops.data.generated import Generated
from tf_capsops.data.samples import Samples, on_processor, place, uniform

SHIFT = 4  # pixels, up, down, left and right


class Paired(Generated):
    """Samples of two digits of different classes; each part needs two classes or more.

    Args:
      base: the `Dataset` of single digits.
      seed: an int, from which all pairs follow.
    """

    def __post_init__(self):
        for labels in (self.base.y_train, self.base.y_test):
            if len(np.unique(labels)) < 2:
                raise ValueError(
                    f"{self.name} pairs digits of different classes: {self.base.name} "
                    "must have two or more, for training and for testing"
                )


@dataclasses.dataclass(frozen=True)
class MultiMnist(Paired):
    """MultiMNIST of Sabour et al. (2017), section 6, generated from digits.

    An image is the sum of two digits of different classes, clipped to 1. Each digit is
    shifted by up to 4 pixels in each direction, on a canvas that is 8 pixels higher and
    wider: 36 x 36 for MNIST. In every epoch, each digit is the first of one pair; the
    second is a random digit of another class from the same part, training or test. A
    thousand epochs have as many pairs as the paper's set, nearly all different. The
    test pairs are always those of epoch 0.

    A target is a dict: `"lengths"`, `[B, num_classes]` with a 1 for each of the two
    classes, and `"reconstruction"`, `[B, 2, H, W, C]`, the two digits each by itself,
    the lower class first.

    Args:
      base: the `Dataset` of single digits.
      seed: an int, from which all pairs follow.

    Raises:
      ValueError: if a part of `base` has fewer than two classes.

    >>> from tf_capsops import data
    >>> pairs = data.MultiMnist(data.load("digits"))
    >>> images, targets = pairs.test.take([0, 1, 2])
    >>> images.shape.as_list(), targets["reconstruction"].shape.as_list()
    ([3, 16, 16, 1], [3, 2, 16, 16, 1])
    >>> targets["lengths"].numpy().sum(axis=1).tolist()
    [2.0, 2.0, 2.0]
    """

    name = "multimnist"
    objects = 2
    margin = SHIFT

    def _samples(self, images, labels, testing):
        return _Sums(self, images, labels, testing)


class Pairs(Samples):
    """The pairs of one part; `labels` are the classes of their first digits.

    Attributes:
      random_numbers: how many random numbers a sample takes; the first one chooses the
        second digit.
    """

    random_numbers = None

    def __init__(self, dataset, images, labels, part):
        super().__init__(labels)
        self._seed, self._part = dataset.seed, part
        self._classes = dataset.base.num_classes
        counts = np.bincount(labels, minlength=self._classes)
        self._images, self._labels, self._by_class, self._counts, self._starts = (
            on_processor(
                *(images, labels, np.argsort(labels, kind="stable")),
                *(counts, np.cumsum(counts) - counts),
            )
        )

    def draws(self, epoch):
        shape = [len(self), self.random_numbers]
        return uniform(shape, self._seed, self._part, epoch)

    def make(self, indices, draws):
        both = tf.stack([tf.cast(indices, tf.int64), self._partners(indices, draws)], 1)
        labels = tf.gather(self._labels, both)
        # The digit of the lower class comes first.
        order = tf.argsort(labels, axis=1)
        both, labels = (tf.gather(x, order, batch_dims=1) for x in (both, labels))
        digits = tf.gather(self._images, tf.reshape(both, [-1]))
        return self._composed(digits, labels, draws[:, 1:])

    @abc.abstractmethod
    def _composed(self, digits, labels, draws):
        """Returns images and targets.

        Args:
          digits: two for each sample, the lower class first, `[B * 2, H, W, C]`.
          labels: their classes, `[B, 2]`.
          draws: numbers from 0 to less than 1, `[B, random_numbers - 1]`.
        """

    def _partners(self, indices, draws):
        """Returns the number of a random digit of another class for each digit."""
        label = tf.gather(self._labels, indices)
        same, start = tf.gather(self._counts, label), tf.gather(self._starts, label)
        # In float64, the product stays below the number of others.
        others = tf.cast(len(self) - same, tf.float64)
        rank = tf.cast(tf.cast(draws[:, 0], tf.float64) * others, tf.int64)
        rank += tf.where(rank >= start, same, 0)
        return tf.gather(self._by_class, rank)


class _Sums(Pairs):
    """Images that are the sum of both digits."""

    random_numbers = 5

    def __init__(self, dataset, images, labels, part):
        super().__init__(dataset, images, labels, part)
        self._size = dataset.image_shape[:2]

    def _composed(self, digits, labels, draws):
        corners = tf.floor(tf.reshape(draws, [-1, 2]) * (2 * SHIFT + 1))
        digits = place(digits, corners, self._size)
        digits = tf.reshape(digits, [-1, 2, *digits.shape[1:]])
        lengths = tf.reduce_sum(tf.one_hot(labels, self._classes), axis=1)
        images = tf.minimum(tf.reduce_sum(digits, axis=1), 1.0)
        return images, {"lengths": lengths, "reconstruction": digits}
