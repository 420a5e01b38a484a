# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws which parts of one image routing gives to its classes, on the image's pixels.

A coefficient belongs to a primary capsule, which sees a rectangle of the image. A pixel
shows the mean coefficient of all capsules that see it.
"""

import numpy as np

from tf_capsops.cli import canvas, figures
from tf_capsops.models.segmenter import Segmenter

# Number of classes drawn, by score, and of types of primary capsules, by share.
_CLASSES, _TYPES = 4, 5


def draw(model, dataset, path, number=0):
    """Draws the routing of one test image to `path`.

    The upper row has the image and the coefficients for the classes that score highest,
    as means over the types of primary capsules. The lower row has the types that give
    the largest shares to the first of these classes. Colors are as in
    `figures.coefficients`.

    Args:
      model: has `routing_coefficients`, `primary_centers` and `primary_field`.
      dataset: the data set of the image.
      path: where the picture goes.
      number: the number of the test image.
    """
    images, _ = dataset.test.take([number])
    images = images.numpy()
    image, scores = images[0], _scores(model, images)
    found = np.asarray(model.routing_coefficients(images))[0]
    centers = _centers(model, image)
    pixels = to_pixels(found, centers, model.primary_field, image.shape[:2])
    order = np.argsort(-scores, kind="stable")
    if isinstance(model, Segmenter):
        order = order[order > 0]  # the background is no part of an object
    chosen = order[:_CLASSES]
    first = chosen[0]
    ranked = np.argsort(-np.nanmean(pixels[..., first], axis=(0, 1)))[:_TYPES]
    scale = figures.around(1 / found.shape[-1], np.nan_to_num(pixels[..., chosen]))

    columns = max(1 + len(chosen), len(ranked))
    figure = canvas.figure(max(1.5 * columns + 1.2, 5), 4.4)
    rows = figure.subplots(2, columns, squeeze=False)
    for axes in rows.flat:
        canvas.bare(axes)
    canvas.tiles(rows[0, 0], images[np.newaxis], 1)
    rows[0, 0].set_title(f"test image {number}", fontsize=8)
    names = figures.class_names(chosen, dataset)
    bottom, right = image.shape[0] - 0.5, image.shape[1] - 0.5
    frame = -0.5, right, bottom, -0.5
    for axes, each, name in zip(rows[0, 1:], chosen, names):
        figures.under_ink(axes, pixels[..., each].mean(axis=2), image, frame, scale)
        axes.set_title(f"class {name}: {scores[each]:.2f}", fontsize=8)
    for axes, kind in zip(rows[1], ranked):
        figures.under_ink(axes, pixels[..., kind, first], image, frame, scale)
        share = np.nanmean(pixels[..., kind, first])
        axes.set_title(f"type {kind}: mean {share:#.2g}", fontsize=8)
    rows[0, 1].set_ylabel("all types", fontsize=8)
    rows[1, 0].set_ylabel(f"for class {names[0]}", fontsize=8)
    figures.bar(figure, scale, rows, found.shape[-1])
    figure.suptitle("parts that are routed to a class", fontsize=9)
    canvas.save(figure, path)


def to_pixels(shares, centers, field, shape):
    """Returns the mean share of the capsules at each pixel, `[H, W, types, classes]`.

    It is NaN where no capsule sees the pixel.

    Args:
      shares: `[H', W', types, classes]`, which sum to one over the classes, or are zero
        for capsules that are not routed.
      centers: H' rows and W' columns, the middles of the receptive fields.
      field: height and width of a receptive field.
      shape: height and width of the image.
    """
    seen = [
        np.abs(np.arange(pixels) - np.asarray(places)[:, np.newaxis]) <= (size - 1) / 2
        for places, size, pixels in zip(centers, field, shape, strict=True)
    ]
    rows, columns = (each.astype(np.float64) for each in seen)
    total = np.einsum("py,qx,pqij->yxij", rows, columns, shares, optimize=True)
    count = total.sum(axis=-1, keepdims=True)
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)


def _scores(model, images):
    """Returns one image's scores; for a segmenter, each class's share of pixels."""
    scores = model.predict(images, verbose=0)
    if isinstance(model, Segmenter):
        read = scores[0].argmax(axis=-1)
        shares = np.bincount(read.ravel(), minlength=scores.shape[-1]) / read.size
        return shares
    return (scores["lengths"] if isinstance(scores, dict) else scores)[0]


def _centers(model, image):
    """Returns the model's `primary_centers`; those of a segmenter are the pixels."""
    if isinstance(model, Segmenter):
        return tuple(map(np.arange, image.shape[:2]))
    return model.primary_centers
