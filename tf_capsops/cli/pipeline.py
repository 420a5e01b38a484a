# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Holds images out, and batches the others with random distortions from a seed."""

import numpy as np
import tensorflow as tf

from tf_capsops.cli import image_sizes
from tf_capsops.cli.distortions import distort, distort_masks
from tf_capsops.errors import CommandError, reported
from tf_capsops.untuned import untuned

_SEED = 0  # always the same, so that all runs are compared on the same images
_COUNTED = 512  # the most masks in which pixels are counted to find rare classes
_LARGEST_WEIGHT = 100  # the largest weight of a class, however rare it is


def held_out(dataset, share):
    """Returns a data set whose test images are held out of the training images.

    Args:
      dataset: as `data.load` returns it.
      share: the share of the training images to hold out; None for the data set as it
        is.

    Raises:
      CommandError: if a part has no images, or one class where pairs need two.
    """
    if share is None:
        return dataset
    images = len(dataset.train)
    count = round(share * images)
    if not 0 < count < images:
        kind, _ = image_sizes.words(dataset.image_shape)
        raise CommandError(
            f"--validation {share:g} of {images} {kind} leaves one part empty"
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
    samples,
    batch_size,
    distortion,
    seed,
    class_weight=None,
    first_epoch=0,
    *,
    num_classes=0,
    steps=None,
):
    """Makes the shuffled, distorted batches of all epochs.

    Every epoch has another order, which follows from the seed and the epoch's number
    alone. Whole batches are gathered and distorted at once, which costs far less than
    one element at a time.

    Args:
      samples: a `data.Samples`.
      batch_size: images per batch; the last batch of an epoch may be smaller.
      distortion: a `presets.Distortion` of the images, and of masks with them.
      seed: an int; the same one gives the same batches.
      class_weight: "balanced" to let all classes count alike in the loss, however many
        images each has, and to let pixels of masks count more if their class is rare;
        None to weigh all images equally.
      first_epoch: the number of the epoch to begin with.
      num_classes: number of classes of the data set, for `class_weight`.
      steps: how many batches an epoch has, the first ones of its order; None for all.

    Returns:
      An endless `tf.data.Dataset` of images and targets. With `class_weight`, it also
      has the weights of the images or of the pixels of masks.
    """
    # The CPU makes batches while a GPU trains on earlier ones.
    with tf.device("CPU:0"):
        weights = class_weight and tf.constant(
            _balanced(samples, batch_size, num_classes)
        )
    count = steps or -(-len(samples) // batch_size)

    def order(epoch):
        # A number below zero, so that the seed differs from that of every batch.
        shuffled = tf.random.experimental.stateless_shuffle(
            tf.range(len(samples)), [seed, -1 - epoch]
        )
        draws = tf.gather(samples.draws(epoch), shuffled)
        chosen = tf.data.Dataset.from_tensor_slices((shuffled, draws))
        return chosen.batch(batch_size).take(count).enumerate(epoch * count)

    def batch(number, chosen):
        images, targets = samples.make(*chosen)
        if _is_mask(targets):
            targets = distort_masks(targets, [seed, number], distortion)
        images = distort(images, [seed, number], distortion)
        if weights is None:
            return images, targets
        classes = tf.squeeze(targets, -1) if _is_mask(targets) else targets
        return images, targets, tf.gather(weights, classes)

    batches = tf.data.Dataset.range(first_epoch, tf.int64.max).flat_map(order)
    batches = batches.map(batch, num_parallel_calls=tf.data.AUTOTUNE)
    endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
    return untuned(batches.apply(endless).prefetch(4))


def _is_mask(targets):
    return not isinstance(targets, dict) and targets.shape.rank > 2


def _balanced(samples, batch_size, num_classes):
    """Returns the weight of each class in the loss, at most `_LARGEST_WEIGHT`.

    Weights of images add up to the same sum for each class. Weights of pixels are the
    square roots of such weights: the background may have nearly all pixels, and would
    otherwise weigh too little at its edges. A class that was not seen weighs 1.
    """
    draws = samples.draws(0)
    masks = _is_mask(samples.targets(tf.range(1), draws[:1]))
    if masks:
        counts = _pixels(samples, draws, batch_size, num_classes)
    else:
        counts = np.bincount(samples.labels, minlength=num_classes)
    rarity = counts.sum() / np.count_nonzero(counts) / np.maximum(counts, 1)
    weights = np.minimum(np.sqrt(rarity) if masks else rarity, _LARGEST_WEIGHT)
    return np.where(counts, weights, 1).astype(np.float32)


def _pixels(samples, draws, batch_size, num_classes):
    """Counts the pixels of each class in the masks of up to `_COUNTED` images."""
    some = np.linspace(0, len(samples) - 1, min(len(samples), _COUNTED)).astype(int)
    counts = np.zeros(num_classes, int)
    for chosen in np.array_split(some, -(-len(some) // batch_size)):
        masks = samples.targets(tf.constant(chosen), tf.gather(draws, chosen))
        counts += np.bincount(masks.numpy().ravel(), minlength=num_classes)
    return counts
