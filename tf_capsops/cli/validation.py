# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training images that are held out, for choices that the test images must not make."""

import dataclasses

import numpy as np

from tf_capsops.cli.errors import CommandError, reported

_SEED = 0  # of all runs, so that they are compared on the same images


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
    if dataset.generated:
        # Made for training and for validation as they would be for testing.
        with reported(ValueError):
            return dataclasses.replace(dataset, base=held_out(dataset.base, share))
    images = len(dataset.x_train)
    count = round(share * images)
    if not 0 < count < images:
        raise CommandError(
            f"--validation {share:g} of {images} images leaves a part without any"
        )
    order = np.random.default_rng(_SEED).permutation(images)
    rest, out = order[count:], order[:count]
    return dataclasses.replace(
        dataset,
        x_train=dataset.x_train[rest],
        y_train=dataset.y_train[rest],
        x_test=dataset.x_train[out],
        y_test=dataset.y_train[out],
    )


def purpose(share):
    """Returns what the images that are not trained on are for."""
    return "testing" if share is None else "validation"


def part(share):
    """Returns what the images are called that a run is judged by."""
    return "test" if share is None else "validation"
