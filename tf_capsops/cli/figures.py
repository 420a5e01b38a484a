# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws pictures of training runs without a display."""

import math

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, to_rgb
from matplotlib.patches import Rectangle

from tf_capsops.cli import canvas
from tf_capsops.cli.evaluation import multi_hot

# Offsets for one dimension of a capsule: figure 4 of Sabour et al. (2017).
OFFSETS = np.linspace(-0.25, 0.25, 11)
_SEARCHED = 1000  # test images of pairs that are searched for wrong predictions
# Colors of the two reconstructions of a pair.
_COLORS = np.array([to_rgb(canvas.BLUE), to_rgb(canvas.ORANGE)], np.float32)


def reconstructions(model, dataset, path, count=40, columns=10):
    """Draws test images, and their reconstructions below them, to `path`.

    The images are the first ones of each class, `count` in all. A wrong prediction is
    named in red.
    """
    if dataset.objects > 1:
        _reconstructed_pairs(model, dataset, path, count, columns)
        return
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


def _reconstructed_pairs(model, dataset, path, count, columns):
    """Draws test images, and below each both reconstructions in two colors, to `path`.

    This is figure 5 of Sabour et al. (2017). L names the labels, and R the classes
    whose capsules are decoded. A quarter of the `count` images have wrong predictions,
    if so many are found. They come last, in red, and twice: decoded from the labels,
    and from the prediction (P).
    """
    images, shown, decoded, wrong = _chosen_pairs(model, dataset, count)
    outputs = model({"images": images, "labels": decoded})
    overlaid = _overlaid(np.asarray(outputs["reconstruction"]))
    gray = canvas.INK(images.mean(axis=-1))[..., :3]
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    figure = canvas.figure(columns * 0.9, rows * 2.2 + 0.3)
    for row, axes in enumerate(figure.subplots(rows, 1, squeeze=False)[:, 0]):
        part = slice(row * columns, (row + 1) * columns)
        centers, _ = canvas.tiles(axes, np.stack([gray[part], overlaid[part]]), columns)
        for center, *sample in zip(centers, shown[part], decoded[part], wrong[part]):
            _caption_pair(axes, center, *sample)
    figure.suptitle("test images, and below each its reconstructions", fontsize=10)
    canvas.save(figure, path)


def perturbations(model, dataset, path):
    """Draws to `path` how each dimension of a capsule changes the reconstruction.

    There is a block for each class, with one test image. Rows are the dimensions of the
    capsule of its label, columns the `OFFSETS` that are added to a dimension. This is
    figure 4 of Sabour et al. (2017).
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

    The images are the first ones of each class, `count` in all. A frame surrounds the
    centers of the primary capsules' receptive fields. Below each image, three pictures
    of that frame show coefficients of the last iteration, as the model's
    `routing_coefficients` returns them:

    * for the predicted class, the mean over the types of primary capsule at each
      position;
    * for the predicted class, every primary capsule;
    * for the class with the second highest score, every primary capsule.

    Colors show ratios to 1 / classes, with which routing begins, on logarithmic
    scales.
    """
    images, labels = _of_each_class(dataset, count)
    scores, predicted = _predictions(model, images, dataset)
    everything = np.asarray(model.routing_coefficients(images))
    ranked = np.argsort(-scores, axis=1)[:, :2]
    each = [everything[np.arange(len(images)), ..., j] for j in ranked.T]
    means = each[0].mean(axis=-1)
    classes = everything.shape[-1]
    uniform = 1 / classes
    scales = around(uniform, means), around(uniform, each[0])

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
        under_ink(column[1], means[sample], images[sample], frame, scales[0])
        for axes, values in zip(column[2:], each, strict=True):
            _blocks(axes, values[sample], scales[1])
            axes.set_title(f"mean {values[sample].mean():#.2g}", fontsize=7, pad=2)
    for scale, lines in zip(scales, (rows[1:2], rows[2:]), strict=True):
        bar(figure, scale, lines, classes)
    figure.suptitle(
        f"routing coefficients of {everything[0, ..., 0].size} primary capsules\n"
        f"{np.mean(each[0] > 0.5):.1%} give the predicted class more than half of "
        f"themselves\nmean |coefficient - 1/{classes}| over all classes: "
        f"{np.abs(everything - uniform).mean():.2g}",
        fontsize=9,
    )
    canvas.save(figure, path)


