# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Holds images out, and makes batches of the others, distorted as a seed has it."""

import math

import numpy as np
import tensorflow as tf

from tf_capsops.data.samples import warp
from tf_capsops.errors import CommandError, reported
from tf_capsops.untuned import untuned

_SEED = 0  # of held-out images: all runs are compared on the same ones


def held_out(dataset, share):
    """Returns a data set whose test images are held out of the training images.

    Args:
      dataset: as `data.load` returns it.
      share: of the training images; None for the data set as it is.

    Raises:
      CommandError: if a part has no images, or one class where pairs need two.
    """
    if share is None:
        return dataset
    images = len(dataset.train)
    count = round(share * images)
    if not 0 < count < images:
        raise CommandError(
            f"--validation {share:g} of {images} images leaves a part without any"
        )
    order = np.random.default_rng(_SEED).permutation(images)
    with reported(ValueError):
        return dataset.held_out(order[count:], order[:count])


def purpose(share):
    """Returns what the images that are not trained on are for."""
    return "testing" if share is None else "validation"


def part(share):
    """Returns what the images are called that a run is judged by."""
    return "test" if share is None else "validation"


def training_batches(
    samples, batch_size, distortion, seed, class_weight=None, first_epoch=0
):
    """Makes the shuffled, distorted batches of all epochs.

    Every epoch has another order, which follows from the seed and the epoch's number
    alone. Whole batches are gathered and distorted at once, which costs far less than
    one element at a time.

    Args:
      samples: a `data.Samples`.
      batch_size: images a batch; the last of an epoch may be smaller.
      distortion: a `presets.Distortion` of the images alone, not of their targets.
      seed: an int; the same one gives the same batches.
      class_weight: "balanced" if all classes are to count alike in the loss, however
        many images each has; None if all images are.
      first_epoch: the number of the epoch to begin with.

    Returns:
      A `tf.data.Dataset` without an end, of images and targets, with weights of the
      images if classes have any.
    """
    # Batches are made on the processor, while a GPU trains on the ones before.
    with tf.device("CPU:0"):
        weights = class_weight and tf.constant(_balanced(samples.labels))
    count = -(-len(samples) // batch_size)

    def order(epoch):
        # Numbers of epochs are below zero here, and those of batches are not.
        shuffled = tf.random.experimental.stateless_shuffle(
            tf.range(len(samples)), [seed, -1 - epoch]
        )
        draws = tf.gather(samples.draws(epoch), shuffled)
        chosen = tf.data.Dataset.from_tensor_slices((shuffled, draws))
        return chosen.batch(batch_size).enumerate(epoch * count)

    def batch(number, chosen):
        images, targets = samples.make(*chosen)
        images = distort(images, [seed, number], distortion)
        if weights is None:
            return images, targets
        return images, targets, tf.gather(weights, targets)

    batches = tf.data.Dataset.range(first_epoch, tf.int64.max).flat_map(order)
    batches = batches.map(batch, num_parallel_calls=tf.data.AUTOTUNE)
    endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
    return untuned(batches.apply(endless).prefetch(4))


def _balanced(labels):
    """Returns weights by class, with which all have the same sum; 1 on average."""
    counts = np.bincount(labels)
    images = len(labels) / np.count_nonzero(counts)
    return (images / np.maximum(counts, 1)).astype(np.float32)


def distort(images, seed, distortion):
    """Changes each image by random amounts: its place, its light, and what it shows.

    Args:
      images: `[B, H, W, C]`, from 0 to 1.
      seed: two integers.
      distortion: a `presets.Distortion`, which has the largest amounts. Where it
        neither turns nor zooms, shifts are whole pixels and lose nothing. What comes
        from outside of an image is zero.
    """
    largest, seed = distortion, tf.cast(seed, tf.int64)
    images = _moved(images, seed, largest)
    if not (largest.flip or largest.brightness or largest.contrast or largest.erase):
        return images
    count = tf.shape(images)[0]
    own = tf.random.experimental.stateless_fold_in(seed, 1)
    draws = tf.random.stateless_uniform([7, count, 1, 1, 1], own)
    if largest.flip:
        mirrored = tf.reverse(images, axis=[2])
        images = tf.where(draws[0] < largest.flip, mirrored, images)
    if largest.brightness or largest.contrast:
        mean = tf.reduce_mean(images, axis=(1, 2, 3), keepdims=True)
        contrast = 1 + (2 * draws[1] - 1) * largest.contrast
        brightness = (2 * draws[2] - 1) * largest.brightness
        images = mean + brightness + (images - mean) * contrast
        images = tf.clip_by_value(images, 0.0, 1.0)
    return _erased(images, draws[3:], largest.erase) if largest.erase else images


def _erased(images, draws, largest):
    """Replaces in each image a rectangle of random area, form and place by the mean.

    Args:
      images: `[B, H, W, C]`.
      draws: four numbers from 0 to 1 for each, `[4, B, 1, 1, 1]`.
      largest: the rectangle's largest share of the image's area.
    """
    share, form = draws[0] * largest, 4 ** (draws[1] - 0.5)  # up to twice as wide
    mean = tf.reduce_mean(images, axis=(1, 2), keepdims=True)
    inside = True
    for axis, factor, place in ((1, 1 / form, draws[2]), (2, form, draws[3])):
        length = images.shape[axis]
        size = tf.minimum(tf.sqrt(share * factor), 1.0) * length
        shape = [-1 if each == axis else 1 for each in range(4)]
        pixels = tf.reshape(tf.range(length, dtype=tf.float32) + 0.5, shape)
        begin = place * (length - size)
        inside &= (begin <= pixels) & (pixels < begin + size)
    return tf.where(inside, mean, images)


def _moved(images, seed, largest):
    """Shifts, turns and zooms each image."""
    if not (largest.shift or largest.degrees or largest.zoom):
        return images
    count = tf.shape(images)[0]
    height, width = images.shape[1:3]
    draws = tf.random.stateless_uniform([count, 4], seed, -1.0, 1.0)
    angle = draws[:, 0] * math.radians(largest.degrees)
    scale = tf.exp(draws[:, 1] * math.log1p(largest.zoom))
    if largest.degrees or largest.zoom:
        shift = draws[:, 2:] * largest.shift
    else:
        # Every whole number of pixels is as likely as any other.
        shift = tf.round(draws[:, 2:] * (largest.shift + 0.4999))
    cos, sin = scale * tf.cos(angle), scale * tf.sin(angle)
    middle_x, middle_y = (width - 1) / 2, (height - 1) / 2
    rows = (
        [cos, -sin, middle_x - cos * middle_x + sin * middle_y + shift[:, 0]],
        [sin, cos, middle_y - sin * middle_x - cos * middle_y + shift[:, 1]],
    )
    transforms = tf.stack([tf.stack(row, axis=1) for row in rows], axis=1)
    return warp(images, transforms, (height, width))
