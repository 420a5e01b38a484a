# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a confusion matrix says of each class, and a picture of it."""

import numpy as np

from tf_capsops.cli import canvas, runs
from tf_capsops.data import Pictures

_MOST_COUNTS = 25  # classes of a matrix whose counts are written into its cells
_MOST_NAMES = 100  # classes of a matrix whose names are written at its sides


def names(dataset, directory, classes):
    """Returns the names of a network's classes.

    Args:
      dataset: what it is evaluated on.
      directory: the network's, whose `config.json` may name them, too.
      classes: how many it knows.
    """
    if isinstance(dataset, Pictures) and dataset.num_classes == classes:
        return dataset.class_names
    return runs.class_names(directory, classes)


def precision_and_recall(matrix):
    """Returns both for each class, as lists by name; None where they are not defined.

    Args:
      matrix: counts `[classes, classes]`: rows are labels, columns predictions.

    Returns:
      A dict of `"precision"`, the share of right ones among the predictions of a class,
      and `"recall"`, the same among its images.
    """
    right = np.diag(matrix)
    return {
        name: [float(r / n) if n else None for r, n in zip(right, totals)]
        for name, totals in (
            ("precision", matrix.sum(axis=0)),
            ("recall", matrix.sum(axis=1)),
        )
    }


def draw(matrix, names, path):
    """Draws a confusion matrix to `path`; colours show shares of each row.

    Args:
      matrix: counts `[classes, classes]`: rows are labels, columns predictions.
      names: of the classes.
      path: where the picture goes.
    """
    classes = len(names)
    side = float(np.clip(0.5 * classes + 2, 4, 16))
    figure = canvas.figure(side, side)
    axes = figure.subplots()
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, vmin=0, vmax=1, cmap="Blues", interpolation="nearest")
    if classes <= _MOST_COUNTS:
        for row, column in np.argwhere(matrix):
            color = "white" if shares[row, column] > 0.5 else canvas.GREY
            options = {"ha": "center", "va": "center", "fontsize": 8, "color": color}
            axes.text(column, row, f"{matrix[row, column]:,}", **options)
    if classes <= _MOST_NAMES:
        # A name may have a $, which would begin a formula.
        shown = [name.replace("$", r"\$") for name in names]
        size = float(np.clip(250 / classes, 4, 9))
        axes.set_xticks(range(classes), shown, rotation=90, fontsize=size)
        axes.set_yticks(range(classes), shown, fontsize=size)
    axes.set_xlabel("prediction")
    axes.set_ylabel("label")
    canvas.save(figure, path)