def comparison(models, dataset, path, count=10):
    """Draws to `path` how several networks route the same images.

    The images are the first ones of each class, `count` in all. Below them is a row for
    each network: the mean over the types of primary capsule, at each position, of the
    coefficients for the class that this network predicts. Colors show ratios to 1 /
    classes on one logarithmic scale. A wrong prediction is named in red.

    Args:
      models: networks with `routing_coefficients`, by the names to show.
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
    scale = around(1 / classes, np.stack([each.max() for each in means.values()]))

    figure = canvas.figure(max(len(images) * 1.05 + 1.7, 6), len(models) * 1.25 + 1.5)
    rows = figure.subplots(1 + len(models), len(images), squeeze=False)
    for column, image, label in zip(rows[0], images, labels, strict=True):
        middles, _ = canvas.tiles(column, image[np.newaxis, np.newaxis], 1)
        _name(column, middles[0], label, label)
    for row, (name, model) in zip(rows[1:], models.items(), strict=True):
        row[0].set_ylabel(canvas.literal(name), fontsize=8)
        for sample, axes in enumerate(row):
            axes.imshow(np.zeros(images.shape[1:3]), alpha=0)  # scales as of the image
            frame = _extent(images[sample], model.primary_centers)
            under_ink(axes, means[name][sample], images[sample], frame, scale)
            guess = predicted[name][sample]
            if guess != labels[sample]:
                middle = (images.shape[2] - 1) / 2
                _name(axes, middle, labels[sample], guess)
    bar(figure, scale, rows[1:], classes)
    figure.suptitle(
        "routing coefficients for the predicted class, mean over the types of primary "
        "capsule at each position",
        fontsize=9,
    )
    canvas.save(figure, path)


def class_names(targets, dataset):
    """Returns the names of targets' classes for matplotlib: "3", or "3, 8" for several.

    Args:
      targets: labels `[B]`, or a dict of `"lengths"` `[B, classes]`, of which the
        highest ones count, as many as an image shows.
      dataset: the data set that names the classes.
    """
    known = dict(enumerate(map(canvas.literal, dataset.class_names)))
    if isinstance(targets, dict):
        ranked = np.argsort(-np.asarray(targets["lengths"]), axis=1, kind="stable")
        shown = np.sort(ranked[:, : dataset.objects])
    else:
        shown = np.asarray(targets)[:, np.newaxis]
    return [", ".join(known.get(each, str(each)) for each in row) for row in shown]


def _chosen_pairs(model, dataset, count):
    """Chooses images of pairs to draw.

    Returns:
      Images; the classes that they show and the classes to decode, each `[N, classes]`
      with ones; and whether the prediction is wrong.
    """
    right, wrong = [], []
    for images, targets in dataset.test.batches(100).take(_SEARCHED // 100):
        lengths = model.predict_on_batch(images)["lengths"]
        shown, read = targets["lengths"].numpy(), multi_hot(lengths, model.objects)
        for each in zip(images.numpy(), shown, read):
            (right if np.array_equal(*each[1:]) else wrong).append(each)
    wrong = wrong[: max(count // 4, count - len(right))]
    chosen = [(*each, False) for each in right[: count - len(wrong)]]
    for image, shown, read in wrong:
        chosen += [(image, shown, shown, True), (image, shown, read, True)]
    return [np.stack(each) for each in zip(*chosen)]


def _overlaid(pairs):
    """Returns images `[N, H, W, 3]` of pairs `[N, 2, H, W, C]`, in colors on paper.

    Where both have ink, their colors mix to a dark one.
    """
    ink = np.einsum("nphwc,pk->nhwk", pairs, 1 - _COLORS) / pairs.shape[-1]
    return np.clip(1 - ink, 0, 1) * canvas.INK(0.0)[:3]


def _caption_pair(axes, center, shown, decoded, wrong):
    """Writes above an image the classes of its labels and the decoded classes."""
    labels, read = (", ".join(map(str, np.flatnonzero(x))) for x in (shown, decoded))
    predicted = " (P)" if labels != read else ""
    axes.annotate(
        f"L {labels}\nR {read}{predicted}",
        (center, 1.02),
        xycoords=("data", "axes fraction"),
        ha="center",
        fontsize=7,
        color=canvas.RED if wrong else canvas.GRAY,
    )


def _perturbed(model, capsules, label):
    """Returns reconstructions `[D, offsets, H, W, C]` of one sample's capsules."""
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
    """Returns indices of `count` samples: each class's first, then each second..."""
    rank = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        rank[labels == label] = np.arange(np.count_nonzero(labels == label))
    return np.lexsort((labels, rank))[:count]


