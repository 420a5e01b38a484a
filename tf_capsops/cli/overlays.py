# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws masks of classes over their images."""

import colorsys

import numpy as np

_GOLDEN = 0.618034  # The step between hues, which keeps neighboring classes apart.
_OPACITY = 0.4  # opacity inside of contours
_MOST_NAMES = 24  # the most classes that a legend names


def colors(classes):
    """Returns red, green and blue of each class, `[classes, 3]` from 0 to 1."""
    hues = (0.58 + _GOLDEN * np.arange(classes)) % 1
    return np.array([colorsys.hsv_to_rgb(hue, 0.85, 1.0) for hue in hues])


def overlaid(image, classes):
    """Returns an image with each object tinted in the color of its class.

    The outermost pixels of each object are opaque, and thus draw its contour.

    Args:
      image: `[H, W, C]`, from 0 to 1. Three channels are shown in color, of others the
        first in gray.
      classes: integers `[H, W]`; 0 is the background, which stays as it is.

    Returns:
      uint8 `[H, W, 3]`.
    """
    image, classes = np.asarray(image), np.asarray(classes)
    shown = image if image.shape[-1] == 3 else np.repeat(image[..., :1], 3, axis=-1)
    color = colors(int(classes.max()) + 1)[classes]
    opacity = np.where(_contours(classes), 1.0, _OPACITY * (classes > 0))
    opacity = opacity[..., np.newaxis]
    mixed = (1 - opacity) * np.clip(shown, 0, 1) + opacity * color
    return np.round(255 * mixed).astype(np.uint8)


def _contours(classes):
    """Returns which pixels of objects have a neighbor of another class at a side."""
    around = np.pad(classes, 1, mode="edge")
    sides = around[:-2, 1:-1], around[2:, 1:-1], around[1:-1, :-2], around[1:-1, 2:]
    return (classes > 0) & np.any([side != classes for side in sides], axis=0)


def middle(image):
    """Returns an image `[H, W, ...]`, or the middle slice of a volume."""
    return image[len(image) // 2]


def draw(samples, predicted, dice, names, path):
    """Draws samples, with their own masks over them and with the predicted masks.

    Args:
      samples: a list of (image, mask, number in the data set). Images are `[H, W, C]`,
        or volumes `[D, H, W, C]`, of which the middle slices are drawn; masks have no
        channels.
      predicted: the predicted mask of each sample.
      dice: the Dice coefficient of each sample.
      names: names of the classes.
      path: where the picture goes.
    """
    from matplotlib.patches import Patch

    from tf_capsops.cli import canvas

    height, width = samples[0][0].shape[-3:-1]
    tall = 4.6 * min(max(height / width, 0.4), 2)
    figure = canvas.figure(1.6 * max(len(samples), 3) + 0.5, tall + 1.2)
    grid = figure.subplots(3, len(samples), squeeze=False)
    columns = zip(grid.T, samples, predicted, dice)
    for column, (image, mask, number), read, score in columns:
        if image.ndim == 4:
            image, mask, read = map(middle, (image, mask, read))
        for axes, each in zip(column, (np.zeros_like(mask), mask, read)):
            axes.imshow(overlaid(image, each), interpolation="nearest")
            canvas.bare(axes)
        column[0].set_title(f"image {number}", fontsize=9)
        column[2].set_title(f"Dice {score:.3f}", fontsize=9)
    for axes, name in zip(grid[:, 0], ("image", "mask", "prediction")):
        axes.set_ylabel(name)
    if len(names) <= _MOST_NAMES:
        shown = list(zip(colors(len(names)), names))[1:]
        patches = [
            Patch(color=color, label=canvas.literal(name)) for color, name in shown
        ]
        figure.legend(
            handles=patches,
            loc="outside lower center",
            ncols=min(len(patches), 12),
            frameon=False,
            fontsize=8,
        )
    canvas.save(figure, path)
