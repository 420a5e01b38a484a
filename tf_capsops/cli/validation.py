# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training images that are held out, for choices that the test images must not make."""

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