def _name(axes, center, label, predicted):
    """Writes the class above an image; a wrong prediction is added, in red."""
    right = label == predicted
    axes.annotate(
        f"{label}" if right else f"{label}, read as {predicted}",
        (center, 1.02),
        xycoords=("data", "axes fraction"),
        ha="center",
        fontsize=8,
        color=canvas.GRAY if right else canvas.RED,
    )


def around(uniform, values):
    """Returns a logarithmic scale of colors, symmetric about `uniform`."""
    span = max(values.max() / uniform, 1.25)
    return ScalarMappable(LogNorm(uniform / span, uniform * span, True), "RdBu_r")


def bar(figure, scale, rows, classes):
    """Adds the scale of coefficients to the right of rows of axes."""
    bar = figure.colorbar(scale, ax=rows, extend="min", aspect=10 * len(rows))
    ticks = np.geomspace(scale.norm.vmin, scale.norm.vmax, 5)
    bar.set_ticks(ticks, labels=[f"{tick:.2g}" for tick in ticks])
    bar.minorticks_off()
    bar.ax.tick_params(labelsize=7)
    bar.set_label(f"coefficient\n(uniform: 1/{classes})", fontsize=8)


def _extent(image, centers):
    """Returns left, right, bottom and top of the area around `centers`, in pixels."""
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


def under_ink(axes, values, image, frame, scale):
    """Shows `values` `[H', W']` in the frame, with the image's ink over them."""
    _shade(axes, values, scale, extent=frame)
    ink = 1 - image.mean(axis=-1) if image.shape[-1] == 3 else image[..., 0]
    black = np.zeros([*ink.shape, 3])
    axes.imshow(black, alpha=0.25 * np.clip(ink, 0, 1), interpolation="nearest")
    left, right, bottom, top = frame
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)


def _blocks(axes, values, scale):
    """Shows `values` `[H', W', types]`: a block for each position, a cell per type."""
    height, width, types = values.shape
    columns = math.ceil(math.sqrt(types))
    lines = -(-types // columns)
    cells = np.full((height, width, lines * columns), np.nan)
    cells[..., :types] = values
    cells = cells.reshape(height, width, lines, columns).transpose(0, 2, 1, 3)
    _shade(axes, cells.reshape(height * lines, width * columns), scale)
    for row in range(1, height):
        axes.axhline(row * lines - 0.5, color=canvas.GRAY, linewidth=0.4)
    for column in range(1, width):
        axes.axvline(column * columns - 0.5, color=canvas.GRAY, linewidth=0.4)


def _shade(axes, values, scale, extent=None):
    """Shows coefficients; zeros, of capsules that no window sees, are gray."""
    values = np.where(values > 0, values, np.nan)
    options = {"norm": scale.norm, "cmap": scale.cmap, "interpolation": "nearest"}
    axes.imshow(values, extent=extent, **options)
    axes.set_facecolor("#d0d0d0")
    canvas.bare(axes)
