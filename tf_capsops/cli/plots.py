# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws plots: errors over epochs, confusion matrices, accuracies under attack."""

import numpy as np

from tf_capsops.cli import canvas
from tf_capsops.cli.callbacks import accuracies

_MOST_COUNTS = 25  # the most classes with counts written into the cells of a matrix
_MOST_NAMES = 100  # the most classes with names written at the sides of a matrix


def curves(history, path, part="test"):
    """Draws loss and error over the epochs of a Keras `History.history` to `path`.

    Args:
      history: lists with one number per epoch, by name.
      path: where the picture goes.
      part: name of the images that were not trained on, "test" or "validation".
    """
    figure = canvas.figure(9, 3.4)
    left, right = figure.subplots(1, 2)
    epochs = np.arange(1, len(history["loss"]) + 1)
    for axes, title in ((left, "loss"), (right, "error (%)")):
        if title == "loss":
            both = history["loss"], history["val_loss"]
        else:
            both = [100 * (1 - np.asarray(each)) for each in accuracies(history)]
        names = ("training, distorted", canvas.BLUE), (part, canvas.ORANGE)
        for values, (label, color) in zip(both, names, strict=True):
            axes.plot(epochs, values, color=color, label=label, marker=_marker(epochs))
        axes.set_title(title)
        axes.set_xlabel("epoch")
        if title == "loss":
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_yscale("log")
        else:
            _error_axis(axes)
    left.legend(frameon=False)
    canvas.save(figure, path)


def learning_curves(runs, path):
    """Draws the test error of every recipe over its epochs to `path`.

    Args:
      runs: lists of runs by recipe, each with "images" and "wrong_by_epoch".
      path: where the picture goes.
    """
    columns = min(4, max(1, len(runs)))
    rows = max(1, -(-len(runs) // columns))
    figure = canvas.figure(2.9 * columns, 2.3 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for axes, (name, seeds) in zip(panels, runs.items()):
        for run in seeds:
            errors = 100 * np.asarray(run["wrong_by_epoch"]) / run["images"]
            epochs = np.arange(1, len(errors) + 1)
            axes.plot(epochs, errors, linewidth=0.8, marker=_marker(epochs))
        axes.set_title(name, fontsize=9)
        _error_axis(axes)
    for axes in list(figure.axes)[len(runs) :]:
        axes.remove()
    figure.supxlabel("epoch", fontsize=9)
    figure.supylabel("test error (%), a line each seed", fontsize=9)
    canvas.save(figure, path)


def confusion(matrix, names, path):
    """Draws a confusion matrix to `path`; colors show shares of each row.

    Args:
      matrix: counts `[classes, classes]`: rows are labels, columns predictions.
      names: names of the classes.
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
            color = "white" if shares[row, column] > 0.5 else canvas.GRAY
            options = {"ha": "center", "va": "center", "fontsize": 8, "color": color}
            axes.text(column, row, f"{matrix[row, column]:,}", **options)
    if classes <= _MOST_NAMES:
        shown = [canvas.literal(name) for name in names]
        size = float(np.clip(250 / classes, 4, 9))
        axes.set_xticks(range(classes), shown, rotation=90, fontsize=size)
        axes.set_yticks(range(classes), shown, fontsize=size)
    axes.set_xlabel("prediction")
    axes.set_ylabel("label")
    canvas.save(figure, path)


def attacked(result, path):
    """Draws accuracies against epsilon, and the ROC of their detection, to `path`.

    Args:
      result: the content of the JSON file that `tf-capsops attack` writes.
      path: where the picture goes.
    """
    found = [each for each in result.get("detection", []) if each]
    figure = canvas.figure(9 if found else 4.5, 3.4)
    axes, *others = np.ravel(figure.subplots(1, 2 if found else 1))
    epsilons = result["epsilon"]
    lines = [("accuracy", "images that are attacked", canvas.BLUE)]
    if "accuracy_of_source" in result:
        lines = [("accuracy", "this network", canvas.BLUE)]
        lines.append(("accuracy_of_source", "the attacked network", canvas.ORANGE))
    for name, label, color in lines:
        shown = 100 * np.asarray(result[name])
        axes.plot(epsilons, shown, color=color, label=label, marker="o")
    axes.set_title(f"{result['method']}, {result['images']:,} images", fontsize=10)
    axes.set_xlabel("epsilon, the most that a pixel changes")
    axes.set_ylabel("accuracy (%)")
    axes.set_ylim(-2, 102)
    if len(lines) > 1:
        axes.legend(frameon=False)
    for axes in others:
        for epsilon, each in zip(epsilons, result["detection"]):
            if each:
                label = f"{epsilon:g}: area {each['area']:.3f}"
                axes.plot(each["false_alarms"], each["found"], label=label)
        axes.plot([0, 1], [0, 1], color=canvas.GRAY, linewidth=0.8, linestyle=":")
        axes.set_title("detection by reconstruction, for each epsilon", fontsize=10)
        axes.set_xlabel("clean images that raise an alarm")
        axes.set_ylabel("misread images that are found")
        axes.legend(frameon=False, fontsize=7)
    for axes in figure.axes:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    canvas.save(figure, path)


def _error_axis(axes):
    """Scales an axis of errors in percent, which fall from 90 to fractions of 1."""
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_yticks([0, 0.5, 1, 2, 5, 10, 20, 50, 100])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(bottom=0)


def _marker(epochs):
    """Returns a marker if there are too few points for a line."""
    return "o" if len(epochs) < 5 else None
