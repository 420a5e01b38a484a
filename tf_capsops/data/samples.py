# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Numbered samples, and functions to draw random numbers and to move images."""

import abc

import tensorflow as tf

from tf_capsops.untuned import untuned


class Samples(abc.ABC):
    """Numbered images with their targets; any of them can be taken at any time.

    A generated sample depends on the seed, the epoch and its number alone, and not on
    samples taken before; no generated sample is kept.

    Attributes:
      labels: int32 `[N]`, a class that each image shows: the highest class of its mask
        if masks are in an array, and 0 if masks are files.

    >>> from tf_capsops import data
    >>> tests = data.load("digits").test
    >>> images, labels = tests.take([0, 5])
    >>> images.shape.as_list(), labels.numpy().tolist() == tests.labels[[0, 5]].tolist()
    ([2, 8, 8, 1], True)
    """

    def __init__(self, labels):
        self.labels = labels

    def __len__(self):
        return len(self.labels)

    @abc.abstractmethod
    def draws(self, epoch):
        """Returns the random numbers that the samples of an epoch are made with.

        Args:
          epoch: an int or a scalar tensor of integers.

        Returns:
          `[N, K]`, float32 from 0 to less than 1; K is 0 where nothing is random.
        """

    @abc.abstractmethod
    def make(self, indices, draws):
        """Makes samples on the CPU, in a graph or eagerly.

        Args:
          indices: the samples' numbers, `[B]`.
          draws: the rows of `draws(epoch)` with these numbers, `[B, K]`.

        Returns:
          Images `[B, H, W, C]` or volumes `[B, D, H, W, C]`, and their targets, which
          the class of the data set describes.
        """

    def targets(self, indices, draws):
        """Returns only the targets that `make` returns, without reading image files."""
        return self.make(indices, draws)[1]

    def take(self, indices, epoch=0):
        """Returns images and targets of the samples with these numbers, `[B]`."""
        with tf.device("CPU:0"):
            return self.make(indices, tf.gather(self.draws(epoch), indices))

    def batches(self, size, epoch=0):
        """Returns a `tf.data.Dataset` of all samples in their order, `size` a batch."""
        with tf.device("CPU:0"):
            draws = self.draws(epoch)

        def batch(start):
            end = tf.minimum(start + size, len(self))
            return self.make(tf.range(start, end), draws[start:end])

        starts = tf.data.Dataset.range(0, len(self), size)
        batches = starts.map(batch, num_parallel_calls=tf.data.AUTOTUNE)
        return untuned(batches.prefetch(4))


class ArraySamples(Samples):
    """Samples of arrays; a target is the label or the mask."""

    def __init__(self, images, labels):
        super().__init__(labels.reshape(len(labels), -1).max(axis=1))
        self._images, self._labels = on_processor(images, labels)

    def draws(self, epoch):
        return tf.zeros([len(self), 0])

    def make(self, indices, draws):
        return tf.gather(self._images, indices), tf.gather(self._labels, indices)


def on_processor(*arrays):
    """Returns arrays as tensors in the CPU's memory."""
    with tf.device("CPU:0"):
        return [tf.constant(array) for array in arrays]


def uniform(shape, seed, part, epoch):
    """Returns random numbers from 0 to less than 1, the same ones on every machine.

    Args:
      shape: the shape of the result.
      seed: a data set's seed.
      part: 0 for training and 1 for testing.
      epoch: an int or a scalar tensor of integers.
    """
    seeds = [tf.constant(2 * seed + part, tf.int64), tf.cast(epoch, tf.int64)]
    return tf.random.stateless_uniform(shape, seeds, alg="philox")


def warp(images, transforms, size, interpolation="BILINEAR"):
    """Maps images affinely, with zeros around them.

    Args:
      images: `[B, H, W, C]`.
      transforms: `[B, 2, 3]`: maps (x, y, 1) of a pixel of the result to the x and y
        that it comes from.
      size: (height, width) of the result.
      interpolation: `"BILINEAR"`, or `"NEAREST"` for masks.
    """
    flat = tf.reshape(transforms, [-1, 6])
    warped = tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        # The op takes a 3 x 3 matrix without its last entry, which is 1. The two zeros
        # of its last row mean no perspective.
        transforms=tf.pad(flat, [[0, 0], [0, 2]]),
        output_shape=size,
        fill_value=0.0,
        interpolation=interpolation,
        fill_mode="CONSTANT",
    )
    return tf.ensure_shape(warped, [*images.shape[:1], *size, images.shape[-1]])


def place(images, corners, size):
    """Puts images on larger black ones.

    Args:
      images: `[B, H, W, C]`.
      corners: the places of their first rows and columns, `[B, 2]`, whole numbers.
      size: (height, width) of the result.
    """
    # Multiplies by matrices of zeros and ones. This is exact, and costs less than half
    # as much as gathering or a transform.
    (height, width), corners = images.shape[1:3], tf.cast(corners, tf.int32)
    down = tf.one_hot(corners[:, :1] + tf.range(height), size[0], axis=1)
    across = tf.one_hot(corners[:, 1:] + tf.range(width), size[1])
    planes = tf.transpose(images, [0, 3, 1, 2])
    planes = down[:, tf.newaxis] @ planes @ across[:, tf.newaxis]
    return tf.transpose(planes, [0, 2, 3, 1])
