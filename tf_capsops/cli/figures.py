# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws pictures of training runs without a display."""

import math

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.patches import Rectangle

from tf_capsops.cli import canvas
from tf_capsops.cli.progress import accuracies

# What is added to one dimension of a capsule: figure 4 of Sabour et al. (2017).
OFFSETS = np.linspace(-0.25, 0.25, 11)


def curves(history, path, part="test"):
    """Draws loss and error over the epochs of a Keras `History.history` to `path`.

    Args:
      history: lists of a number an epoch, by name.
      path: where the picture goes.
      part: what the images are called that were not trained on.
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


def reconstructions(model, dataset, path, count=40, columns=10):
    """Draws test images, and their reconstructions below them, to `path`.

    The images are the first ones of each class, `count` in all. A wrong prediction is
    named in red.
    """
    chosen = _by_class(dataset.test.labels, count)
    images, targets = dataset.test.take(chosen)
    images, labels = images.numpy(), class_names(targets, dataset)
    outputs = model.predict(images, verbose=0)
    predictions = class_names(outputs["lengths"].argmax(axis=1), dataset)
    columns = min(columns, len(chosen))
    rows = -(-len(chosen) // columns)
    figure = canvas.figure(columns * 0.8, rows * 1.8 + 0.3)
    lines = figure.subplots(rows, 1, squeeze=False)[:, 0]
    for row, axes in enumerate(lines):
        part = slice(row * columns, (row + 1) * columns)
        pairs = np.stack([images[part], outputs["reconstruction"][part]])
        centers, _ = canvas.tiles(axes, pairs, columns)
        for place, center in enumerate(centers[: len(chosen[part])]):
            _name(axes, center, labels[part][place], predictions[part][place])
    figure.suptitle("test images, and below each its reconstruction", fontsize=10)
    canvas.save(figure, path)


def perturbations(model, dataset, path):
    """Draws to `path` what each dimension of a capsule does.

    Rows are the dimensions of the right capsule of one test image, columns the
    `OFFSETS` added to it: figure 4 of Sabour et al. (2017). There is one block for each
    class.
    """
    labels = dataset.test.labels
    chosen = _by_class(labels, len(np.unique(labels)))
    images, _ = dataset.test.take(chosen)
    capsules = np.asarray(model.encode(images))
    dimensions = capsules.shape[-1]
    across = min(len(chosen), 5)
    down = -(-len(chosen) // across)
    figure = canvas.figure(across * 4.2, down * (dimensions * 0.36 + 0.9))
    blocks = figure.subplots(down, across, squeeze=False)
    for axes in blocks.flat[len(chosen) :]:
        axes.remove()
    for axes, index, sample in zip(blocks.flat, chosen, capsules):
        label = labels[index]
        columns, rows = canvas.tiles(
            axes, _perturbed(model, sample, label), len(OFFSETS)
        )
        axes.set_xticks(columns, [f"{offset:+.2f}" for offset in OFFSETS], fontsize=6)
        axes.set_yticks(rows, range(1, dimensions + 1), fontsize=7)
        axes.set_title(f"class {class_names([label], dataset)[0]}", fontsize=10)
        axes.set_xlabel("added to the dimension", fontsize=8)
    for axes in blocks[:, 0]:
        axes.set_ylabel("dimension of the capsule", fontsize=8)
    canvas.save(figure, path)


def coefficients(model, dataset, path, count=10):
    """Draws to `path` how routing divides the primary capsules of test images.

    The images are the first ones of each class, `count` in all, with a frame around the
    centers of what the primary capsules see. Below each, that frame with coefficients
    of the last iteration, by the model's `routing_coefficients`: for the predicted
    class, the mean over the types of primary capsule at each position; for the same
    class, every primary capsule; and the same for the class that comes second. Colours
    show ratios to 1 / classes, with which routing begins, on logarithmic scales.
    """
    images, labels = _of_each_class(dataset, count)
    scores, predicted = _predictions(model, images, dataset)
    everything = np.asarray(model.routing_coefficients(images))
    ranked = np.argsort(-scores, axis=1)[:, :2]
    each = [everything[np.arange(len(images)), ..., j] for j in ranked.T]
    means = each[0].mean(axis=-1)
    classes = everything.shape[-1]
    uniform = 1 / classes
    scales = _around(uniform, means), _around(uniform, each[0])

    names = ["", "predicted class,\nmean over types", "predicted class,\neach capsule"]
    names += ["second class,\neach capsule"][: len(each) - 1]
    figure = canvas.figure(max(len(images) * 1.05 + 1.7, 6), len(names) * 1.2 + 0.8)
    rows = figure.subplots(len(names), len(images), squeeze=False)
    for axes, name in zip(rows[:, 0], names, strict=True):
        axes.set_ylabel(name, fontsize=8)
    for sample, column in enumerate(rows.T):
        middles, _ = canvas.tiles(column[0], images[np.newaxis, sample : sample + 1], 1)
        _name(column[0], middles[0], labels[sample], predicted[sample])
        frame = _frame(column[0], images[sample], model.primary_centers)
        _under_ink(column[1], means[sample], images[sample], frame, scales[0])
        for axes, values in zip(column[2:], each, strict=True):
            _blocks(axes, values[sample], scales[1])
            axes.set_title(f"mean {values[sample].mean():#.2g}", fontsize=7, pad=2)
    for scale, lines in zip(scales, (rows[1:2], rows[2:]), strict=True):
        _bar(figure, scale, lines, classes)
    figure.suptitle(
        f"routing coefficients of {everything[0, ..., 0].size} primary capsules\n"
        f"{np.mean(each[0] > 0.5):.1%} give the predicted class more than half of "
        f"themselves\nmean |coefficient - 1/{classes}| over all classes: "
        f"{np.abs(everything - uniform).mean():.2g}",
        fontsize=9,
    )
    canvas.save(figure, path)


def comparison(models, dataset, path, count=10):
    """Draws to `path` what the routing of several networks makes of the same images.

    The images are the first ones of each class, `count` in all. Below them is a row for
    each network: the mean over the types of primary capsule, at each position, of the
    coefficients for the class that this network predicts. Colours show ratios to 1 /
    classes on one logarithmic scale. A wrong prediction is named in red.

    Args:
      models: networks with `routing_coefficients`, by what to call them.
      dataset: a `Dataset` that all of them read.
      path: where the picture goes.
      count: how many images.
    """
    images, labels = _of_each_class(dataset, count)
    means, predicted = {}, {}
    for name, model in models.items():
        scores, predicted[name] = _predictions(model, images, dataset)
        everything = np.asarray(model.routing_coefficients(images))
        classes = everything.shape[-1]
        best = everything[np.arange(len(images)), ..., scores.argmax(axis=1)]
        means[name] = best.mean(axis=-1)
    scale = _around(1 / classes, np.stack([each.max() for each in means.values()]))

    figure = canvas.figure(max(len(images) * 1.05 + 1.7, 6), len(models) * 1.25 + 1.5)
    rows = figure.subplots(1 + len(models), len(images), squeeze=False)
    for column, image, label in zip(rows[0], images, labels, strict=True):
        middles, _ = canvas.tiles(column, image[np.newaxis, np.newaxis], 1)
        _name(column, middles[0], label, label)
    for row, (name, model) in zip(rows[1:], models.items(), strict=True):
        row[0].set_ylabel(name, fontsize=8)
        for sample, axes in enumerate(row):
            axes.imshow(np.zeros(images.shape[1:3]), alpha=0)  # the image's scales
            frame = _extent(images[sample], model.primary_centers)
            _under_ink(axes, means[name][sample], images[sample], frame, scale)
            guess = predicted[name][sample]
            if guess != labels[sample]:
                middle = (images.shape[2] - 1) / 2
                _name(axes, middle, labels[sample], guess)
    _bar(figure, scale, rows[1:], classes)
    figure.suptitle(
        "routing coefficients for the predicted class, mean over the types of primary "
        "capsule at each position",
        fontsize=9,
    )
    canvas.save(figure, path)


def class_names(targets, dataset):
    """Returns the classes of targets, as text: "3", or "3, 8" of several.

    Args:
      targets: labels `[B]`, or a dict of `"lengths"` `[B, classes]`, of which the
        highest ones count, as many as an image shows.
      dataset: what names them.
    """
    known = dict(enumerate(dataset.class_names))
    if isinstance(targets, dict):
        ranked = np.argsort(-np.asarray(targets["lengths"]), axis=1, kind="stable")
        shown = np.sort(ranked[:, : dataset.objects])
    else:
        shown = np.asarray(targets)[:, np.newaxis]
    return [", ".join(known.get(each, str(each)) for each in row) for row in shown]


def denoised(images, results, path, size=160):
    """Draws to `path` the middle of each of `images` `{name: [H, W, 3]}`, enlarged.

    Args:
      images: values of 0 to 1; what is outside is cut off.
      results: the PSNR in dB of those that have one, by name.
      path: where the picture goes.
      size: pixels shown of each image, down and across.
    """
    columns = 3
    figure = canvas.figure(columns * 2.1, -(-len(images) // columns) * 2.3)
    everything = figure.subplots(-(-len(images) // columns), columns, squeeze=False)
    for axes in everything.flat:
        canvas.bare(axes)
    for axes, (name, image) in zip(everything.flat, images.items()):
        top, left = ((length - size) // 2 for length in image.shape[:2])
        shown = image[max(top, 0) :, max(left, 0) :][:size, :size]
        axes.imshow(np.clip(shown, 0, 1), interpolation="nearest")
        noted = f", {results[name]:.1f} dB" if name in results else ""
        axes.set_title(name + noted, fontsize=8, pad=3)
    canvas.save(figure, path)


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


def _of_each_class(dataset, count):
    """Returns the first test images of each class, `count` in all, and their labels."""
    images, targets = dataset.test.take(_by_class(dataset.test.labels, count))
    return images.numpy(), class_names(targets, dataset)


def _predictions(model, images, dataset):
    """Returns the scores `[B, classes]` of images, and the classes that they name."""
    scores = model.predict(images, verbose=0)
    scores = scores["lengths"] if isinstance(scores, dict) else scores
    return scores, class_names({"lengths": scores}, dataset)


def _by_class(labels, count):
    """Indices of `count` samples: the first of each class, the second, and so on."""
    rank = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        rank[labels == label] = np.arange(np.count_nonzero(labels == label))
    return np.lexsort((labels, rank))[:count]


def _name(axes, center, label, predicted):
    """Writes the class above an image; a wrong prediction in red beside it."""
    right = label == predicted
    axes.annotate(
        f"{label}" if right else f"{label}, read as {predicted}",
        (center, 1.02),
        xycoords=("data", "axes fraction"),
        ha="center",
        fontsize=8,
        color=canvas.GREY if right else canvas.RED,
    )


def _around(uniform, values):
    """Returns diverging colors, symmetric up to the largest of the values."""
    span = max(values.max() / uniform, 1.25)
    return ScalarMappable(LogNorm(uniform / span, uniform * span, True), "RdBu_r")


def _bar(figure, scale, rows, classes):
    """Adds the scale of coefficients beside rows of axes."""
    bar = figure.colorbar(scale, ax=rows, extend="min", aspect=10 * len(rows))
    ticks = np.geomspace(scale.norm.vmin, scale.norm.vmax, 5)
    bar.set_ticks(ticks, labels=[f"{tick:.2g}" for tick in ticks])
    bar.minorticks_off()
    bar.ax.tick_params(labelsize=7)
    bar.set_label(f"coefficient\n(uniform: 1/{classes})", fontsize=8)


def _extent(image, centers):
    """Returns left, right, bottom and top of what `centers` divide, in pixels."""
    bounds = []
    for places, pixels in zip(centers, image.shape[:2], strict=True):
        step = places[1] - places[0] if len(places) > 1 else pixels
        bounds.append((places[0] - step / 2, places[-1] + step / 2))
    (top, bottom), (left, right) = bounds
    return left, right, bottom, top


def _frame(axes, image, centers):
    """Draws the frame around `centers` into the image.

    Returns:
      Its left, right, bottom and top, in pixels.
    """
    left, right, bottom, top = _extent(image, centers)
    corner, width, height = (left, top), right - left, bottom - top
    axes.add_patch(
        Rectangle(corner, width, height, edgecolor=canvas.ORANGE, fill=False)
    )
    return left, right, bottom, top


def _under_ink(axes, values, image, frame, scale):
    """Shows `values` `[H', W']` in the frame, with the image's ink over them."""
    _shade(axes, values, scale, extent=frame)
    ink = 1 - image.mean(axis=-1) if image.shape[-1] == 3 else image[..., 0]
    black = np.zeros([*ink.shape, 3])
    axes.imshow(black, alpha=0.25 * ink, interpolation="nearest")
    left, right, bottom, top = frame
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)


def _blocks(axes, values, scale):
    """Shows `values` `[H', W', types]`: a block for each position, a cell a type."""
    height, width, types = values.shape
    columns = math.ceil(math.sqrt(types))
    lines = -(-types // columns)
    cells = np.full((height, width, lines * columns), np.nan)
    cells[..., :types] = values
    cells = cells.reshape(height, width, lines, columns).transpose(0, 2, 1, 3)
    _shade(axes, cells.reshape(height * lines, width * columns), scale)
    for row in range(1, height):
        axes.axhline(row * lines - 0.5, color=canvas.GREY, linewidth=0.4)
    for column in range(1, width):
        axes.axvline(column * columns - 0.5, color=canvas.GREY, linewidth=0.4)


def _shade(axes, values, scale, extent=None):
    """Shows coefficients; those of zero, of capsules that no window sees, in grey."""
    values = np.where(values > 0, values, np.nan)
    options = {"norm": scale.norm, "cmap": scale.cmap, "interpolation": "nearest"}
    axes.imshow(values, extent=extent, **options)
    axes.set_facecolor("#d0d0d0")
    canvas.bare(axes)


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
