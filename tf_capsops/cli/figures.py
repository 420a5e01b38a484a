# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pictures of training runs, drawn without a display."""

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

# What is added to one dimension of a capsule: figure 4 of Sabour et al. (2017).
OFFSETS = np.linspace(-0.25, 0.25, 11)
_BLUE, _ORANGE, _RED, _GREY = "#2a6fbb", "#d9772b", "#c0262d", "#666666"
# Paper is a shade off white, so that an image's edge shows against the gaps.
_INK = LinearSegmentedColormap.from_list("ink", ["#f1f1ee", "#14202e"])


def curves(history, path):
    """Draws loss and error over the epochs of a Keras `History.history` to `path`."""
    figure = _figure(9, 3.4)
    left, right = figure.subplots(1, 2)
    epochs = np.arange(1, len(history["loss"]) + 1)
    for axes, title in ((left, "loss"), (right, "error (%)")):
        for prefix, label, color in (
            ("", "training, distorted", _BLUE),
            ("val_", "test", _ORANGE),
        ):
            key = "loss" if title == "loss" else "lengths_accuracy"
            values = np.asarray(history[prefix + key])
            values = values if title == "loss" else 100 * (1 - values)
            axes.plot(epochs, values, color=color, label=label, marker=_marker(epochs))
        axes.set_title(title)
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if title == "loss":
            axes.set_yscale("log")
        else:
            axes.set_yscale("symlog", linthresh=1.0)
            axes.set_yticks([0, 0.5, 1, 2, 5, 10, 20, 50, 100])
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.set_ylim(bottom=0)
    left.legend(frameon=False)
    _save(figure, path)


def reconstructions(model, dataset, path, count=40, columns=10):
    """Draws test images above what the model makes of them to `path`.

    The images are the first ones of each class, `count` in all. A wrong prediction is
    named in red.
    """
    chosen = _by_class(dataset.y_test, count)
    images = dataset.x_test[chosen]
    outputs = model.predict(images, verbose=0)
    predictions = outputs["lengths"].argmax(axis=1)
    columns = min(columns, len(chosen))
    rows = -(-len(chosen) // columns)
    figure = _figure(columns * 0.8, rows * 1.8 + 0.3)
    lines = figure.subplots(rows, 1, squeeze=False)[:, 0]
    for row, axes in enumerate(lines):
        part = slice(row * columns, (row + 1) * columns)
        pairs = np.stack([images[part], outputs["reconstruction"][part]])
        centers, _ = _tiles(axes, pairs, columns)
        for place, center in enumerate(centers[: len(chosen[part])]):
            label = dataset.y_test[chosen[part][place]]
            predicted = predictions[part][place]
            right = label == predicted
            axes.annotate(
                f"{label}" if right else f"{label}, read as {predicted}",
                (center, 1.02),
                xycoords=("data", "axes fraction"),
                ha="center",
                fontsize=8,
                color=_GREY if right else _RED,
            )
    figure.suptitle("test images, and below each its reconstruction", fontsize=10)
    _save(figure, path)


def perturbations(model, dataset, path):
    """Draws to `path` what each dimension of a capsule does.

    Rows are the dimensions of the right capsule of one test image, columns the
    `OFFSETS` added to it: figure 4 of Sabour et al. (2017). There is one block for each
    of the first classes, at most three.
    """
    chosen = _by_class(dataset.y_test, 3)
    capsules = np.asarray(model.encode(dataset.x_test[chosen]))
    dimensions = capsules.shape[-1]
    figure = _figure(len(chosen) * 4.2, dimensions * 0.36 + 0.9)
    blocks = figure.subplots(1, len(chosen), squeeze=False)[0]
    for axes, index, sample in zip(blocks, chosen, capsules):
        label = dataset.y_test[index]
        columns, rows = _tiles(axes, _perturbed(model, sample, label), len(OFFSETS))
        axes.set_xticks(columns, [f"{offset:+.2f}" for offset in OFFSETS], fontsize=6)
        axes.set_yticks(rows, range(1, dimensions + 1), fontsize=7)
        axes.set_title(f"class {label}", fontsize=10)
        axes.set_xlabel("added to the dimension", fontsize=8)
    blocks[0].set_ylabel("dimension of the capsule", fontsize=8)
    _save(figure, path)


def _perturbed(model, capsules, label):
    """Reconstructions `[D, offsets, H, W, C]` of one sample's capsules `[J, D]`."""
    classes, dimensions = capsules.shape
    changed = np.tile(capsules, (dimensions, len(OFFSETS), 1, 1))
    for dimension in range(dimensions):
        changed[dimension, :, label, dimension] += OFFSETS
    flat = changed.reshape(-1, classes, dimensions)
    one_hot = np.tile(np.eye(classes, dtype=np.float32)[label], (len(flat), 1))
    images = np.asarray(model.decode(flat, one_hot))
    return images.reshape(dimensions, len(OFFSETS), *images.shape[1:])


def _by_class(labels, count):
    """Indices of `count` samples: the first of each class, the second, and so on."""
    rank = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        rank[labels == label] = np.arange(np.count_nonzero(labels == label))
    return np.lexsort((labels, rank))[:count]


def _tiles(axes, images, columns):
    """Shows images `[rows, up to columns, H, W, C]`, with gaps between them.

    Three channels are shown in colour; of others the first, dark on light.

    Returns:
      The centers of the columns and those of the rows, in data coordinates.
    """
    rows, filled, height, width, channels = images.shape
    gap = max(1, height // 14)
    sheet = np.full(
        (rows * (height + gap) - gap, columns * (width + gap) - gap, channels), np.nan
    )
    for row in range(rows):
        for column in range(filled):
            top, left = row * (height + gap), column * (width + gap)
            sheet[top : top + height, left : left + width] = images[row, column]
    if channels == 3:
        axes.imshow(np.nan_to_num(sheet, nan=1.0), vmin=0, vmax=1)
    else:
        axes.imshow(sheet[..., 0], vmin=0, vmax=1, cmap=_INK, interpolation="nearest")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xticks([])
    axes.set_yticks([])
    return (
        np.arange(columns) * (width + gap) + (width - 1) / 2,
        np.arange(rows) * (height + gap) + (height - 1) / 2,
    )


def _marker(epochs):
    """A marker where there are too few points for a line."""
    return "o" if len(epochs) < 5 else None


def _figure(width, height):
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure, path):
    figure.savefig(path, dpi=130, facecolor="white")
