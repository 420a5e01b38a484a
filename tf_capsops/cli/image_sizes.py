# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Finds out whether a network takes images of a size, and says which size it needs."""

import keras

from tf_capsops.errors import CommandError

_LARGEST = 64  # the largest size that is tried


def words(image_shape):
    """Returns what images of a shape are called, and what they consist of."""
    volumes = len(image_shape) == 4
    return ("volumes", "voxels") if volumes else ("images", "pixels")


def require_takes(model, shape, dataset):
    """Raises a CommandError unless a model takes the images of a data set."""
    wanted = tuple(dataset.image_shape)
    if not all(size in (None, given) for size, given in zip(shape, wanted)):
        raise CommandError(
            f"the model takes {words(shape)[0]} of shape {shape}, but those of "
            f"{dataset.name} have {wanted}"
        )
    if None in shape and not takes(model, wanted):
        raise CommandError(refusal(model, f"those of {dataset.name}", wanted))


def takes(model, image_shape):
    """Whether a model that leaves sizes open takes images of this shape."""
    try:
        model.compute_output_spec(keras.KerasTensor((None, *image_shape)))
    except ValueError:
        return False
    return True


def refusal(model, images, image_shape):
    """Says that a model that leaves sizes open takes no images of this shape."""
    return (
        too_small("the model", images, image_shape, lambda shape: takes(model, shape))
        or f"the model takes no {words(image_shape)[0]} of shape {image_shape}, as "
        f"{images}"
    )


def too_small(network, images, image_shape, takes):
    """Says that a network takes only larger images, or returns None if it does not.

    Args:
      network, images: what they are called.
      image_shape: the shape of an image that the network does not take.
      takes: a function that tells whether it takes images of a shape.
    """
    *sides, channels = image_shape
    size = "x".join(map(str, sides))
    kind, parts = words(image_shape)
    for least in range(min(sides) + 1, _LARGEST + 1):
        if takes((*(max(side, least) for side in sides), channels)):
            return (
                f"{network} takes no {kind} as small as {images} ({size}); each side "
                f"must have at least {least} {parts}"
            )
    return None
