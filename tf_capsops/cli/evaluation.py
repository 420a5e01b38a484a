# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Classifies or segments test images, and counts which class is taken for which."""

import math

import numpy as np

from tf_capsops.cli import runs
from tf_capsops.data import Pictures
from tf_capsops.errors import CommandError
from tf_capsops.metrics import classes_read


def scores(model, samples, batch_size=256):
    """Returns the scores that a classifier gives images, `[images, classes]`."""
    return measure(model, samples, batch_size)[0]


def measure(model, samples, batch_size=256):
    """Classifies images, and reconstructs them if the model can, a batch at a time.

    Args:
      model: a Keras model from images to scores, or to a dict of `"lengths"` and
        `"reconstruction"`.
      samples: a `data.Samples`.
      batch_size: images per batch.

    Returns:
      The scores, `[images, classes]`; the labels, `[images]`, or `[images, classes]`
      with a 1 for each class that an image shows; and the root mean square error of the
      reconstructions, or None for a model without any.
    """
    scores, labels, squares, pixels = [], [], 0.0, 0
    for images, targets in samples.batches(batch_size):
        outputs = model.predict_on_batch(images)
        wanted = images
        if isinstance(targets, dict):
            targets, wanted = targets["lengths"], targets["reconstruction"]
        if isinstance(outputs, dict):
            errors = outputs["reconstruction"] - wanted.numpy()
            squares += float(np.square(errors, dtype=np.float64).sum())
            pixels += errors.size
            outputs = outputs["lengths"]
        scores.append(outputs)
        labels.append(targets)
    rmse = math.sqrt(squares / pixels) if pixels else None
    return np.concatenate(scores), np.concatenate(labels), rmse


def require_numbers(scores):
    """Raises a CommandError if a score is NaN, because it then names no class."""
    if np.isnan(scores).any():
        raise CommandError(
            "the network's scores are NaN: if its training diverged, train again with "
            "a lower --learning-rate"
        )


def count_pixels(model, samples, batch_size):
    """Counts which class a segmenting network takes for which, a batch at a time.

    Args:
      model: a Keras model from images to scores `[B, ..., classes]`.
      samples: a `data.Samples` with masks.
      batch_size: images per batch.

    Returns:
      Counts of pixels `[classes, classes]`: rows are classes of masks, columns
      predictions. A network of one class reads two, background and object. And the Dice
      coefficient of each image: the mean over the classes that its mask or its
      prediction shows.
    """
    classes = max(2, model.output_shape[-1])
    total, dice = np.zeros([classes, classes], np.int64), []
    for images, masks in samples.batches(batch_size):
        scores = model.predict_on_batch(images)
        require_numbers(scores)
        read = classes_read(scores).numpy()
        for mask, found in zip(masks.numpy(), read):
            counts = confusion_matrix(mask.ravel(), found.ravel(), classes)
            total += counts
            dice.append(mean(overlaps(counts)["dice"]))
    return total, dice


def mean(values):
    """Returns the mean of the values that are not None."""
    known = [each for each in values if each is not None]
    return sum(known) / len(known)


def overlaps(matrix):
    """Returns Dice and IoU of each class, as lists by name; None for absent classes.

    Args:
      matrix: as `count_pixels` returns it.
    """
    right, both = np.diag(matrix), matrix.sum(axis=0) + matrix.sum(axis=1)
    return {
        "dice": [float(2 * r / n) if n else None for r, n in zip(right, both)],
        "iou": [float(r / (n - r)) if n else None for r, n in zip(right, both)],
    }


def multi_hot(scores, objects):
    """Returns 1 for the `objects` highest scores of each row, and 0 for the others."""
    highest = np.argsort(-scores, axis=1, kind="stable")[:, :objects]
    return np.eye(scores.shape[1])[highest].sum(axis=1)


def confusion_matrix(labels, predictions, classes):
    """Counts `[classes, classes]`: rows are labels, columns predictions."""
    pairs = labels.astype(np.int64) * classes + predictions
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def names(dataset, directory, classes):
    """Returns the names of a network's classes.

    Args:
      dataset: the data that it is evaluated on.
      directory: the network's directory, where `config.json` may name them, too.
      classes: how many classes it knows.
    """
    named = dataset.has_masks or isinstance(dataset, Pictures)
    if named and dataset.num_classes == classes:
        return dataset.class_names
    return runs.class_names(directory, classes)


def precision_and_recall(matrix):
    """Returns precision and recall of each class; None where they are not defined.

    Args:
      matrix: counts `[classes, classes]`: rows are labels, columns predictions.

    Returns:
      A dict of two lists: `"precision"`, the share of right ones among the predictions
      of each class, and `"recall"`, their share among the images of each class.
    """
    right = np.diag(matrix)
    return {
        name: [float(r / n) if n else None for r, n in zip(right, totals)]
        for name, totals in (
            ("precision", matrix.sum(axis=0)),
            ("recall", matrix.sum(axis=1)),
        )
    }
