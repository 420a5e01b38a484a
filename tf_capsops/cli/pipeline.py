# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes batches for training, slightly distorted, and reproducible from a seed."""

import math

import keras
import numpy as np
import tensorflow as tf

from tf_capsops.data.samples import warp


class _Epoch(keras.callbacks.Callback):
    """Keeps the number of the epoch, also of a run that was resumed, in a variable."""

    def __init__(self):
        super().__init__()
        self.number = tf.Variable(0, dtype=tf.int64, trainable=False)

    def on_epoch_begin(self, epoch, logs=None):
        self.number.assign(epoch)


def training_batches(
    samples, batch_size, distortion, seed, deterministic=False, class_weight=None
):
    """Makes the shuffled, distorted batches of an epoch.

    Every epoch has another order, which follows from the seed and the epoch's number
    alone. Whole batches are gathered and distorted at once, which costs far less than
    one element at a time.

    Args:
      samples: a `data.Samples`.
      batch_size: images a batch; the last, smaller one is kept.
      distortion: a `presets.Distortion` of the images alone, not of their targets.
      seed: an int; the same one gives the same batches.
      deterministic: whether TensorFlow's ops are. TensorFlow then runs a map serially
        after one that reads a variable, as the epoch's number is; it logs an error when
        it has to change a parallel one.
      class_weight: "balanced" if all classes are to count alike in the loss, however
        many images each has; None if all images are.

    Returns:
      A `tf.data.Dataset` of images and targets, with weights of the images if classes
      have any, and a Keras callback that tells it which epoch begins.
    """
    # Batches are made on the processor, while a GPU trains on the ones before.
    with tf.device("CPU:0"):
        epoch = _Epoch()
        weights = class_weight and tf.constant(_balanced(samples.labels))
    count = -(-len(samples) // batch_size)

    def order(_):
        # Numbers of epochs are below zero here, and those of batches are not.
        shuffled = tf.random.experimental.stateless_shuffle(
            tf.range(len(samples)), [seed, -1 - epoch.number]
        )
        draws = tf.gather(samples.draws(epoch.number), shuffled)
        chosen = tf.data.Dataset.from_tensor_slices((shuffled, draws))
        return chosen.batch(batch_size).enumerate(epoch.number * count)

    def batch(number, chosen):
        images, targets = samples.make(*chosen)
        images = distort(images, [seed, number], distortion)
        if weights is None:
            return images, targets
        return images, targets, tf.gather(weights, targets)

    batches = tf.data.Dataset.range(1).flat_map(order)
    parallel = None if deterministic else tf.data.AUTOTUNE
    batches = batches.map(batch, num_parallel_calls=parallel)
    known = tf.data.experimental.assert_cardinality(count)
    return batches.apply(known).prefetch(4), epoch


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


def noisy_patches(image, size, batch_size, stddev, seed):
    """Returns an endless `tf.data.Dataset` of `(noisy, clean)` batches of squares.

    Squares come from random places, turned and mirrored in all eight ways. Each of
    their channels gets a random contrast and brightness; otherwise a network would
    learn the colors of one photograph. The noise is Gaussian and independent for every
    pixel and channel.

    Args:
      image: `[H, W, C]`, float32, of at least `size` rows and columns.
      size: pixels on the side of a square.
      batch_size: squares a batch.
      stddev: the noise's standard deviation, in the image's units.
      seed: an int; the same one gives the same batches.
    """
    with tf.device("CPU:0"):
        image = tf.constant(image)
    height, width, channels = image.shape
    down, across = tf.meshgrid(tf.range(size), tf.range(size), indexing="ij")

    def batch(seed):
        seed = tf.cast(seed, tf.int64)
        draws = tf.random.stateless_uniform([5, batch_size, 1, 1], seed)
        turned, upside_down, mirrored = tf.unstack(draws[:3] < 0.5)
        row = tf.where(turned, across, down)
        column = tf.where(turned, down, across)
        row = tf.where(upside_down, size - 1 - row, row)
        column = tf.where(mirrored, size - 1 - column, column)
        row += tf.cast(draws[3] * (height - size + 1), tf.int32)
        column += tf.cast(draws[4] * (width - size + 1), tf.int32)
        clean = tf.gather_nd(image, tf.stack([row, column], axis=-1))
        contrast, offset = tf.unstack(
            tf.random.stateless_uniform([2, batch_size, 1, 1, channels], seed + 1)
        )
        contrast = 0.2 + 0.8 * contrast
        clean = clean * contrast + offset * (1 - contrast)
        noise = tf.random.stateless_normal(tf.shape(clean), seed + 2, stddev=stddev)
        return clean + noise, clean

    seeds = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True).batch(2)
    return seeds.map(batch, num_parallel_calls=tf.data.AUTOTUNE).prefetch(4)
